package node

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/attach"
)

// ledger has what waits of this node's threads have cost, in all and by what was waited for. The
// reactor writes it; anybody may read the sums, and with mu which entries there are.
type ledger struct {
	all      [attach.WaitKinds]cost
	nameless [attach.WaitKinds]entry // of all, what has no entry

	// mu is held for as long as it takes to sort the entries. The reactor needs it for a new name.
	mu      sync.Mutex
	entries map[awaited]*entry
	// hidden is what no scrape shows under a name of its own; guarded by mu.
	hidden [attach.WaitKinds]costs
	others []*ledger // of the reactors that this one's leads
}

// awaited is what threads wait for.
type awaited struct {
	kind attach.WaitKind
	name string // with that of its job, as the cluster knows it
}

// cost is what waits have cost that are over.
type cost struct {
	waits, nanos atomic.Uint64 // summed over threads
	// taken are pages, by writers on other nodes, before anybody here had synchronised.
	taken atomic.Uint64
}

// costs are those of one moment.
type costs struct{ waits, nanos, taken uint64 }

func (c *cost) now() costs { return costs{c.waits.Load(), c.nanos.Load(), c.taken.Load()} }

func (c *cost) add(waits uint64, d time.Duration) {
	c.waits.Add(waits)
	c.nanos.Add(uint64(max(d, 0)))
}

func (c costs) plus(x costs) costs {
	return costs{c.waits + x.waits, c.nanos + x.nanos, c.taken + x.taken}
}

func (c costs) minus(x costs) costs {
	return costs{c.waits - x.waits, c.nanos - x.nanos, c.taken - x.taken}
}

// entry is what waits for one thing have cost.
type entry struct {
	cost
	open running // the reactor's
	// seen is what it was at the last scrape, and hidden the part of it that scrapes have among the
	// others; guarded by ledger.mu.
	seen, hidden costs
}

// running are waits that are not over.
type running struct {
	threads int
	began   time.Duration // summed over them
}

func (r *running) begin(now time.Duration) {
	r.threads++
	r.began += now
}

func (r *running) end(began time.Duration) {
	r.threads--
	r.began -= began
}

// until is what they have cost so far.
func (r *running) until(now time.Duration) attach.Cost {
	return attach.Cost{Count: uint64(r.threads), Time: time.Duration(r.threads)*now - r.began}
}

// maxEntries bounds what a ledger has entries for. When that is not enough, what has cost least
// loses its entry, so what costs much has one, however late it comes.
const maxEntries = 1024

func newLedger() *ledger { return &ledger{entries: map[awaited]*entry{}} }

// entry is that of something; nil if there is no room for another.
func (l *ledger) entry(what awaited) *entry {
	if e := l.entries[what]; e != nil {
		return e
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.entries) >= maxEntries && !l.prune() {
		return nil
	}
	e := new(entry)
	l.entries[what] = e
	return e
}

// prune drops the entries that have cost least, half of all, but none of what somebody waits for.
// It returns whether there were any. Preconditions: mu is held.
func (l *ledger) prune() bool {
	var idle []awaited
	for what, e := range l.entries {
		if e.open.threads == 0 {
			idle = append(idle, what)
		}
	}
	slices.SortFunc(idle, func(a, b awaited) int { return cmp.Compare(l.entries[a].nanos.Load(), l.entries[b].nanos.Load()) })
	idle = idle[:min(len(idle), maxEntries/2)]
	for _, what := range idle {
		e := l.entries[what]
		l.hidden[what.kind] = l.hidden[what.kind].plus(e.now().minus(e.seen))
		delete(l.entries, what)
	}
	return len(idle) > 0
}

// pay notes that waits are over; e is nil if it is not known what for.
func (l *ledger) pay(kind attach.WaitKind, e *entry, waits uint64, d time.Duration) {
	l.all[kind].add(waits, d)
	if e == nil {
		e = &l.nameless[kind]
	}
	e.add(waits, d)
}

// take notes that a page was taken.
func (l *ledger) take(e *entry) {
	l.all[attach.WaitMemory].taken.Add(1)
	if e == nil {
		e = &l.nameless[attach.WaitMemory]
	}
	e.taken.Add(1)
}

// list is what has been waited for, by kind, and within one by what it has cost, most first.
// pending is what waits have cost that are not over and that the entries do not know.
func (l *ledger) list(now time.Duration, pending map[*entry]attach.Cost) (list []attach.Awaited) {
	for what, e := range l.entries {
		c := e.now()
		job, name := divide(what.name)
		x := attach.Awaited{Kind: what.kind, Job: job, Name: name, Cost: attach.Cost{Count: c.waits, Time: time.Duration(c.nanos)}, Taken: c.taken}
		x.Add(e.open.until(now))
		x.Add(pending[e])
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b attach.Awaited) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Time, a.Time), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// divide takes a name apart into that of its job, as far as a program may be told it, and what
// programs call it.
func divide(name string) (job, plain string) {
	plain = plainName(name)
	job = strings.Trim(name[:len(name)-len(plain)], "\x00")
	return job[:min(len(job), attach.MaxJob)], plain
}

// maxCounterName bounds how much of a name a Stats call is told, in bytes.
const maxCounterName = 200

const (
	// mostAwaited and mostTaken bound the allocations that a Stats call is told of: those that were
	// waited for longest, and those of which most pages were taken.
	mostAwaited = 16
	mostTaken   = 8
)

// counters are what a Stats call is told of allocations. Those that programs of different jobs have
// called the same are one.
func (l *ledger) counters() (list []attach.Counter) {
	sums := map[string]costs{}
	for what, e := range l.entries {
		if what.kind == attach.WaitMemory {
			name := plainName(what.name)
			name = name[:min(len(name), maxCounterName)]
			sums[name] = sums[name].plus(e.now())
		}
	}
	most := func(n int, of func(costs) uint64) []string {
		names := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Or(cmp.Compare(of(sums[b]), of(sums[a])), cmp.Compare(a, b)) })
		names = names[:min(len(names), n)]
		return slices.DeleteFunc(names, func(name string) bool { return of(sums[name]) == 0 })
	}
	for _, name := range most(mostTaken, func(c costs) uint64 { return c.taken }) {
		list = append(list, attach.Counter{Name: attach.ContendedIn + name, Value: sums[name].taken})
	}
	for _, name := range most(mostAwaited, func(c costs) uint64 { return c.nanos }) {
		list = append(list, attach.Counter{Name: attach.WaitsIn + name, Value: sums[name].waits}, attach.Counter{Name: attach.WaitIn + name, Value: sums[name].nanos})
	}
	return list
}
