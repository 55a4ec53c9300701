package node

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
)

// TestLedgerIsBounded: names are remembered, but not without end. What costs much is remembered,
// however late it comes, and all that is waited for counts.
func TestLedgerIsBounded(t *testing.T) {
	l := newLedger()
	pay := func(name string, d time.Duration) {
		l.pay(attach.WaitLock, l.entry(awaited{attach.WaitLock, name}), 1, d)
	}
	var all time.Duration
	for i := range 3 * maxEntries {
		d := time.Duration(i%maxEntries + 1)
		pay(fmt.Sprint(i), d)
		all += d
		if len(l.entries) > maxEntries {
			t.Fatalf("%d names are remembered", len(l.entries))
		}
	}
	pay("hot", time.Hour)
	all += time.Hour
	if got := time.Duration(l.all[attach.WaitLock].nanos.Load()); got != all {
		t.Errorf("%v in all, want %v", got, all)
	}
	list := l.list(0, nil)
	if list[0].Name != "hot" || list[0].Time != time.Hour || list[1].Time != maxEntries {
		t.Errorf("what cost most is %+v", list[:2])
	}
	held := map[string]bool{}
	for i := range maxEntries { // now somebody waits for each
		name := fmt.Sprint("held", i)
		if e := l.entry(awaited{attach.WaitLock, name}); e != nil {
			e.open.begin(0)
			held[name] = true
		}
	}
	for i := range maxEntries {
		if e := l.entry(awaited{attach.WaitLock, fmt.Sprint("more", i)}); e != nil && len(l.entries) > maxEntries {
			t.Fatalf("%d names are remembered", len(l.entries))
		}
	}
	for name := range held {
		if l.entries[awaited{attach.WaitLock, name}] == nil {
			t.Fatalf("%s was forgotten while somebody waits for it", name)
		}
	}
}

// TestLedgerSeries: a scrape has a bounded number of names, each series only grows, and together
// they have all that was waited for since the last scrape.
func TestLedgerSeries(t *testing.T) {
	l := newLedger()
	var paid uint64
	before := map[series]costs{}
	for round := range uint64(40) {
		var since uint64
		for i := range uint64(3 * mostSeries) {
			// in each round others cost most
			d := 1 + (i+17*round)%(3*mostSeries)*round
			l.pay(attach.WaitLock, l.entry(awaited{attach.WaitLock, fmt.Sprintf("\x00job\x00lock%d", i)}), 1, time.Duration(d))
			since += d
		}
		l.pay(attach.WaitLock, nil, 1, 5)
		since += 5
		now := l.series()
		var grown uint64
		for x, c := range now {
			was, known := before[x]
			if c.nanos < was.nanos || c.waits < was.waits {
				t.Fatalf("round %d: %v goes from %v to %v", round, x, was, c)
			}
			if known || x.name == othersName || round == 0 {
				grown += c.nanos - was.nanos
			}
		}
		if paid += since; grown > since {
			t.Fatalf("round %d: the series that were there before have grown by %d, and %d was waited", round, grown, since)
		}
		if n := len(now); n > mostSeries+int(attach.WaitKinds) {
			t.Fatalf("round %d: %d series", round, n)
		}
		maps.Copy(before, now)
	}
	var total uint64
	for _, c := range before { // the last that was seen of each
		total += c.nanos
	}
	if total != paid {
		t.Errorf("the series have %d in all, and %d was waited", total, paid)
	}
	// What loses its entry does not come once more, among the others.
	l.pay(attach.WaitLock, l.entry(awaited{attach.WaitLock, "late"}), 1, 3)
	others := series{attach.WaitLock, "", othersName}
	l.prune()
	if was, now := before[others], l.series()[others]; now.nanos != was.nanos+3 || now.waits != was.waits+1 {
		t.Errorf("the others go from %v to %v", was, now)
	}
}

// TestLedgerTakesAnyName: what a program may choose as a name, a scrape can have as a label.
func TestLedgerTakesAnyName(t *testing.T) {
	l := newLedger()
	for _, name := range []string{"", othersName, "\xff", "\xfe", strings.Repeat("n", attach.MaxName), "\x00" + strings.Repeat("j", 200) + "\x00x"} {
		l.pay(attach.WaitMemory, l.entry(awaited{attach.WaitMemory, name}), 1, 1)
	}
	if n := l.series()[series{attach.WaitMemory, "", "?"}].waits; n != 2 {
		t.Errorf("two names that are no text have %d waits", n)
	}
	if n := l.series()[series{attach.WaitMemory, "", othersName}].waits; n != 1 {
		t.Errorf("one that is called as the others has %d waits", n)
	}
	var paid tolls = newTolls(newPageWaits())
	paid.ledger = l
	attach.AppendWaits(nil, paid.waits(0)) // panics if a name is too long
}

// TestWaits: an observer learns of waits that are over and of those that are not, by program and by
// what is waited for.
func TestWaits(t *testing.T) {
	var extents readahead.Extents
	extents.Add(10, 5, "grid")
	waiting := newPageWaits()
	paid := newTolls(waiting)
	paid.extents = &extents
	paid.attached(1)
	var waits wait
	waits.join(&pagetable.Event{Page: 11, Proc: 1, Thread: 7}, 100)
	waiting.away[11] = waits
	entry := paid.ledger.entry(awaited{attach.WaitLock, "\x00job\x00queue"})
	over, open := callWait{1, attach.WaitLock, entry, 100}, callWait{1, attach.WaitLock, entry, 200}
	nameless := callWait{1, attach.WaitReduction, nil, 250}
	paid.beginCall(over)
	paid.beginCall(open)
	paid.beginCall(nameless)
	paid.endCall(over, 50)
	paid.taken(12)
	paid.taken(99)
	memory, lock, reduction := attach.Cost{Count: 1, Time: 200}, attach.Cost{Count: 2, Time: 150}, attach.Cost{Count: 1, Time: 50}
	all := [attach.WaitKinds]attach.Cost{attach.WaitMemory: memory, attach.WaitLock: lock, attach.WaitReduction: reduction}
	w := paid.waits(300)
	if w.All != all || w.Taken != 2 || len(w.List) != 2 {
		t.Fatalf("%+v", w)
	}
	for i, want := range []attach.Awaited{
		{Kind: attach.WaitMemory, Name: "grid", Cost: memory, Taken: 1}, {Kind: attach.WaitLock, Job: "job", Name: "queue", Cost: lock},
	} {
		if w.List[i] != want {
			t.Errorf("%+v, want %+v", w.List[i], want)
		}
	}
	if own := paid.ownWaits(300)(1); own != all {
		t.Errorf("the program has %v, want %v", own, all)
	}
	delete(waiting.away, 11)
	paid.pay(11, &waits.queue, 300)
	paid.endCall(open, 100)
	paid.endCall(nameless, 50)
	if w := paid.waits(1000); w.All != all || w.List[0].Cost != memory || w.List[1].Cost != lock {
		t.Errorf("when all is over: %+v", w)
	}
	if paid.detached(1); paid.ownWaits(1000)(1) != [attach.WaitKinds]attach.Cost{} {
		t.Error("a program that is gone is remembered")
	}
}

// named tells the daemon what a program calls a lock or barrier.
func (p *prog) named(hash uint64, name string) {
	p.Helper()
	p.ok(attach.Call{Op: attach.OpName, Object: hash, Name: name})
}

func (m *member) waits() attach.Waits {
	m.Helper()
	w, err := attach.DecodeWaits(m.observe(attach.OpWaits))
	if err != nil {
		m.Fatal(err)
	}
	return w
}

// TestWaitsOfCalls: an observer learns which locks, barriers and reductions programs wait for, by
// the names that they have told, while they wait and when they are gone. A program tells a bounded
// number of names.
func TestWaitsOfCalls(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	a, b := m.join(), m.join()
	const barrier, reduction = 77, 78
	b.named(lockName, "queue")
	b.named(barrier, "")
	b.named(reduction, "sum")
	a.acquire(lockName, attach.Write)
	_, locked := b.call(attach.Call{Op: attach.OpAcquire, Object: lockName, Access: attach.Write})
	_, arrived := b.call(attach.Call{Op: attach.OpArrive, Object: barrier, Parties: 2})
	b.call(attach.Call{Op: attach.OpArrive, Object: reduction, Parties: 2, Payload: []byte("value")})
	b.sync()
	w := m.waits()
	if len(w.List) != 3 || w.List[0].Kind != attach.WaitLock || w.List[0].Name != "queue" || w.List[0].Count != 1 || w.List[0].Time <= 0 || w.List[1].Kind != attach.WaitBarrier || w.List[1].Name != "" ||
		w.List[2].Kind != attach.WaitReduction || w.List[2].Name != "sum" {
		t.Errorf("while b waits: %+v", w)
	}
	if all := w.All; all[attach.WaitLock].Count != 2 || all[attach.WaitBarrier].Count != 1 || all[attach.WaitReduction].Count != 1 || all[attach.WaitLock].Time < w.List[0].Time {
		t.Errorf("in all: %+v", all)
	}
	programs, err := attach.DecodePrograms(m.observe(attach.OpPrograms))
	if err != nil || programs.Attached[1].Waits[attach.WaitBarrier].Time <= 0 || programs.Attached[0].Waits[attach.WaitBarrier].Count != 0 {
		t.Errorf("of the programs: %+v, %v", programs, err)
	}
	a.release(lockName, attach.Write)
	b.answer(locked)
	b.die()
	_ = arrived
	eventually(t, "b is gone", func() bool { p, _ := attach.DecodePrograms(m.observe(attach.OpPrograms)); return len(p.Attached) == 1 })
	first, second := m.waits(), m.waits()
	if first.List[1] != second.List[1] || first.All != second.All || first.All[attach.WaitBarrier].Count != 1 {
		t.Errorf("a program that is gone waits on: %+v, then %+v", first, second)
	}
	d := m.join()
	for i := range uint64(attach.MaxNames) {
		d.named(1000+i, fmt.Sprint("lock", i))
	}
	d.named(lockName, "one too many")
	d.acquire(lockName, attach.Write)
	d.acquire(1000, attach.Write)
	for _, x := range m.waits().List {
		if x.Name == "one too many" {
			t.Errorf("%+v: more names are kept than may be", x)
		}
	}
}
