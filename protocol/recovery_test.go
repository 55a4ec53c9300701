package protocol

import (
	"slices"
	"testing"
)

// take has a program want a lock, which it repairs if need be, and returns the answer: nil if there
// is none yet.
func (f *few) take(n NodeID, lock ObjectID, access Access, ticket Ticket) *Effect {
	f.t.Helper()
	var got *Effect
	f.completed = func(_ NodeID, x Effect) {
		if x.Ticket == ticket {
			got = &x
		}
	}
	f.step(n, Event{Kind: EventAcquire, Client: 1, Ticket: ticket, Object: lock, Access: access, Repair: true})
	f.settle()
	return got
}

// giveBack has a program give a lock back.
func (f *few) giveBack(n NodeID, lock ObjectID, access Access) {
	f.t.Helper()
	f.step(n, Event{Kind: EventRelease, Client: 1, Object: lock, Access: access})
	f.settle()
}

// TestLockOnItsWayToALostNode: a lock was on its way to a node that is lost, and perhaps with the
// node that had it. Whoever has it next is told, also if the home has moved meanwhile.
func TestLockOnItsWayToALostNode(t *testing.T) {
	lock := LockObject(6) // at home on node 0
	for name, homes := range map[string][]NodeID{"the home stays": nil, "the home leaves": {1, 3, 5}} {
		t.Run(name, func(t *testing.T) {
			f := newFew(t, Config{Nodes: 6, Pages: 8, HomeStripe: 1})
			for i, n := range []NodeID{1, 3} {
				f.take(n, lock, Read, Ticket(i+1))
				f.giveBack(n, lock, Read)
			}
			f.withhold = func(m *Message) bool { return m.Kind == KindDone }
			if got := f.take(4, lock, Write, 3); got == nil || len(f.withheld) != 1 {
				t.Fatalf("node 4 gets %+v, and %d messages are withheld", got, len(f.withheld))
			}
			f.withheld = nil
			f.enter(1, []NodeID{0, 1, 3, 5}, homes)
			if got := f.take(5, lock, Write, 4); got == nil || got.Status != StatusOwnerDied || got.Rank != LostRank(4) {
				t.Errorf("after node 4, which had the lock, the next gets %+v", got)
			}
		})
		t.Run(name+", who had it is lost too", func(t *testing.T) {
			if homes != nil {
				homes = []NodeID{3, 5}
			}
			f := newFew(t, Config{Nodes: 6, Pages: 8, HomeStripe: 1})
			f.take(1, lock, Write, 1)
			if got := f.take(4, lock, Read, 2); got != nil {
				t.Fatalf("beside who holds it, node 4 gets %+v", got)
			}
			f.enter(1, []NodeID{0, 3, 5}, homes)
			if got := f.take(5, lock, Write, 3); got == nil || got.Status != StatusOwnerDied || got.Rank != LostRank(1) && got.Rank != LostRank(4) {
				t.Errorf("after node 1, which held the lock, and node 4, which waited, the next gets %+v", got)
			}
		})
	}
}

// TestMarkGoesWithACopy: a program has died holding a lock, and nobody was told. A reader's node
// passes the mark on to a writer, with its acknowledgement, which comes in a recovery: the node
// that was to send the lock is lost.
func TestMarkGoesWithACopy(t *testing.T) {
	lock := LockObject(7) // at home on node 3
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	f.take(0, lock, Write, 1)
	f.step(0, Event{Kind: EventClientGone, Client: 1, Rank: 9})
	f.settle()
	f.withhold = func(m *Message) bool { return m.Kind == KindGrant }
	f.take(1, lock, Read, 2)
	f.step(1, Event{Kind: EventCancel, Client: 1, Ticket: 2})
	f.release(0)
	f.withhold = func(m *Message) bool { return m.To == 2 && (m.Kind == KindGrant || m.Kind == KindInvalidateAck) }
	f.take(2, lock, Write, 3)
	ack := slices.IndexFunc(f.withheld, func(m Message) bool { return m.Kind == KindInvalidateAck && m.AsInvalidateAck().Died != 0 })
	if ack < 0 {
		t.Fatalf("no mark is on its way: %+v", f.withheld)
	}
	f.withhold = func(m *Message) bool { return m.From == 0 } // it is lost
	var got *Effect
	f.completed = func(_ NodeID, x Effect) { got = &x }
	members := []NodeID{1, 2, 3}
	f.step(2, Event{Kind: EventEpoch, Epoch: 1, Members: members})
	f.release(ack)
	for _, n := range []NodeID{1, 3} {
		f.step(n, Event{Kind: EventEpoch, Epoch: 1, Members: members})
	}
	f.settle()
	if got == nil || got.Status != StatusOwnerDied || got.Rank != 9 {
		t.Errorf("after a program that has died with the lock, the next gets %+v", got)
	}
}

// TestMarkThatCameBeforeTheLock: the same, but the acknowledgement comes before the recovery. The
// mark is where the lock is not, and not lost with the node that was to send that.
func TestMarkThatCameBeforeTheLock(t *testing.T) {
	lock := LockObject(7) // at home on node 3
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	f.take(0, lock, Write, 1)
	f.step(0, Event{Kind: EventClientGone, Client: 1, Rank: 9})
	f.settle()
	if got := f.take(1, lock, Read, 2); got == nil || got.Status != StatusUnrepaired {
		t.Fatalf("who does not repair gets %+v", got)
	}
	f.withhold = func(m *Message) bool { return m.From == 0 && m.To == 2 && m.Kind == KindGrant }
	if got := f.take(2, lock, Write, 3); got != nil || len(f.withheld) != 1 {
		t.Fatalf("node 2 gets %+v, and %d messages are withheld", got, len(f.withheld))
	}
	if l := f.engines[2].locks.peekLock(lock); l == nil || l.died != 10 {
		t.Fatalf("node 2 knows of the lock %+v", l)
	}
	var got *Effect
	f.completed = func(_ NodeID, x Effect) { got = &x }
	f.withheld = nil
	f.enter(1, []NodeID{1, 2, 3}, nil)
	if got == nil || got.Status != StatusOwnerDied || got.Rank != 9 {
		t.Errorf("after a program that has died with the lock, the next gets %+v", got)
	}
}

// TestMarkMovesWithTheHome: that a lock was lost with a node is told once, also if its home moves
// before anybody is told.
func TestMarkMovesWithTheHome(t *testing.T) {
	lock := LockObject(5) // at home on node 2, which comes last
	f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	f.enter(1, []NodeID{0, 1}, nil)
	home := f.engines[0].home(lock)
	f.take(1-home, lock, Write, 1)
	f.enter(2, []NodeID{home}, nil)
	f.engines[2] = New(Config{Self: 2, Nodes: 3, Pages: 8, HomeStripe: 1, Outside: true})
	f.enter(3, []NodeID{home, 2}, nil)
	if got := f.take(2, lock, Write, 2); got == nil || got.Status != StatusOwnerDied || got.Rank != LostRank(1-home) {
		t.Errorf("the first gets %+v", got)
	}
	f.giveBack(2, lock, Write)
	if got := f.take(home, lock, Write, 3); got == nil || got.Status != StatusOK {
		t.Errorf("the second gets %+v", got)
	}
}

// TestLostPageMovesWithItsHome: a page is lost with a node, and its home leaves by the same view.
// The new home knows with which node.
func TestLostPageMovesWithItsHome(t *testing.T) {
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	f.fault(1, Write, 0)
	f.settle()
	f.enter(1, []NodeID{0, 2, 3}, []NodeID{2, 3})
	home := f.engines[2].Home(PageObject(0))
	if with, lost := f.engines[home].Lost(PageObject(0)); !lost || with != 1 {
		t.Errorf("the new home, node %d, takes the page for lost: %v, with node %d", home, lost, with)
	}
}

// TestLockHasNoContents: a grant of a lock with contents is rejected, also in a recovery.
func TestLockHasNoContents(t *testing.T) {
	for _, recovers := range []bool{false, true} {
		f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1})
		lock := LockObject(4) // at home on node 1
		f.withhold = func(m *Message) bool { return m.Kind == KindRequest }
		f.take(0, lock, Write, 1)
		if recovers {
			f.step(0, Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}})
		}
		grant := Grant{Access: Write, Contents: PageContents}.To(0, lock).SentBy(1)
		if !refuses(f.engines[0], grant) {
			t.Errorf("in a recovery %v: a lock with contents is not rejected", recovers)
		}
		if grant.contents = ZeroContents; refuses(f.engines[0], grant) {
			t.Errorf("in a recovery %v: the lock is rejected", recovers)
		}
	}
}

// TestMarkStaysUntilARepair: a lock whose holder died goes to nobody but who repairs it, on
// whichever node, and stays marked if the repair fails.
func TestMarkStaysUntilARepair(t *testing.T) {
	lock := LockObject(7) // at home on node 3
	f := newFew(t, Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	f.take(0, lock, Write, 1)
	f.step(0, Event{Kind: EventClientGone, Client: 1, Rank: 9})
	f.settle()
	ticket := Ticket(1)
	refused := func(when string) {
		t.Helper()
		for _, n := range []NodeID{1, 2, 0} {
			// a reader can't repair
			for _, ev := range []Event{{Access: Read}, {Access: Write}, {Access: Read, Repair: true}} {
				var got *Effect
				f.completed = func(_ NodeID, x Effect) { got = &x }
				ticket++
				ev.Kind, ev.Client, ev.Ticket, ev.Object = EventAcquire, 1, ticket, lock
				f.step(n, ev)
				f.settle()
				if got == nil || got.Ticket != ticket || got.Status != StatusUnrepaired || got.Rank != 9 {
					t.Fatalf("%s, node %d wants it for %v (repair: %v) and gets %+v", when, n, ev.Access, ev.Repair, got)
				}
			}
		}
	}
	refused("after the death")
	ticket++
	if got := f.take(1, lock, Write, ticket); got == nil || got.Status != StatusOwnerDied || got.Rank != 9 {
		t.Fatalf("who repairs gets %+v", got)
	}
	f.step(1, Event{Kind: EventRelease, Client: 1, Object: lock, Access: Write, Rank: 9, Unrepaired: true})
	f.settle()
	refused("after a repair that failed")
	ticket++
	if got := f.take(2, lock, Write, ticket); got == nil || got.Status != StatusOwnerDied || got.Rank != 9 {
		t.Fatalf("who repairs next gets %+v", got)
	}
	f.giveBack(2, lock, Write)
	for _, n := range []NodeID{3, 0, 1} {
		ticket++
		if got := f.take(n, lock, Read, ticket); got == nil || got.Status != StatusOK {
			t.Errorf("after the repair, node %d gets %+v", n, got)
		}
	}
}
