package protocol

import (
	"slices"
	"testing"
)

// few is a cluster of engines whose page tables answer at once and whose messages arrive in order,
// but for those that are withheld.
type few struct {
	t        *testing.T
	engines  []*Engine
	queue    []Message
	withhold func(*Message) bool
	withheld []Message
	handed   []uint32 // by node: the last epoch of which all was handed over
	// completed hears of answers to programs' calls, held of holds, and revoked of pages that go.
	completed, held, revoked func(NodeID, Effect)
	now                      Time
	anew                     bool // lost pages begin anew
	holds                    []hold
}

func newFew(t *testing.T, c Config) *few {
	f := &few{t: t, withhold: func(*Message) bool { return false }, handed: make([]uint32, c.Nodes)}
	nobody := func(NodeID, Effect) {}
	f.completed, f.held, f.revoked = nobody, nobody, nobody
	for n := range c.Nodes {
		c.Self = NodeID(n)
		f.engines = append(f.engines, New(c))
	}
	return f
}

// step lets an event happen, and what follows from it at its node.
func (f *few) step(n NodeID, ev Event) {
	f.t.Helper()
	ev.Now = f.now
	for _, x := range f.engines[n].Step(ev, nil) {
		if x.Kind == EffectRevoke {
			f.revoked(n, x)
		}
		switch x.Kind {
		case EffectHold:
			f.held(n, x)
			f.holds = append(f.holds, hold{n, x.Object})
		case EffectSend:
			f.queue = append(f.queue, x.Message)
		case EffectInstall, EffectMap, EffectMakeWritable, EffectDowngrade, EffectRevoke, EffectLost:
			f.step(n, Event{Kind: EventCompleted, Effect: x.Kind, Object: x.Object, Access: x.Access, Anew: x.Kind == EffectLost && f.anew})
		case EffectFree:
			f.step(n, Event{Kind: EventFreed, Object: x.Object})
		case EffectComplete:
			f.completed(n, x)
		case EffectHandedOver:
			f.handed[n] = uint32(x.Count)
		case EffectReject:
			f.t.Fatalf("node %d rejects %+v: %s", n, x.Message, x.Reason)
		}
	}
	if err := f.engines[n].Check(); err != nil {
		f.t.Fatal(err)
	}
}

// hold is one that a node has ordered.
type hold struct {
	node   NodeID
	object ObjectID
}

// endHolds has all holds be over, and what follows happen.
func (f *few) endHolds() {
	f.t.Helper()
	for len(f.holds) > 0 {
		h := f.holds[0]
		f.holds = f.holds[1:]
		f.step(h.node, Event{Kind: EventHoldOver, Object: h.object})
		f.settle()
	}
}

// settle delivers all that is not withheld.
func (f *few) settle() {
	f.t.Helper()
	for len(f.queue) > 0 {
		m := f.queue[0]
		f.queue = f.queue[1:]
		if f.withhold(&m) {
			f.withheld = append(f.withheld, m)
			continue
		}
		f.step(m.To, Event{Kind: EventMessage, Object: m.Object, Message: &m})
	}
}

// release delivers one of the messages that are withheld, and what follows.
func (f *few) release(i int) {
	f.t.Helper()
	m := f.withheld[i]
	f.withheld = slices.Delete(f.withheld, i, i+1)
	f.step(m.To, Event{Kind: EventMessage, Object: m.Object, Message: &m})
	f.settle()
}

func (f *few) fault(n NodeID, a Access, page uint64) {
	f.t.Helper()
	f.step(n, Event{Kind: EventFault, Client: 1, Thread: 1, Access: a, Object: PageObject(page)})
}

func (f *few) enter(epoch uint32, members, homes []NodeID) {
	f.t.Helper()
	for _, n := range members {
		f.step(n, Event{Kind: EventEpoch, Epoch: epoch, Members: members, Homes: homes})
	}
	f.settle()
	f.agree(members)
}

// comeBack loses a node in the epoch after the given one, and lets it in again in the next.
func (f *few) comeBack(cfg Config, lost NodeID, epoch uint32) {
	f.t.Helper()
	var all, rest []NodeID
	for i := range f.engines {
		n := NodeID(i)
		if all = append(all, n); n != lost {
			rest = append(rest, n)
		}
	}
	f.enter(epoch+1, rest, rest)
	cfg.Self, cfg.Outside = lost, true
	f.engines[lost] = New(cfg)
	f.enter(epoch+2, all, all)
}

// agree looks whether members that have recovered agree on who keeps backups.
func (f *few) agree(members []NodeID) {
	f.t.Helper()
	var want []NodeID
	for _, n := range members {
		if _, recovered := f.engines[n].Epoch(); !recovered {
			continue
		}
		got := []NodeID{}
		for p := range f.engines[n].cfg.Pages {
			got = append(got, f.engines[n].Keepers(PageObject(p), 1)...)
		}
		if want != nil && !slices.Equal(got, want) {
			f.t.Fatalf("node %d has backups kept by %v, and another by %v", n, got, want)
		}
		want = got
	}
}

// TestFetchesAreBounded: a home fetches no more than maxFetches pages at once of those that only
// leaving members have, and says that all is handed over when the last has come. Before, a page
// that two of them share counted as fetched when it was asked for, so that all were asked for in
// one step, and none was waited for.
func TestFetchesAreBounded(t *testing.T) {
	const pages = 3 * maxFetches
	f := newFew(t, Config{Nodes: 4, Pages: 4 * pages, HomeStripe: 1})
	for i := range uint64(pages) {
		f.fault(1, Write, 4*i+2)
		f.settle()
		f.fault(3, Read, 4*i+2)
		f.settle()
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindGrant && m.From == 1 }
	f.enter(1, []NodeID{0, 1, 2, 3}, []NodeID{0, 2})
	for left := pages; left > 0; left-- {
		if len(f.withheld) != min(left, maxFetches) || f.handed[2] != 0 {
			t.Fatalf("%d pages are to come, %d were asked for and are on their way; want at most %d; handed over in epoch %d", left, len(f.withheld), maxFetches, f.handed[2])
		}
		f.release(0)
	}
	if f.handed[2] != 1 {
		t.Error("all pages are here, and are not handed over")
	}
}

// TestNothingIsHandedOverThatIsOnItsWay: a page that a leaving member sends to one that stays is
// lost if the sender goes before it arrives. So its home waits until somebody who stays says that
// it has it, and then lets no leaving member send it any more.
func TestNothingIsHandedOverThatIsOnItsWay(t *testing.T) {
	for _, c := range []struct {
		access Access
		last   bool // what was sent last arrives first
	}{{Read, false}, {Read, true}, {Write, false}, {Write, true}} {
		f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
		f.fault(1, Write, 2)
		f.settle()
		for _, n := range []NodeID{1, 3} { // exclusive, and then shared by both that leave
			f.fault(n, Read, 2)
			f.settle()
		}
		f.withhold = func(m *Message) bool { return m.Kind == KindForward || m.Kind == KindDone }
		f.enter(1, []NodeID{0, 1, 2, 3}, []NodeID{0, 2})
		f.fault(0, c.access, 2)
		f.settle()
		for len(f.withheld) > 0 {
			if f.handed[2] != 0 && f.engines[0].Access(PageObject(2)) == None && f.engines[2].Access(PageObject(2)) == None {
				t.Fatalf("%+v: all is handed over, nobody who stays has the page, and %+v is on its way", c, f.withheld)
			}
			if c.last {
				f.release(len(f.withheld) - 1)
			} else {
				f.release(0)
			}
		}
		if f.handed[2] != 1 {
			t.Fatalf("%+v: all has come, and is not handed over", c)
		}
		f.withhold = func(m *Message) bool { return m.Kind == KindGrant && (m.From == 1 || m.From == 3) }
		for _, n := range []NodeID{0, 2, 0} {
			f.fault(n, Write, 2)
			f.settle()
		}
		if len(f.withheld) > 0 || f.engines[0].Access(PageObject(2)) != Write {
			t.Errorf("%+v: a leaving member supplies %+v after all was handed over", c, f.withheld)
		}
	}
}

// TestOnlyWhatNobodyElseHasIsFetched: a page that a member shares which stays is handed over
// already, whoever had it first.
func TestOnlyWhatNobodyElseHasIsFetched(t *testing.T) {
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	for _, n := range []NodeID{0, 1, 3} {
		f.fault(n, Read, 2)
		f.settle()
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindForward }
	f.enter(1, []NodeID{0, 1, 2, 3}, []NodeID{2, 3})
	if len(f.withheld) > 0 || f.handed[2] != 1 {
		t.Errorf("handed over in epoch %d, and on its way is %+v", f.handed[2], f.withheld)
	}
}

// TestWhoLeavesAsksForNothing: what a program had wanted that has ended meanwhile, by a prefetch
// say, would go with the node.
func TestWhoLeavesAsksForNothing(t *testing.T) {
	asked := func(m *Message) bool { return m.Kind == KindRequest && m.From == 1 }
	f := newFew(t, Config{Nodes: 3, Pages: 6, HomeStripe: 1})
	f.fault(2, Write, 2)
	f.withhold = asked
	f.fault(1, Write, 2)
	f.settle()
	if len(f.withheld) != 1 {
		t.Fatalf("%+v is asked for", f.withheld)
	}
	f.withheld = nil // it is in no order behind the marks, and is dropped
	f.enter(1, []NodeID{0, 1, 2}, []NodeID{0, 2})
	if len(f.withheld) != 0 || f.handed[2] != 1 {
		t.Errorf("%+v is asked for by who leaves; handed over in epoch %d", f.withheld, f.handed[2])
	}
	// of an older release
	m := Request{Access: Write}.To(2, PageObject(2)).SentBy(1)
	f.step(2, Event{Kind: EventMessage, Object: m.Object, Message: &m})
	f.settle()
	if entry, ok := f.engines[2].Entry(PageObject(2)); !ok || !slices.Equal(entry.Sharers, []NodeID{2}) {
		t.Errorf("who leaves has got the page: %+v", entry)
	}
}

// TestGroupMatesAreNotTold: a coarse copyset names all nodes of a group. Who is none of the members
// has nothing to give up, and would never say so; before, a writer waited for that.
func TestGroupMatesAreNotTold(t *testing.T) {
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1, ExactNodes: 1, Pointers: 1, GroupNodes: 2})
	f.enter(1, []NodeID{0, 2, 3}, nil) // node 1 is lost
	for _, n := range []NodeID{0, 2} {
		f.fault(n, Read, 3)
		f.settle()
	}
	f.withhold = func(m *Message) bool { return m.To == 1 }
	f.fault(2, Write, 3)
	f.settle()
	if len(f.withheld) > 0 || f.engines[2].Access(PageObject(3)) != Write {
		t.Errorf("the writer has %v, and to the node that is lost goes %+v", f.engines[2].Access(PageObject(3)), f.withheld)
	}
}

// TestGroupMatesHaveNothing: two nodes leave together, and alone have a page. Before, it counted as
// handed over, because a coarse copyset names a node of their group that stays, and has no copy.
func TestGroupMatesHaveNothing(t *testing.T) {
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1, ExactNodes: 1, Pointers: 1, GroupNodes: 4})
	f.fault(0, Write, 3)
	f.settle()
	f.fault(1, Read, 3)
	f.settle()
	f.enter(1, []NodeID{0, 1, 2, 3}, []NodeID{2, 3})
	if f.handed[3] != 1 || f.engines[3].Access(PageObject(3)) == None {
		t.Errorf("all is handed over in epoch %d, and the home has %v", f.handed[3], f.engines[3].Access(PageObject(3)))
	}
}
