package protocol

import (
	"slices"
	"testing"
)

// bout is node 0 of two, home of all pages, and a peer that wants the same pages for writing. Operations of the page table are over at once.
type bout struct {
	*testing.T
	e   *Engine
	now Time
}

const boutMaxHold = 16_000

func newBout(t *testing.T) *bout {
	const pages = 64
	e := New(Config{Nodes: 2, Pages: pages, HomeStripe: pages, Hold: 20, MaxHold: boutMaxHold})
	return &bout{t, e, 1000}
}

// step lets an event happen and returns the effects that are left to the test.
func (b *bout) step(ev Event) (left []Effect) {
	b.Helper()
	ev.Now = b.now
	queue := b.e.Step(ev, nil)
	for i := 0; i < len(queue); i++ {
		switch f := queue[i]; f.Kind {
		case EffectInstall, EffectRevoke, EffectDowngrade, EffectMakeWritable, EffectMap:
			left = append(left, f)
			queue = b.e.Step(Event{Kind: EventCompleted, Now: b.now, Effect: f.Kind, Object: f.Object}, queue)
		case EffectReject:
			b.Fatalf("rejected: %s", f.Reason)
		default:
			left = append(left, f)
		}
	}
	if err := b.e.Check(); err != nil {
		b.Fatal(err)
	}
	return left
}

// gain has a thread of node 0 store to a page, which node 1 gives up if it has it.
func (b *bout) gain(page uint64) {
	b.Helper()
	b.now += 10
	id := PageObject(page)
	for _, f := range b.step(Event{Kind: EventFault, Object: id, Access: Write, Thread: 1, Client: 1, Offset: uint32(b.now)}) {
		if f.Kind == EffectSend && f.Message.Kind == Forward {
			b.step(Event{Kind: EventMessage, Object: id, Message: &Message{
				Kind: Grant, From: 1, Requester: 0, Object: id, Access: Write, Flags: FlagZero}})
		}
	}
	if b.e.Access(id) != Write {
		b.Fatalf("page %d was not gained", page)
	}
}

// want has node 1 ask for a page, when the ordinary hold is over, and says whether node 0 gives it up at once.
func (b *bout) want(page uint64, access Access) (given bool) {
	b.Helper()
	b.now += 100
	return gives(b.step(Event{Kind: EventMessage, Object: PageObject(page), Message: &Message{
		Kind: Request, From: 1, Requester: 1, Object: PageObject(page), Access: access}}), page)
}

func gives(effects []Effect, page uint64) bool {
	return slices.ContainsFunc(effects, func(f Effect) bool {
		return f.Kind == EffectSend && f.Message.Kind == Grant && f.Object == PageObject(page)
	})
}

// fight has both nodes write to as many pages as make node 0 take its turn with the next page that it gains.
func (b *bout) fight() {
	b.Helper()
	for page := range uint64(DefaultCrowd) {
		if b.e.Turn() != 0 {
			b.Fatalf("node 0 takes its turn after %d pages, want %d", page, DefaultCrowd)
		}
		b.gain(page)
		if !b.want(page, Write) {
			b.Fatalf("page %d is kept although nobody has fought yet", page)
		}
	}
}

// turn begins a turn, in which node 0 has gained pages 0 and 1.
func (b *bout) turn() {
	b.Helper()
	b.fight()
	b.gain(0)
	b.gain(1)
	if b.e.Turn() == 0 {
		b.Fatal("node 0 does not take its turn")
	}
}

func (b *bout) holdOver(page uint64) []Effect {
	b.Helper()
	return b.step(Event{Kind: EventHoldOver, Object: PageObject(page)})
}

// TestTurn: in a turn a node keeps from writers what it has gained in it, as long as the turn lasts, and takes no other for as long again.
func TestTurn(t *testing.T) {
	b := newBout(t)
	b.turn()
	begun := b.now
	if b.want(0, Write) {
		t.Fatal("a page was not kept in a turn")
	}
	for b.now+boutMaxHold/impatience < begun+boutMaxHold-100 {
		b.now += boutMaxHold / impatience
		if gives(b.holdOver(0), 0) {
			t.Fatalf("the page was given up %d µs after the turn began; a turn lasts %d", b.now-begun, boutMaxHold)
		}
	}
	if b.want(1, Write) {
		t.Fatal("the second page was not kept")
	}
	b.now = begun + boutMaxHold
	if left := b.holdOver(0); !gives(left, 0) || !gives(left, 1) {
		t.Fatalf("at the end of the turn not all is given up: %v", left)
	}
	b.gain(2)
	if b.e.Turn() != 0 {
		t.Fatal("a turn follows at once")
	}
	b.now += boutMaxHold
	b.gain(3)
	if b.e.Turn() != 2 {
		t.Fatalf("turn %d, want the second", b.e.Turn())
	}
}

// TestTurnKeepsOnlyWhatIsFoughtFor: readers get their copies in a turn, and so does everybody what was there before.
func TestTurnKeepsOnlyWhatIsFoughtFor(t *testing.T) {
	b := newBout(t)
	b.gain(40)
	b.turn()
	if !b.want(40, Write) {
		t.Error("a page that was gained before the turn is kept")
	}
	if !b.want(0, Read) {
		t.Error("a reader has to wait")
	}
}

// TestTurnEndsAtSynchronisation: who synchronises lets go of all, and is not in a fight any more.
func TestTurnEndsAtSynchronisation(t *testing.T) {
	lock := LockObject(1)
	for name, ev := range map[string]Event{
		"barrier": {Kind: EventArrive, Object: lock, Client: 1, Ticket: 1, Parties: 2},
		"lock":    {Kind: EventAcquire, Object: lock, Client: 1, Ticket: 1, Access: Write},
		"unlock":  {Kind: EventRelease, Object: lock, Client: 1, Access: Write},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBout(t)
			b.turn()
			if b.want(0, Write) || b.want(1, Write) {
				t.Fatal("a page was not kept in a turn")
			}
			if left := b.step(ev); !gives(left, 0) || !gives(left, 1) {
				t.Fatalf("not all is given up: %v", left)
			}
			if b.gain(2); b.e.Turn() != 0 {
				t.Fatal("a new turn begins although nobody has fought since")
			}
		})
	}
}

// TestTurnIsGivenUp: a node whose thread waits for longer than it has patience lets go of everything, and then has more patience.
func TestTurnIsGivenUp(t *testing.T) {
	b := newBout(t)
	b.turn()
	least := b.e.patience()
	if b.want(1, Write) {
		t.Fatal("a page was not kept in a turn")
	}
	id := PageObject(2) // of node 1, which does not answer
	b.step(Event{Kind: EventFault, Object: id, Access: Write, Thread: 1, Client: 1})
	b.now += least - 1
	if gives(b.holdOver(1), 1) {
		t.Fatal("given up too soon")
	}
	b.now++
	if !gives(b.holdOver(1), 1) {
		t.Fatal("the page is kept although a thread has waited for long")
	}
	if b.e.Turn() != 0 || b.e.patience() <= least {
		t.Fatalf("turn %d, patience %d after %d", b.e.Turn(), b.e.patience(), least)
	}
	b.step(Event{Kind: EventMessage, Object: id, Message: &Message{Kind: Grant, From: 1, Object: id, Access: Write, Flags: FlagZero}})
	if b.e.Turn() == 0 {
		t.Fatal("who gave up does not get its turn when it goes on")
	}
	for b.e.turn.gaveUp = 0; b.e.turn.gaveUp < 100; b.e.turn.gaveUp++ {
		if b.e.patience() > boutMaxHold {
			t.Fatalf("a patience of %d µs is longer than a turn", b.e.patience())
		}
	}
}
