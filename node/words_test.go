package node

import (
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// locks takes a lock by its word, and fails if that is not possible.
func (p *prog) locks(lock uint64) {
	p.Helper()
	if !p.page.Take(lock) {
		p.Fatalf("rank %d cannot take lock %x without a call", p.welcome.Rank, lock)
	}
}

// unlocks gives back a lock that was taken by its word, and says so if it is wanted.
func (p *prog) unlocks(lock uint64, want controlpage.GivenBack) {
	p.Helper()
	given := p.page.GiveBack(lock)
	if given != want {
		p.Fatalf("rank %d gave back lock %x with %d, want %d", p.welcome.Rank, lock, given, want)
	}
	if given == controlpage.Recalled {
		p.release(lock, attach.Write)
	}
}

// had takes and gives back a lock by calls, so that it is published.
func (p *prog) had(lock uint64) {
	p.Helper()
	if r := p.acquire(lock, attach.Write); r.Status != attach.StatusOK {
		p.Fatalf("lock %x: %v", lock, r.Status)
	}
	p.release(lock, attach.Write)
	p.sync()
}

// TestPublishedLock: a lock that nobody else wants is taken without a call, and goes to another
// node that wants it.
func TestPublishedLock(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		a.had(lockName)
		for range 3 {
			a.locks(lockName)
			a.unlocks(lockName, controlpage.Freed)
		}
		b.had(lockName) // it was free
		if a.page.Take(lockName) {
			t.Error("the lock is taken where it has gone from")
		}
		b.locks(lockName)
		_, waiting := a.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
		eventually(t, "the lock is wanted back", func() bool { return c.members[1].counter("locks_recalled") == 1 })
		select {
		case r := <-waiting:
			t.Fatalf("the lock was given away while it was held: %v", r.Status)
		default:
		}
		b.unlocks(lockName, controlpage.Recalled)
		if r := a.answer(waiting); r.Status != attach.StatusOK {
			t.Fatalf("a lock that was given back: %v", r.Status)
		}
		a.release(lockName, attach.Write)
		a.sync()
		a.locks(lockName)
		a.unlocks(lockName, controlpage.Freed)
		c.members[0].want(map[string]uint64{"lock_calls": 2, "locks_published": 2, "locks_recalled": 1})
		c.members[1].want(map[string]uint64{"lock_calls": 1, "locks_published": 1, "locks_recalled": 1, "owner_deaths": 0})
		c.quiet()
	})
}

// TestAskedForWhilePublished: a program that asked before it could see that the lock is published
// gets it by its word.
func TestAskedForWhilePublished(t *testing.T) {
	c := start(t, setup{nodes: 1})
	m := c.members[0]
	p := m.join()
	p.had(lockName)
	if r := p.acquire(lockName, attach.Write); r.Status != attach.StatusByWord {
		t.Fatalf("a lock that is published: %v", r.Status)
	}
	_, second := p.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
	p.sync()
	p.unlocks(lockName, controlpage.Recalled)
	if r := p.answer(second); r.Status != attach.StatusOK {
		t.Fatalf("a lock that was given back: %v", r.Status)
	}
	p.release(lockName, attach.Write)
	p.sync()
	// A reader can't have it by its word.
	if r := p.acquire(lockName, attach.Read); r.Status != attach.StatusOK {
		t.Fatalf("a reader: %v", r.Status)
	}
	p.release(lockName, attach.Read)
	m.want(map[string]uint64{"lock_calls": 4, "locks_published": 2, "locks_recalled": 2})
	c.quiet()
}

// TestPublishedLockAmongPrograms: what one program takes by its word, others of its node ask for,
// and its own goroutines that come second.
func TestPublishedLockAmongPrograms(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	a, b := m.join(), m.join()
	a.had(lockName)
	if b.page.Take(lockName) {
		t.Fatal("a lock is published to two programs")
	}
	a.locks(lockName)
	_, second := a.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
	a.sync()
	_, third := b.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Read})
	b.sync()
	a.unlocks(lockName, controlpage.Recalled)
	if r := a.answer(second); r.Status != attach.StatusOK {
		t.Fatalf("the second goroutine: %v", r.Status)
	}
	a.release(lockName, attach.Write)
	if r := b.answer(third); r.Status != attach.StatusOK {
		t.Fatalf("the other program: %v", r.Status)
	}
	if a.page.Take(lockName) || b.page.Take(lockName) {
		t.Error("a lock is published that is held for reading")
	}
	b.release(lockName, attach.Read)
	b.had(lockName)
	b.locks(lockName)
	b.unlocks(lockName, controlpage.Freed)
	// A reader of the same program takes it back too.
	if r := b.acquire(lockName, attach.Read); r.Status != attach.StatusOK {
		t.Fatalf("a reader: %v", r.Status)
	}
	b.release(lockName, attach.Read)
	c.quiet()
}

// TestPlaceOfTwoLocks: locks with the same place take turns in it, and one that is held there keeps
// it.
func TestPlaceOfTwoLocks(t *testing.T) {
	c := start(t, setup{nodes: 1})
	m := c.members[0]
	p := m.join()
	const other = lockName + controlpage.Slots
	p.had(lockName)
	p.had(other)
	if p.page.Take(lockName) {
		t.Error("the first lock is still published")
	}
	p.locks(other)
	p.had(lockName)
	if p.page.Take(lockName) {
		t.Error("both are published")
	}
	p.unlocks(other, controlpage.Recalled) // so that next time the place is free
	p.sync()
	p.had(lockName)
	p.locks(lockName)
	p.unlocks(lockName, controlpage.Freed)
	c.quiet()
}

// TestPublishedLockOfDeadProgram: a lock that was held by its word is marked when the program dies,
// and one that was free is not.
func TestPublishedLockOfDeadProgram(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		const free, held, wanted = 1, 2, 3
		for lock := uint64(free); lock <= wanted; lock++ {
			a.had(lock)
		}
		a.locks(held)
		a.locks(wanted)
		_, waiting := b.call(attach.Call{Op: attach.OpRepair, Object: wanted, Access: attach.Write})
		eventually(t, "the lock is wanted back", func() bool { return c.members[0].counter("locks_recalled") == 1 })
		a.die()
		if r := b.answer(waiting); r.Status != attach.StatusOwnerDied || r.Rank != 0 {
			t.Errorf("a lock that was held and wanted: %v, rank %d", r.Status, r.Rank)
		}
		if r := b.repair(held); r.Status != attach.StatusOwnerDied || r.Rank != 0 {
			t.Errorf("a lock that was held: %v, rank %d", r.Status, r.Rank)
		}
		if r := b.acquire(free, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("a lock that was free: %v", r.Status)
		}
		for lock := uint64(free); lock <= wanted; lock++ {
			b.release(lock, attach.Write)
		}
		c.quiet()
	})
}

// TestScribbledPage: a program that overwrites its control page is cut off as soon as that is
// found, and its locks pass on. The programs beside it go on.
func TestScribbledPage(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	a, b := c.members[0].join(), c.members[0].join()
	a.had(lockName)
	b.had(lockName + 1)
	for i := range a.scribble {
		a.scribble[i] = 0xff
	}
	if r := b.repair(lockName); r.Status != attach.StatusOwnerDied {
		t.Errorf("a lock whose word was overwritten: %v", r.Status)
	}
	<-a.ended
	b.release(lockName, attach.Write)
	b.sync()
	b.locks(lockName)
	b.unlocks(lockName, controlpage.Freed)
	b.locks(lockName + 1)
	b.unlocks(lockName+1, controlpage.Freed)
	// One that says that it gives back what it has not taken is believed; one that gives back what
	// it never had is not.
	b.release(lockName, attach.Write)
	b.release(lockName, attach.Write)
	b.release(lockName+2, attach.Write)
	b.sync()
	if b.page.Take(lockName + 2) {
		t.Error("a lock was published that the program never had")
	}
	c.members[0].want(map[string]uint64{"owner_deaths": 1})
	c.quiet()
}

// TestMovingLock: a lock that is wanted elsewhere all the time goes round, and is published in one
// place at most.
func TestMovingLock(t *testing.T) {
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		var ps []*prog
		for _, m := range c.members {
			ps = append(ps, m.join())
		}
		var answers []chan attach.Reply
		for round := range 6 {
			_, answer := ps[round%3].call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
			answers = append(answers, answer)
		}
		for got := 0; got < len(answers); got++ {
			// Whose turn it is the protocol decides.
			holder := -1
			eventually(t, "somebody has the lock", func() bool {
				for i, answer := range answers {
					if len(answer) > 0 {
						holder = i
					}
				}
				return holder >= 0
			})
			if r := <-answers[holder]; r.Status != attach.StatusOK {
				t.Fatal(r.Status)
			}
			ps[holder%3].release(lockName, attach.Write)
		}
		for _, p := range ps {
			p.sync()
		}
		places := 0
		for _, p := range ps {
			if p.page.Take(lockName) {
				places++
			}
		}
		if places != 1 {
			t.Errorf("a lock that nobody wants is published in %d places", places)
		}
		c.quiet()
	})
}

// TestStrictTurn: two nodes that both want a lock all the time have it in turn, and each turn costs
// two messages: that the one wants it again, and that it is handed over.
func TestStrictTurn(t *testing.T) {
	for home := range uint64(2) {
		c := start(t, setup{nodes: 2})
		ps := []*prog{c.members[0].join(), c.members[1].join()}
		messages := func(what string) uint64 { return c.members[0].counter(what) + c.members[1].counter(what) }
		want := func(p *prog) chan attach.Reply {
			_, answer := p.call(attach.Call{Op: attach.OpAcquire, Object: home, Access: attach.Write})
			return answer
		}
		if r := ps[0].answer(want(ps[0])); r.Status != attach.StatusOK {
			t.Fatal(r.Status)
		}
		before := messages("messages_sent")
		waiting := want(ps[1])
		for turn := range uint64(100) {
			holder, next := ps[turn%2], ps[(turn+1)%2]
			eventually(t, "the wish has arrived, with one message", func() bool {
				return messages("messages_received") == before+2*turn+1 && messages("messages_sent") == before+2*turn+1
			})
			holder.release(home, attach.Write)
			again := want(holder)
			if r := next.answer(waiting); r.Status != attach.StatusOK {
				t.Fatal(r.Status)
			}
			if len(again) > 0 {
				t.Fatalf("turn %d: the node that had the lock has it again", turn)
			}
			waiting = again
		}
		c.stop()
	}
}
