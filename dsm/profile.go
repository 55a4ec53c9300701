package dsm

import (
	"os"
	"runtime"
	"sync"
	"time"

	"dsmd/internal/perf"
	"dsmd/internal/runstats"
)

// profiler samples where in the program threads wait for pages, and notes where they wait in calls,
// for `dsmd run --profile`.
type profiler struct {
	c       *Cluster
	sampler *perf.Sampler // nil: the kernel does not let us
	note    string        // why
	stop    chan struct{}
	stopped sync.WaitGroup

	mu     sync.Mutex
	stacks *runstats.Stacks // guarded by mu
}

// samplePeriod: one of so many faults is sampled. With every one a program of many faults takes a
// tenth longer.
const samplePeriod = 7

// drainEvery is how often samples are taken from the kernel, which has room for some thousands of
// each processor.
const drainEvery = 50 * time.Millisecond

// openProfiler begins a profile, if `dsmd run` wants one.
func openProfiler(c *Cluster) *profiler {
	if os.Getenv(runstats.EnvProfile) == "" {
		return nil
	}
	p := &profiler{c: c, stop: make(chan struct{}), stacks: runstats.NewStacks()}
	var err error
	if p.sampler, err = perf.Open(samplePeriod); err != nil {
		p.note = "waits for pages have no stacks in the profile: " + err.Error()
		return p
	}
	p.stopped.Go(func() {
		tick := time.NewTicker(drainEvery)
		defer tick.Stop()
		for {
			p.drain()
			select {
			case <-tick.C:
			case <-p.stop:
				return
			}
		}
	})
	return p
}

// drain takes the samples that there are.
func (p *profiler) drain() {
	var stack []uintptr
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sampler.Drain(func(f *perf.Fault) {
		offset := uintptr(f.Address) - uintptr(p.c.region.base)
		if uint64(offset) >= p.c.welcome.RegionBytes {
			return // a fault on ordinary memory
		}
		m := p.c.memoryAt(offset)
		if m == nil {
			return // freed since
		}
		stack = stack[:0]
		for i, pc := range f.Stack {
			if i == 0 {
				pc++ // the instruction itself, not where a call returns to
			}
			stack = append(stack, uintptr(pc))
		}
		p.stacks.Add(runstats.Memory, m.name, stack, samplePeriod, 0)
	})
}

// waited notes a wait in a call.
func (p *profiler) waited(x item, d time.Duration, stack []uintptr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stacks.Add(x.kind, x.name, stack, 1, d)
}

// maxDepth bounds the frames of a stack.
const maxDepth = 64

// callers is the stack of who waits. skip leaves the innermost frames away.
func callers(skip int) []uintptr {
	stack := make([]uintptr, maxDepth)
	return stack[:runtime.Callers(skip+2, stack)]
}

// close ends the profile, and adds it to the record.
func (p *profiler) close(r *runstats.Record) {
	if p == nil {
		return
	}
	times := map[string]time.Duration{}
	var sum time.Duration
	for _, x := range r.Memory {
		times[x.Name], sum = x.Time, sum+x.Time
	}
	if r.FaultWait < sum { // the rest is that of others at this node
		for name, d := range times {
			times[name] = time.Duration(float64(d) * float64(r.FaultWait) / float64(sum))
		}
	}
	if p.sampler != nil {
		close(p.stop)
		p.stopped.Wait()
		p.drain()
		if p.sampler.Lost() > 0 {
			p.note = "some samples were lost, as there were more of them than the profile could take"
		}
		p.sampler.Close()
	} else {
		for _, x := range r.Memory {
			p.stacks.Add(runstats.Memory, x.Name, nil, int64(x.Count), 0)
		}
	}
	p.stacks.Divide(runstats.Memory, times)
	var err error
	if r.Profile, err = p.stacks.Profile(r.Rank); err != nil {
		p.note = err.Error()
	}
	r.Note = p.note
}
