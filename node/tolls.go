package node

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
)

// tolls are how long threads wait for pages: of each program, and in each allocation. Each thread
// counts, also where several wait for one page, or for one that was asked for ahead of them.
type tolls struct {
	extents *readahead.Extents
	own     map[pagetable.ProcID]toll
	in      map[string]toll // by the name of the allocation
}

// toll is what was paid.
type toll struct {
	faults uint64
	wait   time.Duration
}

// plus is both together.
func (t toll) plus(u toll) toll { return toll{t.faults + u.faults, t.wait + u.wait} }

// maxTolls bounds the names that are remembered, also those of allocations that were freed.
const maxTolls = 1024

// mostTolls bounds the allocations that a Stats call is told of.
const mostTolls = 16

func newTolls() tolls {
	return tolls{own: map[pagetable.ProcID]toll{}, in: map[string]toll{}}
}

// pay notes that a page is here that threads have waited for.
func (t *tolls) pay(page pagetable.Page, q *queue, now time.Duration) {
	paid := toll{uint64(q.threads), time.Duration(q.threads)*now - q.began}
	t.own[q.proc] = t.own[q.proc].plus(paid)
	extent := t.extents.Find(page)
	if extent == nil {
		return
	}
	in, known := t.in[extent.Name]
	if !known && len(t.in) >= maxTolls {
		return
	}
	t.in[extent.Name] = in.plus(paid)
}

// detached forgets a program.
func (t *tolls) detached(proc pagetable.ProcID) { delete(t.own, proc) }

// counters are what a program's Stats call is told: of itself, and of the allocations that cost
// most. Those that programs of different jobs have called the same are one.
func (t *tolls) counters(proc pagetable.ProcID) []attach.Counter {
	var list []attach.Counter
	if own := t.own[proc]; own.faults > 0 {
		list = append(list, attach.Counter{Name: attach.OwnWaits, Value: own.faults}, attach.Counter{Name: attach.OwnWait, Value: uint64(own.wait)})
	}
	sums := map[string]toll{}
	for name, paid := range t.in {
		name = plainName(name)
		name = name[:min(len(name), maxContendedName)]
		sums[name] = sums[name].plus(paid)
	}
	names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Or(cmp.Compare(sums[b].wait, sums[a].wait), cmp.Compare(a, b)) })
	for _, name := range names[:min(len(names), mostTolls)] {
		list = append(list, attach.Counter{Name: attach.WaitsIn + name, Value: sums[name].faults}, attach.Counter{Name: attach.WaitIn + name, Value: uint64(sums[name].wait)})
	}
	return list
}
