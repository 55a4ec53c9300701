package node

import (
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/transport"
	"dsmd/transport/sim"
)

// errands is a network whose node does, between two frames, what the test asks it to.
type errands struct {
	transport.Transport
	todo chan func()
}

func (e *errands) Poll(h transport.Handler, most int) (int, error) {
	select {
	case do := <-e.todo:
		do()
	default:
	}
	return e.Transport.Poll(h, most)
}

// Arm keeps the reactor from sleeping while there is an errand: it need not Poll when it is woken
// for something else.
func (e *errands) Arm() bool { return len(e.todo) > 0 || e.Transport.Arm() }

// busy is a cluster of one node more than can be lost, of which node 1 does errands.
func busy(t *testing.T) (c *cluster, errand func(func(n *Node))) {
	e := &errands{todo: make(chan func(), 1)}
	s := surviving(2, sim.Options{})
	s.ranks = 8
	s.wrapOne(1, func(peers transport.Transport) transport.Transport {
		e.Transport = peers
		return e
	})
	c = start(t, s)
	return c, func(do func(*Node)) {
		t.Helper()
		n, done := c.members[1].node, make(chan struct{})
		e.todo <- func() { do(n); close(done) }
		n.news.wake.Signal()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("the node does not get to its errand")
		}
	}
}

// wantLock asks for a lock and waits until the daemon knows.
func (p *prog) wantLock(lock uint64, a attach.Access) (uint64, chan attach.Reply) {
	p.Helper()
	ticket, answer := p.call(attach.Call{Op: attach.OpAcquire, Object: lock, Access: a})
	p.sync()
	return ticket, answer
}

// wantNothing fails if one of these calls was answered.
func (p *prog) wantNothing(what string, answers ...chan attach.Reply) {
	p.Helper()
	p.sync()
	for i, answer := range answers {
		select {
		case r := <-answer:
			p.Fatalf("%s: call %d is answered with %v", what, i, r.Status)
		default:
		}
	}
}

// granted fails unless a lock is granted.
func (p *prog) granted(answer chan attach.Reply) {
	p.Helper()
	if r := p.answer(answer); r.Status != attach.StatusOK {
		p.Fatalf("the lock is granted with %v", r.Status)
	}
}

// TestNoLockWithoutQuorum: a node that is cut off from all others grants no lock any more: not one
// that is published, nor one that a program of it gives back, be that to another program of it, to
// another goroutine of the same, or to readers.
func TestNoLockWithoutQuorum(t *testing.T) {
	s := surviving(3, sim.Options{})
	s.ranks = 9
	c := start(t, s)
	a, b := c.members[2].join(), c.members[2].join()
	const free, held, handed, shared, place = 1, 2, 3, 4, 1 + controlpage.Slots
	a.had(free)
	a.had(held)
	a.locks(held)
	for _, lock := range []uint64{handed, shared} {
		_, answer := a.wantLock(lock, attach.Write)
		a.granted(answer)
	}
	_, next := b.wantLock(handed, attach.Write)
	_, reader := b.wantLock(shared, attach.Read)
	ticket, own := a.wantLock(shared, attach.Read)

	c.sever(2)
	m := c.members[2]
	eventually(t, "the node that is cut off knows it", func() bool { return m.counter("no_quorum") == 1 })
	if a.page.Take(free) {
		t.Error("a lock that was published before is taken by its word")
	}
	a.unlocks(held, controlpage.Recalled)
	a.release(handed, attach.Write)
	a.release(shared, attach.Write)
	_, again := a.wantLock(free, attach.Write)
	_, other := a.wantLock(place, attach.Write)
	b.wantNothing("another program", next, reader)
	a.wantNothing("the same program", own, again, other)
	for lock := uint64(free); lock <= shared; lock++ {
		if a.page.Take(lock) {
			t.Errorf("lock %d is published", lock)
		}
	}
	a.cancel(ticket)
	if r := a.answer(own); r.Status != attach.StatusCanceled {
		t.Errorf("a wait for a lock that the daemon has and does not grant is cancelled with %v", r.Status)
	}
	b.die()
	a.wantNothing("the other program has died", again, other)
	c.without(2)
}

// TestQuorumReturns: what a node did not grant without a quorum it grants when there is one again,
// once each, and to nobody who has cancelled, or has gone. Then locks are published again.
func TestQuorumReturns(t *testing.T) {
	c, errand := busy(t)
	a, b, gone := c.members[1].join(), c.members[1].join(), c.members[1].join()
	const first, second, third, free = 1, 2, 3, 4
	for lock := uint64(first); lock <= third; lock++ {
		_, answer := a.wantLock(lock, attach.Write)
		a.granted(answer)
	}
	a.had(free)
	_, wanted := b.wantLock(first, attach.Write)
	ticket, cancelled := b.wantLock(second, attach.Write)
	_, behind := a.wantLock(second, attach.Write)
	gone.wantLock(third, attach.Write)
	_, last := b.wantLock(third, attach.Write)

	errand(func(n *Node) { n.members.block() })
	for lock := uint64(first); lock <= third; lock++ {
		a.release(lock, attach.Write)
	}
	_, late := b.wantLock(free, attach.Write)
	a.wantNothing("the holder", behind)
	b.wantNothing("the other", wanted, cancelled, last, late)
	b.cancel(ticket)
	if r := b.answer(cancelled); r.Status != attach.StatusCanceled {
		t.Errorf("a wait is cancelled with %v", r.Status)
	}
	gone.die()
	b.wantNothing("others have cancelled or died", wanted, last, late)
	a.wantNothing("others have cancelled or died", behind)

	errand(func(n *Node) { n.members.unblock() })
	b.granted(wanted)
	a.granted(behind)
	b.granted(last)
	b.granted(late)
	for _, lock := range []uint64{first, third, free} {
		b.release(lock, attach.Write)
	}
	a.release(second, attach.Write)
	a.sync()
	b.sync()
	a.locks(second)
	b.locks(first)
	a.unlocks(second, controlpage.Freed)
	b.unlocks(first, controlpage.Freed)
	c.quiet()
}

// TestMarkOfWhoWasNotTold: a lock that goes back from a program which was not told that it had it,
// because there was no quorum, still says that its holder has died.
func TestMarkOfWhoWasNotTold(t *testing.T) {
	for name, ends := range map[string]func(p *prog, ticket uint64, answer chan attach.Reply){
		"cancels": func(p *prog, ticket uint64, answer chan attach.Reply) {
			p.cancel(ticket)
			if r := p.answer(answer); r.Status != attach.StatusCanceled {
				p.Fatalf("a wait is cancelled with %v", r.Status)
			}
		},
		"dies": func(p *prog, _ uint64, _ chan attach.Reply) { p.die() },
	} {
		for _, access := range []attach.Access{attach.Read, attach.Write} {
			t.Run(name, func(t *testing.T) {
				const lock = 1
				c, errand := busy(t)
				m := c.members[1]
				holder, waiter, next := m.join(), m.join(), m.join()
				_, held := holder.wantLock(lock, attach.Write)
				holder.granted(held)
				op := attach.OpRepair
				if access == attach.Read {
					op = attach.OpAcquire
				}
				ticket, answer := waiter.call(attach.Call{Op: op, Object: lock, Access: access})
				waiter.sync()

				errand(func(n *Node) { n.members.block() })
				holder.die()
				eventually(t, "the holder is gone", func() bool { return m.counter("programs") == 2 })
				if access == attach.Read { // it gets nothing, with a quorum or without
					if r := waiter.answer(answer); r.Status != attach.StatusUnrepaired || r.Rank != holder.welcome.Rank {
						t.Fatalf("who does not repair is told %v, of rank %d", r.Status, r.Rank)
					}
				} else {
					waiter.wantNothing("its holder has died", answer)
					ends(waiter, ticket, answer)
				}
				next.sync()
				errand(func(n *Node) { n.members.unblock() })
				eventually(t, "who waited is gone, if it has died", func() bool { return name == "cancels" || access == attach.Read || m.counter("programs") == 1 })
				if r := next.repair(lock); r.Status != attach.StatusOwnerDied || r.Rank != holder.welcome.Rank {
					t.Errorf("who has the lock next is told %v, of rank %d; want %v, of rank %d", r.Status, r.Rank, attach.StatusOwnerDied, holder.welcome.Rank)
				}
			})
		}
	}
}

// TestNoLockOfANodeThatIsLeftOut: when a program hears that the others go on without its node, it
// can take no lock by its word either.
func TestNoLockOfANodeThatIsLeftOut(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	const free, held = 1, 2
	var ps []*prog
	for lock, i := range []int{0, 2} {
		p := c.members[i].join()
		p.had(free + 10*uint64(lock))
		p.had(held + 10*uint64(lock))
		p.locks(held + 10*uint64(lock))
		ps = append(ps, p)
	}
	c.net.Cut(0, 2) // either may be quicker: the other is left out
	var out *prog
	eventually(t, "one of the two is out", func() bool {
		for i, p := range ps {
			select {
			case <-p.ended:
				out = ps[i]
				return true
			default:
			}
		}
		return false
	})
	out.wantLost("go on without this one")
	lock := uint64(0)
	if out == ps[1] {
		lock = 10
	}
	if out.page.Take(free + lock) {
		t.Error("a lock is taken by its word")
	}
	if out.page.GiveBack(held + lock); out.page.Take(held + lock) {
		t.Error("a lock that was held is taken once more")
	}
}

// TestPassedWithoutQuorum: nobody is told without a quorum that a barrier was passed, also if a
// rank of the job dies meanwhile, or the call is cancelled. The others have counted on the arrival,
// so it is told when there is a quorum again.
func TestPassedWithoutQuorum(t *testing.T) {
	c, errand := busy(t)
	a, b := c.members[1].join(), c.members[0].join()
	barrier := attach.Call{Op: attach.OpArrive, Object: 3, Parties: 2}
	ticket, passed := a.call(barrier)
	a.sync()
	errand(func(n *Node) { n.members.block() })
	b.ok(barrier)
	eventually(t, "the release is here", func() bool { return held(errand) == 1 })
	errand(func(n *Node) { n.members.roster.died([]uint32{7}) })
	a.wantNothing("a rank is lost", passed)
	a.cancel(ticket)
	a.wantNothing("it is cancelled", passed)
	errand(func(n *Node) { n.members.unblock() })
	if r := a.answer(passed); r.Status != attach.StatusOK {
		t.Errorf("the arrival that has counted ends with %v", r.Status)
	}
	c.quiet()
}

// TestBoundWithoutQuorum: what a program has asked for, and does not want any more, does not stay
// with it, also if it could not be told that it had it.
func TestBoundWithoutQuorum(t *testing.T) {
	c, errand := busy(t)
	a, b := c.members[1].join(), c.members[0].join()
	c.net.Stall(0, 1)
	ticket, bound := a.call(bindCall("x", testPages*512))
	a.sync()
	errand(func(n *Node) { n.members.block() })
	c.net.Resume(0, 1)
	eventually(t, "the answer is here", func() bool { return held(errand) == 1 })
	a.cancel(ticket)
	if r := a.answer(bound); r.Status != attach.StatusCanceled {
		t.Errorf("the cancelled call ends with %v", r.Status)
	}
	errand(func(n *Node) { n.members.unblock() })
	a.sync()
	eventually(t, "the memory is free", func() bool { return b.do(bindCall("all", testPages*512)).Status == attach.StatusOK })
	c.quiet()
}

// held is how many answers the node keeps back.
func held(errand func(func(*Node))) (count int) {
	errand(func(n *Node) { count = len(n.calls.granted) })
	return count
}
