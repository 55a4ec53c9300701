package dsm

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/callsite"
	"dsmd/internal/runstats"
)

// wait is a goroutine that waits in a call.
type wait struct {
	item
	object  uint64 // what it waits for, as the daemon calls it
	parties int    // who meet there, of a barrier or reduction
	ranks   bool   // and that is one of each rank
	// uncounted: it is no part of the account, because others may be part of it, or it of another.
	uncounted bool
	began     time.Time
	site      callsite.Site
	thread    int                    // as the kernel numbers it; 0 without a tracer
	stack     []uintptr              // return addresses; nil without a tracer
	why       atomic.Pointer[string] // who is in the way, when it is given up
}

// waits are those that have not ended.
type waits struct {
	mu   sync.Mutex
	open map[*wait]struct{} // guarded by mu
}

// begin begins a wait of the caller.
//
//go:noinline
func (a *attendant) begin(w *wait) *wait {
	callsite.Note(&w.site, 0, callsite.Far)
	w.began = time.Now()
	if !w.uncounted {
		a.c.account.Load().begins(w)
	}
	a.waits.mu.Lock()
	defer a.waits.mu.Unlock()
	a.waits.open[w] = struct{}{}
	return w
}

// end ends a wait.
func (a *attendant) end(w *wait) {
	a.waits.mu.Lock()
	delete(a.waits.open, w)
	a.waits.mu.Unlock()
	if !w.uncounted {
		a.c.account.Load().waited(w, time.Since(w.began))
	}
}

// Waiting announces that the calling goroutine waits, in code on top of this package, for something
// that other goroutines or ranks have to do. what completes the sentence "rank 0 waits": `for an
// item of queue "jobs"`. Until done is called this is a wait like that for a lock: `dsmd stacks`
// tells it, and so does what is said when nothing in the job moves, with the line of the program.
// It is not part of Stats.
//
// Who meets all ranks at the same line of the program, by a barrier or a reduction, is said to wait
// for what was announced, and for the ranks that are not there.
//
// Announce a wait when it has lasted for a while: it takes about a microsecond. The goroutine may
// call this package meanwhile. done is called once.
func Waiting(c *Cluster, what string) (done func()) {
	w := c.attendant.begin(&wait{item: item{runstats.Announced, what}, uncounted: true})
	return func() { c.attendant.end(w) }
}

// list is what is waited for now, the longest first.
func (o *waits) list(now time.Time) (list []runstats.Wait) {
	o.mu.Lock()
	for w := range o.open {
		list = append(list, w.stated(now))
	}
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b runstats.Wait) int { return cmp.Or(cmp.Compare(b.For, a.For), cmp.Compare(a.Name, b.Name)) })
	return list
}

// counted are those that are part of the account, as if they ended now.
func (o *waits) counted(now time.Time) (list []endedWait) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for w := range o.open {
		if !w.uncounted {
			list = append(list, endedWait{w, now.Sub(w.began)})
		}
	}
	return list
}

// longest is since when the longest wait lasts; none: the zero time.
func (o *waits) longest() (began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for w := range o.open {
		if began.IsZero() || w.began.Before(began) {
			began = w.began
		}
	}
	return began
}

func (w *wait) stated(now time.Time) runstats.Wait {
	return runstats.Wait{Kind: w.kind, Name: w.name, Object: w.object, For: now.Sub(w.began), At: w.site.Line(isOwn), Parties: w.parties, Ranks: w.ranks}
}

// give notes who is in the way; "": nobody knows.
func (w *wait) give(why string) {
	if why != "" {
		w.why.Store(&why)
	}
}

// gaveUp says for how long something was waited for, and why in vain. w may be nil.
func (w *wait) gaveUp(began time.Time, err error) error {
	text := ""
	if w != nil {
		if why := w.why.Load(); why != nil {
			text = " " + *why
		}
	}
	return fmt.Errorf("waited %v%s: %w", time.Since(began).Round(time.Millisecond), text, err)
}
