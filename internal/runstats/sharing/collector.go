package sharing

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// A collector's memory is bounded, whatever the length of the run. When there is more than this,
// the half that matters least goes.
const (
	maxPages     = 2048
	maxWordBytes = 32 << 20 // for counts of words, which pages of many nodes have much of
	maxCalls     = 128      // the last calls of a rank
	maxName      = 200      // bytes of a name, or of a line's place
	maxFields    = 64       // of a struct
)

// What is beyond these is no memory of a node.
const (
	maxPlace     = 1 << 40 // pages
	maxPageBytes = 2 << 20
)

// Collector takes the pieces of a run. It may be used by several goroutines at a time.
type Collector struct {
	mu        sync.Mutex
	memory    runstats.Allocations[*runstats.Allocation]
	pages     map[key]*page
	wordBytes int
	ranks     map[int]*rank
	departed  map[int]uint64 // up to where each node's departures are known

	faults    uint64
	waited    time.Duration
	forgotten uint64
	lost      uint64
	gaps      map[int]*faultlog.Gaps // by node
}

// key is a page. Its number alone does not do, because memory is freed, and allocated again.
type key struct {
	memory string // the allocation's name
	number uint64
}

// rank is what is known of a rank.
type rank struct {
	node  int
	calls []call // that have ended last, in that order; at most maxCalls
	// overlap is whether calls of the rank wait at the same time: then the thread says whose a
	// fault is. Else it says little, because goroutines change threads.
	overlap bool
}

// call is a wait that is over: for a lock that the rank has from then on, or, with no name, for
// something else, at which it has none.
type call struct {
	began, end int64
	thread     int
	lock       string
}

// NewCollector returns a collector that knows nothing.
func NewCollector() *Collector {
	return &Collector{pages: map[key]*page{}, ranks: map[int]*rank{}, departed: map[int]uint64{}, gaps: map[int]*faultlog.Gaps{}}
}

// Add takes a piece. Those of one rank have to come in order. A log that is none is left out.
func (c *Collector) Add(p runstats.Piece) {
	log, _ := faultlog.Decode(p.Log)
	c.add(&p, &log)
}

func (c *Collector) add(p *runstats.Piece, log *faultlog.Batch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range p.Memory {
		c.allocated(m)
	}
	r := c.ranks[p.Rank]
	if r == nil {
		r = &rank{node: p.Node} // it stays there, whatever it says
		c.ranks[p.Rank] = r
	}
	r.called(p.Calls)
	if c.gaps[r.node] == nil {
		c.gaps[r.node] = &faultlog.Gaps{}
	}
	c.lost += c.gaps[r.node].Add(log)
	for i := range log.Faults {
		f := &log.Faults[i]
		c.faults++
		c.waited += f.Waited
		c.page(f.Page).fault(f, p.Rank, r.node, r.lockAt(f, p.Locks))
	}
	r.forget()
	c.depart(r.node, log)
	for i := range p.Sites {
		s := &p.Sites[i]
		if u := c.page(s.Page).by(r.node); u != nil {
			u.seen(s)
		}
	}
}

// depart takes the departures of a node that no other of its ranks has passed on.
func (c *Collector) depart(node int, log *faultlog.Batch) {
	for i := range log.Departures {
		d := &log.Departures[i]
		if d.Written == nil || d.Place < c.departed[node] {
			continue
		}
		p := c.page(d.Page)
		words := min(len(d.Written)*64, int(p.bytes()/wordBytes))
		if u := p.by(node); u != nil {
			c.wordBytes += u.changed(d.Written, words)
		}
	}
	c.departed[node] = max(c.departed[node], log.Next)
}

// allocated takes an allocation, of which it keeps what is short.
func (c *Collector) allocated(m runstats.Allocation) {
	if m.First > maxPlace || m.Pages > maxPlace || m.PageBytes > maxPageBytes {
		return // no node has such memory
	}
	m.Name, m.Type, m.Fields = runstats.Short(m.Name), runstats.Short(m.Type), slices.Clone(m.Fields[:min(len(m.Fields), maxFields)])
	for i := range m.Fields {
		m.Fields[i].Name = runstats.Short(m.Fields[i].Name)
	}
	c.memory.Add(&m)
}

// page returns what is known of a page.
func (c *Collector) page(number uint64) *page {
	k := key{number: number}
	memory := c.memory.Find(number)
	if memory != nil {
		k.memory = memory.Name
	}
	p := c.pages[k]
	if p == nil {
		if len(c.pages) >= maxPages || c.wordBytes > maxWordBytes {
			c.forget()
		}
		p = &page{number: number, memory: memory}
		c.pages[k] = p
	}
	return p
}

// forget forgets the half of the pages that matters least: those that never came back, and then
// those that cost least.
func (c *Collector) forget() {
	list := slices.SortedFunc(maps.Keys(c.pages), func(a, b key) int {
		p, q := c.pages[a], c.pages[b]
		return cmp.Or(cmp.Compare(min(p.returns, 1), min(q.returns, 1)), cmp.Compare(p.waited, q.waited), cmp.Compare(a.number, b.number))
	})
	list = list[:(len(list)+1)/2]
	for _, k := range list {
		for _, u := range c.pages[k].users {
			c.wordBytes -= 2 * len(u.written)
		}
		delete(c.pages, k)
	}
	c.forgotten += uint64(len(list))
}

// called takes calls that have ended.
func (r *rank) called(calls []runstats.Call) {
	for i := range calls {
		x := &calls[i]
		ended := call{began: x.Began, end: x.Began + int64(x.Waited), thread: x.Thread}
		switch x.Kind {
		case runstats.Lock:
			ended.lock = runstats.Short(x.Name)
		case runstats.Barrier, runstats.Reduction:
		default:
			continue
		}
		r.calls = append(r.calls, ended)
	}
	slices.SortStableFunc(r.calls, func(a, b call) int { return cmp.Compare(a.end, b.end) })
	for i := 1; i < len(r.calls); i++ {
		if r.calls[i].began < r.calls[i-1].end {
			r.overlap = true
		}
	}
}

// forget forgets calls that no later piece is about.
func (r *rank) forget() { r.calls = slices.Clone(r.calls[max(0, len(r.calls)-maxCalls):]) }

// lockAt returns the lock that a program had when it faulted, or that its thread had taken last in
// a call; "": none is known.
func (r *rank) lockAt(f *faultlog.Fault, names map[uint64]string) string {
	if f.Lock != 0 {
		return runstats.Short(names[f.Lock])
	}
	later, _ := slices.BinarySearchFunc(r.calls, f.Began+1, func(x call, t int64) int { return cmp.Compare(x.end, t) })
	for i := later - 1; i >= 0; i-- {
		if x := &r.calls[i]; !r.overlap || f.Thread == 0 || x.thread == int(f.Thread) {
			return x.lock
		}
	}
	return ""
}
