package dsm

import (
	"cmp"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"dsmd/internal/runstats"
)

const (
	// stuckAfter is how long a goroutine waits before the rank says so, and sayEvery how often it
	// does then.
	stuckAfter = 3 * time.Second
	sayEvery   = 3 * time.Second
	// idleShare is how much of a processor a rank may use that computes nothing.
	idleShare = 0.1
)

// watch says when this rank is stuck, until the account is closed.
func (a *account) watch(c *Cluster) {
	tick := time.NewTicker(sayEvery)
	defer tick.Stop()
	before, then := processorTime(), time.Now()
	for {
		select {
		case <-a.stop:
			return
		case <-c.done:
			return
		case <-tick.C:
		}
		used, now := processorTime(), time.Now()
		idle := (used - before).Seconds() < idleShare*now.Sub(then).Seconds()
		if before, then = used, now; !idle {
			continue
		}
		if s := a.stuck(c, now); len(s.Waits) > 0 {
			// A launcher that does not read it is stuck itself, or gone.
			_, _ = a.to.Write(s.Encode())
		}
	}
}

// stuck is what this rank waits for, and has, if a goroutine has waited for long.
func (a *account) stuck(c *Cluster, now time.Time) runstats.Stuck {
	s := runstats.Stuck{Rank: c.Rank()}
	a.mu.Lock()
	for w := range a.open {
		if waited := now.Sub(w.began); waited >= stuckAfter {
			s.Waits = append(s.Waits, runstats.Waiting{Kind: w.kind, Name: w.name, For: waited})
		}
	}
	for hash, name := range c.called.all() {
		if c.page.Held(hash) || c.holdings.has(hash) {
			s.Holds = append(s.Holds, name)
		}
	}
	a.mu.Unlock()
	slices.SortFunc(s.Waits, func(x, y runstats.Waiting) int { return cmp.Or(cmp.Compare(y.For, x.For), cmp.Compare(x.Name, y.Name)) })
	slices.Sort(s.Holds)
	if len(s.Waits) > 0 {
		lines := waitingLines()
		for i := range s.Waits {
			if at := lines[s.Waits[i].Kind]; len(at) == 1 {
				s.Waits[i].At = at[0]
			}
		}
	}
	return s
}

// callsOf are the functions of this package in which goroutines wait, by what for.
var callsOf = map[string]runstats.Kind{
	"dsmd/dsm.lock.acquire": runstats.Lock, "dsmd/dsm.lock.acquireRepair": runstats.Lock,
	"dsmd/dsm.(*Barrier).Wait": runstats.Barrier, "dsmd/dsm.meet": runstats.Barrier, "dsmd/dsm.gather": runstats.Barrier,
	"dsmd/dsm.(*Cluster).prefetch": runstats.Prefetch, "dsmd/dsm.Pin": runstats.Prefetch,
}

// waitingLines are the lines outside this package that wait in its calls, each once.
func waitingLines() map[runstats.Kind][]string {
	const more = 10 // goroutines that begin meanwhile
	records := make([]runtime.StackRecord, runtime.NumGoroutine()+more)
	n, ok := runtime.GoroutineProfile(records)
	if !ok {
		return nil
	}
	lines := map[runstats.Kind][]string{}
	for i := range records[:n] {
		kind, at := waitingLine(records[i].Stack())
		if at != "" && !slices.Contains(lines[kind], at) {
			lines[kind] = append(lines[kind], at)
		}
	}
	return lines
}

// waitingLine is what a goroutine waits for in a call, and the line that has made it.
func waitingLine(stack []uintptr) (kind runstats.Kind, at string) {
	for frames := runtime.CallersFrames(stack); ; {
		f, more := frames.Next()
		name, _, _ := strings.Cut(f.Function, "[") // a type's arguments
		if k, waits := callsOf[name]; waits {
			kind = k
		} else if kind != "" && !isOurs(f.Function) {
			return kind, fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return kind, ""
		}
	}
}
