package kernel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"dsmd/dsm"
)

// A Thread is one of a team's, as the body of a kernel sees it. Its methods belong to its
// goroutine. As the macros of the original programs do, they return no errors: what fails ends the
// thread, as t.Fatal ends a test, and with it the others, so that none waits at a barrier that will
// not fill.
type Thread struct {
	*Team
	Index int // 0 to Total-1

	ctx      context.Context
	progress Progress
	err      error
}

// run runs body once for each thread of this process, each in a goroutine, and returns when all
// have ended. All errors are joined. A thread that touches a lost page of shared memory ends there,
// with a *dsm.PageLostError.
func (t *Team) run(ctx context.Context, progress Progress, body func(t *Thread)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	threads := make([]Thread, t.Threads)
	var all sync.WaitGroup
	for i := range threads {
		self := &threads[i]
		*self = Thread{Team: t, Index: t.First + i, ctx: ctx}
		if i == 0 {
			self.progress = progress
		}
		all.Go(func() {
			defer func() {
				if self.err != nil {
					cancel(self.err)
				}
			}()
			if lost := dsm.Guard(func() { body(self) }); lost != nil {
				self.err = lost
			}
		})
	}
	all.Wait()
	return distinct(threads)
}

// distinct joins the threads' errors, leaving out repetitions of the one that cancelled the rest.
func distinct(threads []Thread) error {
	var kept []error
	for _, t := range threads {
		repeated := t.err == nil
		for _, k := range kept {
			repeated = repeated || errors.Is(t.err, k)
		}
		if !repeated {
			kept = append(kept, t.err)
		}
	}
	return errors.Join(kept...)
}

// Context ends when another thread has failed, or the measurement is over.
func (t *Thread) Context() context.Context { return t.ctx }

// Check ends the thread if there is an error. doing says what the thread did, and args what that
// mentions.
func (t *Thread) Check(err error, doing string, args ...any) {
	if err == nil {
		return
	}
	if t.err = context.Cause(t.ctx); t.err == nil || !errors.Is(err, t.err) {
		t.err = fmt.Errorf("thread %d, %s: %w", t.Index, fmt.Sprintf(doing, args...), err)
	}
	runtime.Goexit()
}

// GoOn ends the thread if its context has ended. A thread that computes for long without waiting
// for anybody calls it at times.
func (t *Thread) GoOn() {
	if t.ctx.Err() != nil {
		t.Check(context.Cause(t.ctx), "computing")
	}
}

// Wait waits at a barrier; where says which part of the program that is.
func (t *Thread) Wait(b Barrier, where string) {
	if err := b.Wait(t.ctx); err != nil {
		t.Check(err, "barrier %s", where)
	}
}

// Locked runs do while it holds the lock.
func (t *Thread) Locked(m Mutex, do func()) {
	t.Check(m.Lock(t.ctx), "locking")
	defer func() {
		if err := m.Unlock(); err != nil && t.err == nil {
			t.Check(err, "unlocking")
		}
	}()
	do()
}

// Fetch brings a part of the shared memory here at once, not page by page as it is touched.
func Fetch[T any](t *Thread, part []T, access dsm.Access) {
	if t.cluster != nil && len(part) > 0 {
		t.Check(dsm.Prefetch(t.ctx, t.cluster, part, access), "fetching")
	}
}

// Max is the largest x of all processes; one thread of each calls it.
func (t *Thread) Max(name string, x float64) float64 {
	if t.cluster == nil {
		return x
	}
	x, err := dsm.Reduce(t.ctx, t.cluster, name, x, dsm.Max[float64])
	t.Check(err, "finding the maximum of all ranks")
	return x
}

// Mine is the half-open range of n items that this thread works on.
func (t *Thread) Mine(n int) (lo, hi int) { return t.Block(n, t.Index) }

// Done says how many of the total steps are finished. What counts is what the first thread of each
// process says.
func (t *Thread) Done(steps, total int) { t.progress.Report(steps, total) }

// Spawn runs body by so many goroutines on ordinary memory, as Run.Compute runs a program.
func Spawn(ctx context.Context, threads int, body func(t *Thread)) error {
	return alone(threads).run(ctx, nil, body)
}
