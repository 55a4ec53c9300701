package node

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestStatusNumbers: programs and engines number accesses and answers alike.
func TestStatusNumbers(t *testing.T) {
	for ours, theirs := range map[attach.Status]protocol.Status{
		attach.StatusOK: protocol.StatusOK, attach.StatusCanceled: protocol.StatusCanceled, attach.StatusOwnerDied: protocol.StatusOwnerDied,
		attach.StatusMismatch: protocol.StatusMismatch, attach.StatusNoSpace: protocol.StatusNoSpace, attach.StatusUnknown: protocol.StatusUnknown, attach.StatusNodeLost: protocol.StatusNodeLost,
		attach.StatusUnrepaired: protocol.StatusUnrepaired,
	} {
		if uint8(ours) != uint8(theirs) {
			t.Errorf("status %v is %d for programs and %d for engines", ours, ours, theirs)
		}
	}
	if uint8(attach.Read) != uint8(protocol.Read) || uint8(attach.Write) != uint8(protocol.Write) {
		t.Error("programs and engines number accesses differently")
	}
	if node, lost := attach.OwnerNode(protocol.LostRank(7)); node != 7 || !lost || MaxRanks != attach.MaxRank+1 {
		t.Errorf("the owner of a lock that died with node 7 is read by programs as %d, %v; there are %d ranks", node, lost, attach.MaxRank+1)
	}
	if attach.MaxRegionBytes != MaxRegionBytes {
		t.Errorf("programs say a region may have %d bytes, and it may have %d", uint64(attach.MaxRegionBytes), uint64(MaxRegionBytes))
	}
	if attach.MaxContribution > protocol.MaxContribution || protocol.MaxResult > attach.MaxPayload || attach.MaxName > protocol.MaxName {
		t.Error("programs may say what engines may not, or the other way round")
	}
	if first, count, err := attach.DecodePages(protocol.AppendRun(nil, 5, 7)); first != 5 || count != 7 || err != nil {
		t.Errorf("a run of pages of an engine is read by programs as %d, %d, %v", first, count, err)
	}
}

const lockName = 0x1234_5678_9abc_def0

func TestLocks(t *testing.T) {
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		if r := a.acquire(lockName, attach.Write); r.Status != attach.StatusOK {
			t.Fatalf("a free lock: %v", r.Status)
		}
		_, waiting := b.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
		b.sync()
		select {
		case r := <-waiting:
			t.Fatalf("the lock was given away while it was held: %v", r.Status)
		default:
		}
		a.release(lockName, attach.Write)
		if r := b.answer(waiting); r.Status != attach.StatusOK {
			t.Fatalf("a lock that was given back: %v", r.Status)
		}
		b.release(lockName, attach.Write)
		// Two readers share it.
		if a.acquire(lockName, attach.Read).Status != attach.StatusOK || b.acquire(lockName, attach.Read).Status != attach.StatusOK {
			t.Fatal("two readers do not share a lock")
		}
		ticket, waiting := a.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
		a.cancel(ticket)
		if r := a.answer(waiting); r.Status != attach.StatusCanceled {
			t.Fatalf("a cancelled wait: %v", r.Status)
		}
		a.release(lockName, attach.Read)
		b.release(lockName, attach.Read)
		b.release(lockName, attach.Read) // not held: nothing happens
		if c.members[0].counter("lock_calls") != 3 || c.members[1].counter("lock_calls") != 2 {
			t.Errorf("lock_calls: %d, %d", c.members[0].counter("lock_calls"), c.members[1].counter("lock_calls"))
		}
		c.quiet()
	})
}

// TestLockOfDeadProgram: who gets a lock whose holder died is told who that was.
func TestLockOfDeadProgram(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		a.acquire(lockName, attach.Write)
		_, waiting := b.call(attach.Call{Op: attach.OpRepair, Object: lockName, Access: attach.Write})
		b.sync()
		a.die()
		if r := b.answer(waiting); r.Status != attach.StatusOwnerDied || r.Rank != 0 {
			t.Errorf("%v, rank %d; the owner, rank 0, died", r.Status, r.Rank)
		}
		c.members[1].want(map[string]uint64{"owner_deaths": 1})
		c.quiet()
	})
}

// TestLockOfDeadProgramIsNamed: the log says which lock passes on, by the name that the program
// gave it, which is in a job. A lock that was not named has its hash.
func TestLockOfDeadProgramIsNamed(t *testing.T) {
	for _, test := range []struct{ job, name, want string }{{"", "orders", "orders"}, {"solve", "orders", "orders"}, {"", "", "lock:1e"}} {
		t.Run(test.job+" "+test.name, func(t *testing.T) {
			core, logs := observer.New(zap.WarnLevel)
			c := start(t, setup{nodes: 1, ranks: 2, change: func(cfg *Config) { cfg.Log = zap.New(core) }})
			const lock = 0x1e
			join := func(m *member) *prog {
				return m.joinWith(helloOf(test.job, min(2, uint32(len(test.job))), attach.NoRank))
			}
			a, b := join(c.members[0]), join(c.members[0])
			a.acquire(lock, attach.Write)
			if test.name != "" {
				b.do(attach.Call{Op: attach.OpName, Object: lock, Name: test.name})
			}
			_, waiting := b.call(attach.Call{Op: attach.OpRepair, Object: lock, Access: attach.Write})
			b.sync()
			a.die()
			b.answer(waiting)
			all := logs.FilterMessage("a lock passes on whose holder died").All()
			if len(all) != 1 || all[0].ContextMap()["lock"] != test.want {
				t.Errorf("logged %v, want lock %q", all, test.want)
			}
		})
	}
}

// TestLockIsNotRepaired: who does not repair does not get a lock whose holder died, in whichever
// way it asks, also after a repair that failed. After a repair the lock is as any other.
func TestLockIsNotRepaired(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 4})
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[1].join()
	a.acquire(lockName, attach.Write)
	_, waiting := b.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
	_, reading := d.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Read})
	b.sync()
	d.sync()
	a.die()
	refused := func(what string, r attach.Reply) {
		t.Helper()
		if r.Status != attach.StatusUnrepaired || r.Rank != 0 {
			t.Errorf("%s: %v, rank %d; the owner, rank 0, died", what, r.Status, r.Rank)
		}
	}
	refused("who waited to write", b.answer(waiting))
	refused("who waited to read", d.answer(reading))
	refused("who tries", d.do(attach.Call{Op: attach.OpTry, Object: lockName, Access: attach.Write}))
	if r := d.repair(lockName); r.Status != attach.StatusOwnerDied || r.Rank != 0 {
		t.Errorf("who repairs: %v, rank %d", r.Status, r.Rank)
	}
	write(d, d.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpRelease, Object: lockName, Access: attach.Write, Count: 1}))
	d.sync()
	refused("after a repair that failed", d.acquire(lockName, attach.Write))
	refused("on another program", b.acquire(lockName, attach.Read))
	if r := b.repair(lockName); r.Status != attach.StatusOwnerDied || r.Rank != 0 {
		t.Errorf("who repairs next: %v, rank %d", r.Status, r.Rank)
	}
	b.release(lockName, attach.Write)
	if r := d.acquire(lockName, attach.Write); r.Status != attach.StatusOK && r.Status != attach.StatusByWord {
		t.Errorf("after the repair: %v", r.Status)
	}
	d.release(lockName, attach.Write)
	c.quiet()
}

// TestRetriesAreQuiet: a program that tries again and again to repair what a dead one has left, and
// fails, is logged once. Another death, and one after a repair, are logged.
func TestRetriesAreQuiet(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	c := start(t, setup{nodes: 1, ranks: 4, change: func(cfg *Config) { cfg.Log = zap.New(core) }})
	first, second, third, b := c.members[0].join(), c.members[0].join(), c.members[0].join(), c.members[0].join()
	die := func(p *prog, lines int) {
		t.Helper()
		p.die()
		for range 100 {
			if r := b.repair(lockName); r.Status != attach.StatusOwnerDied || r.Rank != p.welcome.Rank {
				t.Fatalf("who repairs: %v, rank %d", r.Status, r.Rank)
			}
			write(b, b.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpRelease, Object: lockName, Access: attach.Write, Count: uint64(p.welcome.Rank) + 1}))
		}
		b.sync()
		if got := logs.FilterMessage("a lock passes on whose holder died").Len(); got != lines {
			t.Errorf("%d lines after rank %d has died, want %d", got, p.welcome.Rank, lines)
		}
	}
	first.acquire(lockName, attach.Write)
	die(first, 1)
	second.repair(lockName) // and does not get to the end of it
	die(second, 2)
	third.repair(lockName)
	third.release(lockName, attach.Write)
	third.acquire(lockName, attach.Write)
	die(third, 3)
}

// TestTryLock: an OpTry gets a lock that is free here or elsewhere, and is told at once of one that
// is in use on its node. It waits for one that is in use elsewhere, until the program cancels that.
func TestTryLock(t *testing.T) {
	c := start(t, setup{nodes: 2, ranks: 4})
	a, b, far := c.members[1].join(), c.members[1].join(), c.members[0].join()
	try := attach.Call{Op: attach.OpTry, Object: lockName, Access: attach.Write}
	if r := a.do(try); r.Status != attach.StatusOK {
		t.Fatalf("a lock that nobody has had: %v", r.Status)
	}
	for _, access := range []attach.Access{attach.Read, attach.Write} {
		if r := b.do(attach.Call{Op: attach.OpTry, Object: lockName, Access: access}); r.Status != attach.StatusHeld {
			t.Errorf("a lock that is in use beside: %v", r.Status)
		}
	}
	ticket, waiting := far.call(try)
	far.sync()
	far.cancel(ticket)
	if r := far.answer(waiting); r.Status != attach.StatusCanceled {
		t.Errorf("a lock that is in use elsewhere: %v", r.Status)
	}
	a.release(lockName, attach.Write)
	if r := far.do(try); r.Status != attach.StatusOK {
		t.Errorf("a lock that was given back elsewhere: %v", r.Status)
	}
	far.release(lockName, attach.Write)
	if r := a.do(try); r.Status != attach.StatusOK {
		t.Errorf("a lock that was given back, and is published elsewhere: %v", r.Status)
	}
	a.release(lockName, attach.Write)
	a.sync()
	a.locks(lockName)
	if r := b.do(try); r.Status != attach.StatusHeld {
		t.Errorf("a lock that is held by its word: %v", r.Status)
	}
	a.unlocks(lockName, controlpage.Recalled)
	a.release(lockName, attach.Write)
	c.quiet()
}

func TestBarrier(t *testing.T) {
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		var ps []*prog
		for _, m := range c.members {
			ps = append(ps, m.join())
		}
		arrive := func(p *prog, payload string) (uint64, chan attach.Reply) {
			return p.call(attach.Call{Op: attach.OpArrive, Object: lockName, Parties: 3, Payload: []byte(payload)})
		}
		for range 3 {
			var answers []chan attach.Reply
			for i := range ps {
				_, answer := arrive(ps[2-i], string(rune('c'-i)))
				answers = append(answers, answer)
			}
			for _, answer := range answers {
				if r := ps[0].answer(answer); r.Status != attach.StatusOK || string(r.Payload) != "abc" {
					t.Fatalf("%v, %q; want the payloads in the order of ranks", r.Status, r.Payload)
				}
			}
		}
		// One gives up, says so, and comes again: it is counted once.
		ticket, first := arrive(ps[0], "x")
		ps[0].cancel(ticket)
		if r := ps[0].answer(first); r.Status != attach.StatusCanceled {
			t.Fatalf("a cancelled arrival: %v", r.Status)
		}
		// One of another opinion is told so, and is not counted either.
		_, second := arrive(ps[1], "y")
		c.settle() // the arrival is at the home
		if r := ps[2].do(attach.Call{Op: attach.OpArrive, Object: lockName, Parties: 2, Payload: []byte("z")}); r.Status != attach.StatusMismatch ||
			!strings.Contains(string(r.Payload), "others with 3 parties") {
			t.Fatalf("another number of parties: %v %q", r.Status, r.Payload)
		}
		_, third := arrive(ps[0], "x")
		_, fourth := arrive(ps[2], "z")
		for _, answer := range []chan attach.Reply{second, third, fourth} {
			if r := ps[0].answer(answer); r.Status != attach.StatusOK || string(r.Payload) != "xyz" {
				t.Fatalf("%v, %q; want %q", r.Status, r.Payload, "xyz")
			}
		}
		c.quiet()
	})
}

// TestBarrierOfManyNodes: where barriers are trees, everybody gets everybody's, in the order of
// ranks, who gives up is not counted, and no node says as much as the home of a small cluster
// would.
func TestBarrierOfManyNodes(t *testing.T) {
	t.Parallel()
	const nodes, rounds = protocol.DefaultTreeFrom + 3, 3
	c := start(t, setup{nodes: nodes, net: sim.Options{Seed: 3, MaxDelay: 40}})
	var ps []*prog
	for _, m := range c.members {
		ps = append(ps, m.join())
	}
	arrive := func(i, round int) (uint64, chan attach.Reply) {
		return ps[i].call(attach.Call{Op: attach.OpArrive, Object: 5, Parties: nodes, Payload: []byte{byte(i), byte(round)}})
	}
	c.settle()
	before := c.members[5].counter("messages_sent")
	for round := range rounds {
		ticket, first := arrive(nodes-1, 100)
		ps[nodes-1].cancel(ticket)
		if r := ps[0].answer(first); r.Status != attach.StatusCanceled {
			t.Fatalf("a cancelled arrival: %v", r.Status)
		}
		var want []byte
		var answers []chan attach.Reply
		for i := range ps {
			_, answer := arrive(i, round)
			answers, want = append(answers, answer), append(want, byte(i), byte(round))
		}
		for i, answer := range answers {
			if r := ps[0].answer(answer); r.Status != attach.StatusOK || !bytes.Equal(r.Payload, want) {
				t.Fatalf("node %d in round %d: %v, %x; want %x", i, round, r.Status, r.Payload, want)
			}
		}
	}
	c.settle()
	if sent := c.members[5].counter("messages_sent") - before; sent == 0 || sent >= rounds*(nodes-1) {
		t.Errorf("the home has sent %d messages in %d barriers of %d nodes", sent, rounds, nodes)
	}
	c.quiet()
}

// TestImpossibleBarrier: what the protocol could not carry is refused by the first node, which
// would otherwise be taken for one that breaks the protocol.
func TestImpossibleBarrier(t *testing.T) {
	c := start(t, setup{nodes: 2})
	p := c.members[0].join()
	for object := range uint64(2) { // homed here and there
		r := p.do(attach.Call{Op: attach.OpArrive, Object: object, Parties: protocol.MaxParties + 1})
		if r.Status != attach.StatusMismatch || !strings.Contains(string(r.Payload), "65537 parties") {
			t.Errorf("%v: %q", r.Status, r.Payload)
		}
	}
	for _, fold := range []attach.Fold{0xff, attach.FoldOf(attach.FoldSum, attach.NumberFloat64)} {
		r := p.do(attach.Call{Op: attach.OpArrive, Object: 1, Parties: 1, Fold: fold, Payload: make([]byte, 12)})
		if r.Status != attach.StatusMismatch || !strings.Contains(string(r.Payload), "12 bytes") {
			t.Errorf("fold %#x: %v, %q", fold, r.Status, r.Payload)
		}
	}
	c.quiet()
}

// TestFoldsAreThoseOfTheProtocol: programs and engines mean the same by the number of a fold.
func TestFoldsAreThoseOfTheProtocol(t *testing.T) {
	ops := map[attach.FoldOp]protocol.FoldOp{attach.FoldSum: protocol.FoldSum, attach.FoldMin: protocol.FoldMin, attach.FoldMax: protocol.FoldMax}
	numbers := map[attach.Number]protocol.Number{
		attach.NumberInt8: protocol.NumberInt8, attach.NumberInt16: protocol.NumberInt16, attach.NumberInt32: protocol.NumberInt32, attach.NumberInt64: protocol.NumberInt64,
		attach.NumberUint8: protocol.NumberUint8, attach.NumberUint16: protocol.NumberUint16, attach.NumberUint32: protocol.NumberUint32, attach.NumberUint64: protocol.NumberUint64,
		attach.NumberFloat32: protocol.NumberFloat32, attach.NumberFloat64: protocol.NumberFloat64,
	}
	for op, itsOp := range ops {
		for n, itsNumber := range numbers {
			if f := protocol.FoldOf(itsOp, itsNumber); protocol.Fold(attach.FoldOf(op, n)) != f || !f.Fits(8) {
				t.Errorf("%v is %#x of package attach", f, attach.FoldOf(op, n))
			}
		}
	}
}

// TestFold: daemons combine what programs bring.
func TestFold(t *testing.T) {
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		var answers []chan attach.Reply
		var ps []*prog
		for i, m := range c.members {
			ps = append(ps, m.join())
			_, answer := ps[i].call(attach.Call{
				Op: attach.OpArrive, Object: 5, Parties: 3, Fold: attach.FoldOf(attach.FoldSum, attach.NumberInt16), Payload: []byte{byte(100 + i), 1, 0xff, byte(i)},
			})
			answers = append(answers, answer)
		}
		for _, answer := range answers {
			if r := ps[0].answer(answer); r.Status != attach.StatusOK || !bytes.Equal(r.Payload, []byte{47, 4, 0xfd, 5}) {
				t.Errorf("%v, %x", r.Status, r.Payload)
			}
		}
	})
}

func TestBindAndUnbind(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := a.bind("grid", 3)
		if other := b.bind("grid", 3); other != page {
			t.Errorf("one name is page %d here and page %d there", page, other)
		}
		if other := b.bind("grid2", 3); other == page {
			t.Errorf("two names are page %d", page)
		}
		r := b.do(attach.Call{Op: attach.OpBind, Name: "grid", Object: attach.NameHash(attach.NameMemory, "grid"), Count: 9, ElemBytes: 4, TypeHash: 2, Signature: "int32"})
		call := bindCall("grid", 3*512)
		if r.Status != attach.StatusMismatch || string(r.Payload) != call.Identity() {
			t.Errorf("another type: %v %q, want the identity that the name has, %q", r.Status, r.Payload, call.Identity())
		}
		for _, count := range []uint64{testPages*512 + 1, 1 << 40, math.MaxUint64} {
			if r := a.do(bindCall("huge", count)); r.Status != attach.StatusNoSpace {
				t.Errorf("%d words: %v, want no space", count, r.Status)
			}
		}
		if r := a.do(bindCall("rest", (testPages-6+1)*512)); r.Status != attach.StatusNoSpace {
			t.Errorf("more than is left: %v, want no space", r.Status)
		}
		if r := a.do(unbindCall("nobody")); r.Status != attach.StatusUnknown {
			t.Errorf("a name that nobody bound: %v", r.Status)
		}
		// Freed pages are zeros when they come back, wherever they were.
		a.store(page, 0, 1)
		b.store(page+1, 0, 2)
		b.wantLoad(page, 0, 1)
		a.ok(unbindCall("grid"))
		b.ok(unbindCall("grid"))
		c.settle()
		if again := b.bind("grid", 3); again != page {
			t.Errorf("freed pages were not used again: page %d instead of %d", again, page)
		}
		for i := range pagetable.Page(3) {
			a.wantLoad(page+i, 0, 0)
			b.wantLoad(page+i, 0, 0)
		}
		if c.members[0].counter("name_calls") == 0 {
			t.Error("name_calls did not move")
		}
		c.quiet()
	})
}

// TestFaultsWhileFreeing: threads of an erroneous program touch memory while it is freed. They get
// through or go on waiting, but nothing is remembered of them and the pages come back as zeros.
func TestFaultsWhileFreeing(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		for round := range 8 {
			page := a.bind("x", 4)
			b.bind("x", 4)
			a.store(page, 0, 1)
			b.store(page+1, 0, 1)
			var accesses []chan error
			_, one := a.call(unbindCall("x"))
			_, two := b.call(unbindCall("x"))
			for i := range pagetable.Page(4) {
				accesses = append(accesses, a.access(page+i, round%2 == 0, func([]byte) {}), b.access(page+i, true, func([]byte) {}))
			}
			a.answer(one)
			b.answer(two)
			for _, access := range accesses {
				a.settled(access)
			}
		}
		c.quiet()
	})
}

// TestLargeTickets: programs choose their tickets freely, and the answer carries the ticket that
// was chosen.
func TestLargeTickets(t *testing.T) {
	c := start(t, setup{nodes: 2})
	p, q := c.members[0].join(), c.members[0].joinAs(1)
	for _, ticket := range []uint64{1 << 40, 1<<40 + 1, 1 << 63, attach.MaxTicket} {
		for _, call := range []attach.Call{
			{Op: attach.OpAcquire, Object: lockName, Access: attach.Read}, {Op: attach.OpArrive, Object: 9, Parties: 1},
			{Op: attach.OpPrefetch, Count: 2, Access: attach.Read}, {Op: attach.OpStats}, bindCall("x", 1), unbindCall("x"),
		} {
			call.Ticket = ticket
			p.ok(call) // takeReplies fails for an answer to another ticket
			q.ok(call)
		}
	}
	c.quiet()
}

// TestLateAnswer: the answer to a cancelled call comes when the program has used the ticket again.
func TestLateAnswer(t *testing.T) {
	c := start(t, setup{nodes: 2})
	p := c.members[1].join()
	p.sync()
	c.net.Stall(0, 1)
	bind := bindCall("one", 512)
	bind.Ticket = 77
	_, answer := p.call(bind)
	p.cancel(77)
	if r := p.answer(answer); r.Status != attach.StatusCanceled {
		t.Fatalf("a cancelled bind: %v", r.Status)
	}
	unknown := unbindCall("two")
	unknown.Ticket = 77
	_, answer = p.call(unknown)
	p.sync()
	c.net.Resume(0, 1)
	if r := p.answer(answer); r.Status != attach.StatusUnknown {
		t.Errorf("the call was answered with %v, by the answer to another one", r.Status)
	}
	c.quiet()
}

// TestDeathWithOpenCalls: a program that dies with calls of every kind open leaves nothing behind,
// and who waits for it at a barrier or for a lock goes on.
func TestDeathWithOpenCalls(t *testing.T) {
	t.Parallel()
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		b.acquire(1, attach.Write)
		a.acquire(2, attach.Write)
		a.acquire(3, attach.Read)
		page := b.bind("shared", 600)
		for i := range pagetable.Page(600) {
			b.store(page+i, 0, uint64(i))
		}
		a.call(attach.Call{Op: attach.OpAcquire, Object: 1, Access: attach.Write})
		a.call(attach.Call{Op: attach.OpArrive, Object: 4, Parties: 2, Payload: []byte("dead")})
		a.call(bindCall("late", 5))
		a.call(unbindCall("nobody"))
		a.call(attach.Call{Op: attach.OpPrefetch, Object: uint64(page), Count: 600, Access: attach.Write})
		waiting := a.access(page+599, true, func(b []byte) { binary.NativeEndian.PutUint64(b, 0) })
		a.sync()
		a.die()
		<-waiting
		if r := b.repair(2); r.Status != attach.StatusOwnerDied {
			t.Errorf("the dead program's lock: %v", r.Status)
		}
		if r := b.acquire(3, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("the lock that the dead program had for reading: %v", r.Status)
		}
		eventually(t, "the program is gone", func() bool { return c.members[0].counter("programs") == 0 })
		// node 0 still asks for it, though nobody there wants it any more
		b.release(1, attach.Write)
		c.settle()
		_, answer := b.call(attach.Call{Op: attach.OpArrive, Object: 4, Parties: 2, Payload: []byte("next")})
		again := c.members[0].join()
		again.ok(attach.Call{Op: attach.OpArrive, Object: 4, Parties: 2, Payload: []byte("also")})
		if r := b.answer(answer); string(r.Payload) != "alsonext" {
			t.Errorf("the barrier gathered %q", r.Payload)
		}
		for i := range pagetable.Page(599) {
			b.wantLoad(page+i, 0, uint64(i))
		}
		c.quiet()
	})
}

// TestCancelOfNothing: cancelling what is not open, or is over, does nothing.
func TestCancelOfNothing(t *testing.T) {
	c := start(t, setup{nodes: 1})
	p := c.members[0].join()
	p.cancel(99)
	ticket, answer := p.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
	p.answer(answer)
	p.cancel(ticket)
	p.sync()
	c.quiet()
}

// TestEndIsSeenBeforeLastWords: the page table may notice that a program has ended before what it
// said last is read. A lock that it gave back was given back, and nobody is told that its holder
// died.
func TestEndIsSeenBeforeLastWords(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := start(t, setup{nodes: 2, ranks: 3, async: async})
		a, b, d := c.members[0].joinAs(0), c.members[1].joinAs(1), c.members[0].joinAs(2)
		page := a.bind("x", 1)
		a.store(page, 0, 1)
		if r := a.acquire(lockName, attach.Write); r.Status != attach.StatusOK {
			t.Fatalf("the lock was granted with %v", r.Status)
		}
		a.table.Kill(a.id)
		// takes the page from all programs of node 0, which notices that one has gone
		b.store(page, 0, 2)
		d.wantLoad(page, 0, 2)
		a.release(lockName, attach.Write)
		a.leave()
		if r := d.acquire(lockName, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("a lock that was given back is granted with %v", r.Status)
		}
		d.release(lockName, attach.Write)
	}
}
