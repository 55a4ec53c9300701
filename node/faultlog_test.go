package node

import (
	"slices"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"

	"golang.org/x/sys/unix"
)

// log is what a node's log has from a place on, as an observer reads it who wants all.
func (m *member) log(from uint64) faultlog.Batch { return m.logOf(from, faultlog.OfWords) }

// logOf is log for a reader who wants only some.
func (m *member) logOf(from uint64, detail faultlog.Detail) faultlog.Batch {
	m.Helper()
	b, err := faultlog.Decode(m.observed(attach.Call{Op: attach.OpFaultLog, Ticket: 3, Object: from, Count: uint64(detail)}))
	if err != nil {
		m.Fatal(err)
	}
	return b
}

// TestFaultLog: faults and departures are logged from the first reading on, with who sent the page,
// who had taken it, and what was written to it meanwhile.
func TestFaultLog(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	page := c.pageAt(0, 3)
	before := time.Now().UnixNano()
	a.store(page, 0, 1)
	a.sync()
	for _, m := range c.members {
		if x := m.log(faultlog.End); len(x.Faults)+len(x.Departures) > 0 || x.Lost != 0 {
			t.Fatalf("at first: %+v", x)
		}
	}
	const rounds = 5
	for i := range uint64(rounds) {
		b.store(page, int(8*i), 2+i)
		a.store(page, int(8*i), 100+i)
	}
	for i := range uint64(rounds) {
		b.load(page, 0)
		a.store(page, 8*100, i)
	}
	c.settle()
	at0, at1 := c.members[0].log(0), c.members[1].log(0)

	var written [][]uint64
	for i, d := range at0.Departures {
		want := faultlog.Write
		if i >= rounds {
			want = faultlog.Read
		}
		if d.Page != uint64(page) || d.By != 1 || d.Access != want || d.At < before || d.Place >= at0.Next || i > 0 && d.Place <= at0.Departures[i-1].Place {
			t.Errorf("departure %d of node 0: %+v", i, d)
		}
		written = append(written, d.Written)
	}
	words := func(list ...int) []uint64 {
		set := make([]uint64, 4096/8/64)
		for _, w := range list {
			set[w/64] |= 1 << (w % 64)
		}
		return set
	}
	// What the first ones have written nobody knows: the page had not gone to and fro yet.
	// Then it has its turn; in the second half, 0 is stored where 0 is at first.
	want := [][]uint64{nil, nil, words(1), words(2), words(3), words(4), words(), words(100), words(100), words(100)}
	if !slices.EqualFunc(written, want, slices.Equal[[]uint64]) {
		t.Errorf("node 0 has written %x, want %x", written, want)
	}
	for i, f := range at0.Faults {
		access, taken := faultlog.Write, faultlog.Write
		if i >= rounds {
			access, taken = faultlog.Upgrade, faultlog.Read
		}
		if f.Page != uint64(page) || f.Access != access || f.PID != uint32(unix.Getpid()) || f.Began < before || f.Waited <= 0 || f.Contents != (access == faultlog.Write) || f.Taker != 1 || f.TakerAccess != taken {
			t.Errorf("fault %d of node 0: %+v", i, f)
		}
	}
	for i, f := range at1.Faults {
		access := faultlog.Write
		if i >= rounds {
			access = faultlog.Read
		}
		taker := uint32(0)
		if i == 0 {
			taker = faultlog.NoNode
		}
		if f.Access != access || f.From != 0 || !f.Contents || f.Taker != taker || f.Granted <= 0 || f.Granted > f.Waited {
			t.Errorf("fault %d of node 1: %+v", i, f)
		}
	}
	if len(at0.Departures) != 2*rounds || len(at0.Faults) != 2*rounds || len(at1.Faults) != 2*rounds {
		t.Errorf("%d departures and %d faults at node 0, %d faults at node 1", len(at0.Departures), len(at0.Faults), len(at1.Faults))
	}
	c.quiet()
}

// TestDetailOfFaultLog: departures are logged from when a reader wants them, and the words that
// were written from when one wants those; who took a page is known in any case.
func TestDetailOfFaultLog(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	page, m := c.pageAt(0, 3), c.members[0]
	const rounds = 4
	at := m.logOf(faultlog.End, faultlog.OfFaults).Next
	for _, want := range []struct {
		detail     faultlog.Detail
		departures int
		words      bool
	}{{faultlog.OfFaults, 0, false}, {faultlog.OfDepartures, rounds, false}, {faultlog.OfWords, rounds, true}, {faultlog.OfFaults, rounds, true}} {
		m.logOf(at, want.detail)
		for i := range uint64(rounds) {
			a.store(page, 0, 100+i)
			b.store(page, 8, i)
		}
		c.settle()
		x := m.logOf(at, faultlog.OfFaults)
		at = x.Next
		words := slices.ContainsFunc(x.Departures, func(d faultlog.Departure) bool { return d.Written != nil })
		for i, f := range x.Faults[1:] {
			if f.Taker != 1 || f.TakerAccess != faultlog.Write {
				t.Errorf("%+v: fault %d: %+v", want, i, f)
			}
		}
		if len(x.Faults) != rounds || len(x.Departures) != want.departures || words != want.words {
			t.Errorf("%+v: %d faults, %d departures, words %v", want, len(x.Faults), len(x.Departures), words)
		}
	}
	c.quiet()
}

// TestFaultLogOfReplicatedMemory: a page whose backups are made is read-only before somebody reads
// it. It departs all the same when somebody does: the next store here waits because of that.
func TestFaultLogOfReplicatedMemory(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	bind := replicatedCall("x", 1, 1)
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[2].join()
	page := a.bindAs(bind)
	for _, p := range []*prog{b, d} {
		p.ok(bind)
	}
	m := c.members[0]
	m.log(0)
	const rounds = 3
	for i := range uint64(rounds) {
		a.store(page, 0, 1+i) // the first one is that of zeros
		a.ok(attach.Call{Op: attach.OpCommit})
		b.wantLoad(page, 0, 1+i)
		d.wantLoad(page, 0, 1+i) // as it is
	}
	c.settle()
	log := m.log(0)
	if len(log.Departures) != rounds || len(log.Faults) != rounds {
		t.Errorf("%d departures and %d faults", len(log.Departures), len(log.Faults))
	}
	for i, x := range log.Departures {
		if x.Page != uint64(page) || x.By != 1 || x.Access != faultlog.Read {
			t.Errorf("departure %d: %+v", i, x)
		}
	}
	for i, f := range log.Faults {
		if i > 0 && (f.Access != faultlog.Upgrade || f.Taker != 1 || f.TakerAccess != faultlog.Read) {
			t.Errorf("fault %d: %+v", i, f)
		}
	}
	c.quiet()
}

// TestFaultLogIsDropped: a log that nobody reads ends, and the next one goes on counting.
func TestFaultLogIsDropped(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	m, page := c.members[0], c.pageAt(0, 0)
	m.log(0)
	for range 3 {
		b.store(page, 0, 1)
		a.store(page, 0, 2)
	}
	c.settle()
	first := m.log(0)
	c.stop() // the reactor has the log until then
	l := &m.node.meter.log
	if !l.isKept() || l.tickIn(l.until-time.Second) != time.Second || len(l.before) == 0 {
		t.Fatalf("the log is kept: %v, with %d pages to compare", l.isKept(), len(l.before))
	}
	l.tick(l.until - 1)
	if !l.isKept() {
		t.Error("the log has ended before its time")
	}
	l.tick(l.until)
	if l.isKept() || l.tickIn(0) >= 0 || len(l.before)+len(l.departed) > 0 {
		t.Errorf("the log has not ended: %+v", l)
	}
	l.ended(&wait{faults: make([]faultlog.Fault, 2)}, 0) // two that began while there was a log
	all := func(*faultlog.Fault) bool { return true }
	if x, err := faultlog.Decode(l.batch(&attach.Call{}, &clock{}, all)); err != nil || x.First != first.Next+2 || x.Lost != x.First {
		t.Errorf("the next log begins with %+v, %v; the first one ended at %d, and two faults have ended since", x, err, first.Next)
	}
}

// TestFaultsWithoutLogAreCounted: faults that happen while nobody reads the log are missing in it,
// and its next reader learns how many.
func TestFaultsWithoutLogAreCounted(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	m, page := c.members[0], c.pageAt(0, 0)
	b.store(page, 0, 1)
	c.net.Stall(1, 0)
	open := a.access(page, true, func([]byte) {}) // it begins without a log, and ends with one
	eventually(t, "the fault", func() bool { return m.counter("faults_write")+m.counter("faults_upgrade") == 1 })
	if x := m.log(0); x.Lost != 1 || len(x.Faults) != 0 {
		t.Errorf("a fault that began without a log: %+v", x)
	}
	c.net.Resume(1, 0)
	a.settled(open)
	b.store(page, 0, 1)
	a.store(page, 0, 2)
	if x := m.log(0); x.Lost != 1 || len(x.Faults) != 1 {
		t.Errorf("another one with a log: %+v", x)
	}
	c.quiet()
}

func noLock(*faultlog.Fault, pagetable.ProcID) uint64 { return 0 }

// TestFaultLogTellsTheTime: its times are those of the machine's clock, also when the loop looked
// at its own long ago.
func TestFaultLogTellsTheTime(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	l := faultLog{pageBytes: 4096, pidOf: func(pagetable.ProcID) uint32 { return 1 }, lockOf: noLock}
	l.batch(&attach.Call{}, &clock{start: began}, func(*faultlog.Fault) bool { return true })
	if wrong := time.Duration(l.began - began.UnixNano()); max(wrong, -wrong) > time.Minute {
		t.Errorf("its times are wrong by %v", wrong)
	}
}

// TestFaultLogIsBounded: what a log remembers of pages does not grow without end, and goes with the
// memory.
func TestFaultLogIsBounded(t *testing.T) {
	l := faultLog{pageBytes: 4096, pidOf: func(pagetable.ProcID) uint32 { return 1 }, lockOf: noLock}
	l.batch(&attach.Call{Count: uint64(faultlog.OfWords)}, &clock{}, func(*faultlog.Fault) bool { return true })
	leave := func(page pagetable.Page) {
		l.leaves(page, protocol.EffectRevoke, 1)
		l.left(page, nil, 0)
	}
	for page := range pagetable.Page(2 * maxDeparted) {
		leave(page)
	}
	if len(l.departed) != maxDeparted || len(l.leaving) != 0 {
		t.Errorf("%d pages are remembered, and %d leave", len(l.departed), len(l.leaving))
	}
	for page := range pagetable.Page(2 * maxCompared) {
		l.freed(page, 1)
		leave(page)
		if l.compares(page) {
			t.Fatalf("page %d is compared, and has left once", page)
		}
		leave(page)
		if !l.compares(page) {
			t.Fatalf("page %d is not compared", page)
		}
		l.keep(page)
	}
	if len(l.before) != maxCompared || len(l.before)+len(l.spare) > maxCompared+1 {
		t.Errorf("%d pages are compared, with %d buffers more", len(l.before), len(l.spare))
	}
	for page := range pagetable.Page(2 * maxDeparted) {
		l.leaves(page, protocol.EffectDowngrade, protocol.NoNode)
	}
	if len(l.sealed) != maxDeparted {
		t.Errorf("%d pages are sealed", len(l.sealed))
	}
	if l.freed(0, 1<<40); len(l.before)+len(l.departed)+len(l.sealed) > 0 {
		t.Errorf("of freed memory %d pages are compared, %d remembered, and %d sealed", len(l.before), len(l.departed), len(l.sealed))
	}
}
