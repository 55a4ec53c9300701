package node

import (
	"time"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
)

// tolls are how long threads wait for pages, locks, barriers and commits: of each program, and for
// each of them. Each thread counts, also where several wait for one page, or for one that was asked
// for ahead of them.
type tolls struct {
	extents *readahead.Extents
	waiting *pageWaits // what is waited for now
	own     map[pagetable.ProcID]*ownTolls
	ledger  *ledger
}

// ownTolls are those of one program.
type ownTolls [attach.WaitKinds]struct {
	paid attach.Cost
	open running
}

func newTolls(waiting *pageWaits) tolls {
	return tolls{waiting: waiting, own: map[pagetable.ProcID]*ownTolls{}, ledger: newLedger()}
}

// pay notes that a page is here that threads have waited for.
func (t *tolls) pay(page pagetable.Page, q *queue, now time.Duration) {
	paid := q.until(now)
	t.of(q.proc)[attach.WaitMemory].paid.Add(paid)
	t.ledger.pay(attach.WaitMemory, t.entryOf(page), paid.Count, paid.Time)
}

// taken notes that a writer on another node took a page before anybody here had synchronised.
func (t *tolls) taken(page pagetable.Page) {
	t.ledger.take(t.entryOf(page))
}

// entryOf is the entry of the allocation with a page, or nil.
func (t *tolls) entryOf(page pagetable.Page) *entry {
	if extent := t.extents.Find(page); extent != nil {
		return t.ledger.entry(awaited{attach.WaitMemory, extent.Name})
	}
	return nil
}

// attached remembers a program from now on, and detached forgets it.
func (t *tolls) attached(proc pagetable.ProcID) { t.own[proc] = new(ownTolls) }

func (t *tolls) detached(proc pagetable.ProcID) { delete(t.own, proc) }

// of are the tolls of a program. What one pays that is gone is nobody's own.
func (t *tolls) of(proc pagetable.ProcID) *ownTolls {
	if own := t.own[proc]; own != nil {
		return own
	}
	return new(ownTolls)
}

// callWait is a call that waits for a lock, barrier or commit.
type callWait struct {
	proc  pagetable.ProcID
	kind  attach.WaitKind
	entry *entry // nil: the daemon was not told what it is called, or has no room for that
	since time.Duration
}

// beginCall notes that a call waits.
func (t *tolls) beginCall(w callWait) {
	t.of(w.proc)[w.kind].open.begin(w.since)
	if w.entry != nil {
		w.entry.open.begin(w.since)
	}
}

// endCall notes that a call has waited for so long.
func (t *tolls) endCall(w callWait, waited time.Duration) {
	own := &t.of(w.proc)[w.kind]
	own.open.end(w.since)
	own.paid.Add(attach.Cost{Count: 1, Time: waited})
	if w.entry != nil {
		w.entry.open.end(w.since)
	}
	t.ledger.pay(w.kind, w.entry, 1, waited)
}

// counters are what a program's Stats call is told: of itself, and of the allocations that cost
// most.
func (t *tolls) counters(proc pagetable.ProcID) (list []attach.Counter) {
	if paid := t.of(proc)[attach.WaitMemory].paid; paid.Count > 0 {
		list = append(list, attach.Counter{Name: attach.OwnWaits, Value: paid.Count}, attach.Counter{Name: attach.OwnWait, Value: uint64(paid.Time)})
	}
	return append(list, t.ledger.counters()...)
}

// unpaid are waits for pages that are not over: in all, by program, and by allocation.
type unpaid struct {
	all attach.Cost
	of  map[pagetable.ProcID]attach.Cost
	in  map[*entry]attach.Cost
}

// maxUnpaid bounds the pages whose waits are looked at, which holds up the reactor.
const maxUnpaid = 1024

func (t *tolls) unpaid(now time.Duration) unpaid {
	u := unpaid{of: map[pagetable.ProcID]attach.Cost{}, in: map[*entry]attach.Cost{}}
	seen := 0
	for page, q := range t.waiting.all() {
		if seen++; seen > maxUnpaid {
			break
		}
		c := q.until(now)
		u.all.Add(c)
		u.of[q.proc] = sum(u.of[q.proc], c)
		if e := t.entryOf(page); e != nil {
			u.in[e] = sum(u.in[e], c)
		}
	}
	return u
}

func sum(a, b attach.Cost) attach.Cost {
	a.Add(b)
	return a
}

// waits are what threads of this node have waited for, as an observer is told.
func (t *tolls) waits(now time.Duration) *attach.Waits {
	pending := t.unpaid(now)
	w := &attach.Waits{Taken: t.ledger.all[attach.WaitMemory].taken.Load()}
	for kind := range w.All {
		c := t.ledger.all[kind].now()
		w.All[kind] = attach.Cost{Count: c.waits, Time: time.Duration(c.nanos)}
		for _, own := range t.own {
			w.All[kind].Add(own[kind].open.until(now))
		}
	}
	w.All[attach.WaitMemory].Add(pending.all)
	var listed [attach.WaitKinds]int
	for _, x := range t.ledger.list(now, pending.in) {
		if listed[x.Kind]++; listed[x.Kind] <= attach.MaxAwaited {
			w.List = append(w.List, x)
		}
	}
	return w
}

// ownWaits are those of each program, as an observer is told.
func (t *tolls) ownWaits(now time.Duration) func(pagetable.ProcID) [attach.WaitKinds]attach.Cost {
	pending := t.unpaid(now)
	return func(proc pagetable.ProcID) (w [attach.WaitKinds]attach.Cost) {
		own := t.of(proc)
		for kind := range w {
			w[kind] = sum(own[kind].paid, own[kind].open.until(now))
		}
		w[attach.WaitMemory].Add(pending.of[proc])
		return w
	}
}
