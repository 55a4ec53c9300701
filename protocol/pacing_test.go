package protocol

import (
	"slices"
	"testing"
)

// bout is node 0 of two, home of all pages, and a peer that wants the same pages for writing.
// Operations of the page table are over at once.
type bout struct {
	*testing.T
	e   *Engine
	now Time
}

const boutMaxHold = 16_000

func newBout(t *testing.T) *bout {
	const pages = 512
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
		if f.Kind == EffectSend && f.Message.Kind == KindForward {
			b.step(Event{Kind: EventMessage, Object: id, Message: new(Grant{Access: Write, Contents: ZeroContents}.To(0, id).SentBy(1))})
		}
	}
	if b.e.Access(id) != Write {
		b.Fatalf("page %d was not gained", page)
	}
}

// want has node 1 ask for a page, when the ordinary hold is over, and reports whether node 0 gives
// it up at once.
func (b *bout) want(page uint64, access Access) (given bool) {
	b.Helper()
	b.now += 100
	return gives(b.step(Event{Kind: EventMessage, Object: PageObject(page), Message: new(Request{Access: access}.To(0, PageObject(page)).SentBy(1))}), page)
}

func gives(effects []Effect, page uint64) bool {
	return slices.ContainsFunc(effects, func(f Effect) bool {
		return f.Kind == EffectSend && f.Message.Kind == KindGrant && f.Object == PageObject(page)
	})
}

// fight has both nodes write to as many pages as make node 0 take a group lease with the next page
// that it gains.
func (b *bout) fight() {
	b.Helper()
	for page := range uint64(DefaultContentionThreshold) {
		if b.e.GroupLease() != 0 {
			b.Fatalf("node 0 takes a group lease after %d pages, want %d", page, DefaultContentionThreshold)
		}
		b.gain(page)
		if !b.want(page, Write) {
			b.Fatalf("page %d is kept although nothing is contended yet", page)
		}
	}
}

// lease begins a group lease, in which node 0 has gained pages 0 and 1, and so many others that it
// is worth its whole time.
func (b *bout) lease() {
	b.Helper()
	b.fight()
	b.gain(0)
	b.gain(1)
	crowd(b.gain)
	if b.e.GroupLease() == 0 {
		b.Fatal("node 0 does not take a group lease")
	}
}

// crowd are so many pages that to gain them makes a group lease worth its whole time.
func crowd(do func(page uint64)) {
	for page := range uint64(DefaultContentionThreshold) {
		do(220 + page)
	}
}

// many are so many pages that to gain them makes the longest lease worth its whole time.
func many(do func(page uint64)) {
	for page := range uint64(DefaultContentionThreshold << mostDoublings) {
		do(220 + page)
	}
}

func (b *bout) holdOver(page uint64) []Effect {
	b.Helper()
	return b.step(Event{Kind: EventHoldOver, Object: PageObject(page)})
}

// TestGroupLease: in a group lease a node keeps from writers what it has gained in it, as long as
// the lease lasts, and takes no other for as long again.
func TestGroupLease(t *testing.T) {
	b := newBout(t)
	b.lease()
	begun := b.now
	if b.want(0, Write) {
		t.Fatal("a page was not kept in a group lease")
	}
	for b.now+boutMaxHold/yieldTimes < begun+boutMaxHold-100 {
		b.now += boutMaxHold / yieldTimes
		if gives(b.holdOver(0), 0) {
			t.Fatalf("the page was given up %d µs after the lease began; a group lease lasts %d", b.now-begun, boutMaxHold)
		}
	}
	if b.want(1, Write) {
		t.Fatal("the second page was not kept")
	}
	b.now = begun + boutMaxHold
	if left := b.holdOver(0); !gives(left, 0) || !gives(left, 1) {
		t.Fatalf("at the end of the lease not all is given up: %v", left)
	}
	b.gain(2)
	if b.e.GroupLease() != 0 {
		t.Fatal("a group lease follows at once")
	}
	b.now += boutMaxHold
	b.gain(3)
	if b.e.GroupLease() != 2 {
		t.Fatalf("group lease %d, want the second", b.e.GroupLease())
	}
}

// TestGroupLeasesGrow: a lease that took its whole time is followed by one that is twice as long,
// up to a bound, until a program has synchronised.
func TestGroupLeasesGrow(t *testing.T) {
	b := newBout(t)
	b.fight()
	lasts := func() (length Time) {
		b.Helper()
		b.gain(0)
		if b.e.GroupLease() == 0 {
			b.Fatal("node 0 does not take a group lease")
		}
		begun := b.now
		many(b.gain)
		if b.want(0, Write) {
			b.Fatal("a page was not kept in a group lease")
		}
		for !gives(b.holdOver(0), 0) {
			if b.now += boutMaxHold / yieldTimes; b.now > begun+100*boutMaxHold {
				b.Fatal("a group lease has no end")
			}
		}
		length = (b.now - begun) / boutMaxHold
		many(func(page uint64) { b.want(page, Write) })
		b.now += length * boutMaxHold // it takes no other for as long again
		return length
	}
	for i, want := range []Time{1, 2, 4, 8, 16, 16} {
		if got := lasts(); got != want {
			t.Fatalf("lease %d lasts %d times as long as the first, want %d", i, got, want)
		}
	}
	b.step(Event{Kind: EventRelease, Object: LockObject(1), Client: 1, Access: Write})
	b.fight()
	if got := lasts(); got != 1 {
		t.Fatalf("after a program has synchronised the lease lasts %d times as long", got)
	}
}

// TestGroupLeaseHasToBeEarned: a lease that would last long goes on only as long as it gains pages,
// and the next one is no longer then.
func TestGroupLeaseHasToBeEarned(t *testing.T) {
	b := newBout(t)
	b.fight()
	for lease, x := range []struct{ gains, lasts Time }{{16, 1}, {8, 2}, {4, 4}, {2, 2}, {1, 1}, {3, 3}, {16, 8}, {16, 16}} {
		b.gain(0)
		if b.e.GroupLease() == 0 {
			t.Fatalf("node 0 does not take group lease %d", lease)
		}
		begun := b.now
		gained := uint64(x.gains * DefaultContentionThreshold)
		for page := range gained {
			b.gain(220 + page)
		}
		if b.want(0, Write) {
			t.Fatalf("lease %d keeps nothing", lease)
		}
		for !gives(b.holdOver(0), 0) {
			if b.now += boutMaxHold / yieldTimes; b.now > begun+100*boutMaxHold {
				t.Fatalf("lease %d has no end", lease)
			}
		}
		if lasted := (b.now - begun) / boutMaxHold; lasted != x.lasts {
			t.Errorf("lease %d gains %d times as many pages as it takes to begin, and lasts %d times as long as the first, want %d", lease, x.gains, lasted, x.lasts)
		}
		for page := range gained {
			b.want(220+page, Write)
		}
		b.now += 16 * boutMaxHold
	}
}

// TestShortGroupLeaseForFew: a node that gains few pages in its leases does not keep them for long,
// however often that happens, and rests longer after each: it may wait in a loop for what the other
// node is to store. A page that the other reads meanwhile, and that it gains again, is no other.
func TestShortGroupLeaseForFew(t *testing.T) {
	b := newBout(t)
	b.fight()
	for futile := 1; futile <= mostFutile+2; futile++ {
		b.gain(0)
		if b.e.GroupLease() == 0 {
			t.Fatalf("node 0 does not take group lease %d", futile)
		}
		for range DefaultContentionThreshold / futile {
			if !b.want(0, Read) {
				t.Fatal("a reader has to wait")
			}
			b.step(Event{Kind: EventFault, Object: PageObject(0), Access: Write, Thread: 1, Client: 1})
			b.step(Event{Kind: EventMessage, Object: PageObject(0), Message: new(InvalidateAck{}.To(0, PageObject(0)).SentBy(1))})
			if b.e.Access(PageObject(0)) != Write {
				t.Fatal("node 0 does not get its page again")
			}
		}
		begun := b.now
		for given := b.want(0, Write); !given; given = gives(b.holdOver(0), 0) {
			if b.now += boutMaxHold / yieldTimes; b.now > begun+boutMaxHold/2 {
				t.Fatalf("lease %d of two pages lasts longer than half of %d µs", futile, boutMaxHold)
			}
		}
		b.now += boutMaxHold/shareOfFew<<max(min(futile, mostFutile)-fewFutile, 0) - 20
		if b.gain(1); b.e.GroupLease() != 0 {
			t.Fatalf("node 0 does not rest after %d futile leases", futile)
		}
		if !b.want(1, Write) { // 100 µs later
			t.Fatal("without a lease a page is kept")
		}
	}
}

// TestNoGroupLeaseForFew: where a node loses few of the pages that it gains it takes no lease. In
// one it would ask for the pages around, and take from others what they write to.
func TestNoGroupLeaseForFew(t *testing.T) {
	b := newBout(t)
	for page := range uint64(2 * DefaultContentionThreshold) {
		b.gain(page)
		for kept := range uint64(lostShare) {
			b.gain(100 + page*lostShare + kept)
		}
		if !b.want(page, Write) {
			t.Fatalf("page %d is kept", page)
		}
	}
	b.gain(0)
	if b.e.GroupLease() != 0 {
		t.Fatal("node 0 takes a group lease although it keeps most of what it gains")
	}
	for page := range uint64(2 * DefaultContentionThreshold) {
		b.want(100+page, Write)
	}
	b.gain(1)
	if b.e.GroupLease() == 0 {
		t.Fatal("node 0 takes no group lease although it loses a third of what it gains")
	}
}

// TestGroupLeaseKeepsOnlyWhatIsContended: readers get their copies in a group lease, and so does
// everybody what was there before.
func TestGroupLeaseKeepsOnlyWhatIsContended(t *testing.T) {
	b := newBout(t)
	b.gain(40)
	b.lease()
	if !b.want(40, Write) {
		t.Error("a page that was gained before the lease is kept")
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
			b.lease()
			if b.want(0, Write) || b.want(1, Write) {
				t.Fatal("a page was not kept in a group lease")
			}
			if left := b.step(ev); !gives(left, 0) || !gives(left, 1) {
				t.Fatalf("not all is given up: %v", left)
			}
			if b.gain(2); b.e.GroupLease() != 0 {
				t.Fatal("a new group lease begins although nothing is contended since")
			}
		})
	}
}

// TestGroupLeaseIsGivenUp: a node whose thread waits for longer than the yield time lets go of
// everything, and then waits longer.
func TestGroupLeaseIsGivenUp(t *testing.T) {
	b := newBout(t)
	b.lease()
	least := b.e.pace.yieldTime()
	if b.want(1, Write) {
		t.Fatal("a page was not kept in a group lease")
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
	if b.e.GroupLease() != 0 || b.e.pace.yieldTime() <= least {
		t.Fatalf("group lease %d, yield time %d after %d", b.e.GroupLease(), b.e.pace.yieldTime(), least)
	}
	b.step(Event{Kind: EventMessage, Object: id, Message: new(Grant{Access: Write, Contents: ZeroContents}.To(0, id).SentBy(1))})
	if b.e.GroupLease() == 0 {
		t.Fatal("who gave up does not get a group lease when it goes on")
	}
	for b.e.pace.gaveUp = 0; b.e.pace.gaveUp < 100; b.e.pace.gaveUp++ {
		if b.e.pace.yieldTime() > boutMaxHold {
			t.Fatalf("a yield time of %d µs is longer than a group lease", b.e.pace.yieldTime())
		}
	}
}

// TestGroupLeaseForAGuess: a page that nobody waited for when it was asked for begins a group lease
// if a thread waits for it when it comes, and not otherwise. The thread waits from when it came
// first, however often its fault is reported.
func TestGroupLeaseForAGuess(t *testing.T) {
	const page = 3
	for _, waits := range []bool{false, true} {
		b := newBout(t)
		b.fight()
		fault := func(c ClientID) {
			b.step(Event{Kind: EventFault, Object: PageObject(page), Access: Write, Thread: uint32(c), Client: c})
		}
		fault(0)
		if waits {
			b.now += 10
			fault(1)
			since := b.now
			b.now += 10
			fault(1)
			if p := b.e.peek(b.e.objects.find(PageObject(page))); p.demandedAt != since {
				t.Errorf("a thread that waits since %d is said to since %d", since, p.demandedAt)
			}
		}
		b.step(Event{Kind: EventMessage, Object: PageObject(page), Message: new(Grant{Access: Write, Contents: ZeroContents}.To(0, PageObject(page)).SentBy(1))})
		if begun := b.e.GroupLease() != 0; begun != waits {
			t.Errorf("a group lease has begun: %v, and a thread waits: %v", begun, waits)
		}
	}
}

// TestGroupLeaseEndsWithTheEpoch: what others asked for before nodes were lost or came does not
// count any more, so nothing is kept from them.
func TestGroupLeaseEndsWithTheEpoch(t *testing.T) {
	b := newBout(t)
	b.fight()
	if b.gain(200); b.e.GroupLease() == 0 {
		t.Fatal("there is no group lease")
	}
	if b.step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}); b.e.GroupLease() != 0 {
		t.Error("there is one in the new epoch")
	}
}

// TestGroupLeaseIsGivenUpForTwo: threads that wait for two pages and whose faults are reported in
// turn have the node yield as soon as one that waits alone.
func TestGroupLeaseIsGivenUpForTwo(t *testing.T) {
	b := newBout(t)
	b.lease()
	begun, least := b.now, b.e.pace.yieldTime()
	if b.want(1, Write) {
		t.Fatal("a page was not kept in a group lease")
	}
	const between = 100
	for thread := uint32(0); !gives(b.holdOver(1), 1); thread = 1 - thread {
		b.step(Event{Kind: EventFault, Object: PageObject(2 + uint64(thread)), Access: Write, Thread: 1 + thread, Client: 1})
		if b.now += between; b.now-begun > 2*least {
			t.Fatalf("the page is kept for %d µs, and the yield time is %d", b.now-begun, least)
		}
	}
}

// TestDemand: a thread waits for a page from its first fault until it has the access that it needs,
// while less is on its way, too.
func TestDemand(t *testing.T) {
	const page = 3
	id := PageObject(page)
	b := newBout(t)
	b.fight()
	fault := func(access Access, c ClientID) {
		b.now += 10
		b.step(Event{Kind: EventFault, Object: id, Access: access, Thread: uint32(c), Client: c})
	}
	demands := func(what string, access Access, since Time) {
		t.Helper()
		p := b.e.peek(b.e.objects.find(id))
		switch {
		case access == None && (p == nil || p.demand == None):
		case p == nil || p.demand != access || p.demandedAt != since:
			t.Errorf("%s: %+v, want a demand for %v since %d", what, p, access, since)
		}
	}
	grant := func(access Access) {
		t.Helper()
		b.step(Event{Kind: EventMessage, Object: id, Message: new(Grant{Access: access, Contents: ZeroContents}.To(0, id).SentBy(1))})
	}
	fault(Read, 0)
	demands("a guess", None, 0)
	fault(Write, 1)
	since := b.now
	demands("a store to what was guessed to be read", Write, since)
	fault(Write, 1)
	demands("again", Write, since)
	grant(Read)
	demands("the copy for reading has come", Write, since)
	if b.e.GroupLease() != 0 {
		t.Error("a copy for reading begins a group lease")
	}
	b.step(Event{Kind: EventMessage, Object: id, Message: new(InvalidateAck{}.To(0, id).SentBy(1))})
	demands("the page has come", None, 0)
}
