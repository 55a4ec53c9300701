package dsm

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

// profiler collects where in the program threads wait, and for what, for `dsmd run --profile`.
type profiler struct {
	c *Cluster

	mu     sync.Mutex
	stacks *runstats.Stacks // guarded by mu
}

func newProfiler(c *Cluster) *profiler { return &profiler{c: c, stacks: runstats.NewStacks()} }

// faulted notes a wait for a page; stack is nil if it was not sampled.
func (p *profiler) faulted(f *faultlog.Fault, stack []uintptr) {
	pageBytes := uint64(p.c.welcome.PageBytes)
	m := p.c.memoryAt(uintptr(f.Page * pageBytes))
	if m == nil {
		return // freed since
	}
	w := runstats.Waits{
		Kind: runstats.Memory, Name: m.name, Access: f.Access.String(), Cause: p.cause(f), Stack: stack, Count: 1, Time: f.Waited,
	}
	if f.Contents {
		w.Bytes = int64(pageBytes)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stacks.Add(w)
}

// cause is why a page was not here, or not for writing.
func (p *profiler) cause(f *faultlog.Fault) string {
	who := func(node uint32) string {
		if p.c.Size() == p.c.Nodes() && p.c.Rank() == p.c.Node() { // each node has one rank
			return fmt.Sprintf("rank %d", node)
		}
		return fmt.Sprintf("node %d", node)
	}
	switch {
	case f.Taker != faultlog.NoNode && f.TakerAccess == faultlog.Read:
		return who(f.Taker) + " read"
	case f.Taker != faultlog.NoNode:
		return who(f.Taker) + " wrote"
	case f.Contents:
		return who(f.From) + " had it"
	case f.Access == faultlog.Upgrade:
		return "it was here for reading"
	}
	return "first touch"
}

// waited notes a wait in a call.
func (p *profiler) waited(x item, d time.Duration, stack []uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stacks.Add(x.waits(d, stack))
}

// waits is one wait in a call, as profiles have it.
func (x item) waits(d time.Duration, stack []uintptr) runstats.Waits {
	return runstats.Waits{Kind: x.kind, Name: x.name, Stack: stack, Count: 1, Time: d}
}

// maxDepth bounds the frames of a stack.
const maxDepth = 64

// callers is the stack of who waits. skip leaves the innermost frames away, depth the outermost.
func callers(skip, depth int) []uintptr {
	stack := make([]uintptr, depth)
	return stack[:runtime.Callers(skip+2, stack)]
}

// addTo adds what there is by now to a record, with the waits in calls that have not ended.
func (p *profiler) addTo(r *runstats.Record) {
	p.mu.Lock()
	stacks := p.stacks.Clone()
	p.mu.Unlock()
	for _, w := range p.c.attendant.waits.counted(time.Now()) {
		stacks.Add(w.item.waits(w.waited, w.stack))
	}
	if stacks.Waited() > 0 {
		stacks.Scale(r.FaultWait)
	} else { // the log is lost
		var sum time.Duration
		for _, x := range r.Memory {
			stacks.Add(runstats.Waits{Kind: runstats.Memory, Name: x.Name, Count: int64(x.Count), Time: x.Time})
			sum += x.Time
		}
		stacks.Scale(min(sum, r.FaultWait)) // the rest is that of others at this node
	}
	r.Profile = stacks.Profile()
}
