package kernel

import (
	"context"
	"errors"
	"sync"

	"dsmd/dsm"
)

// Barrier makes threads wait for each other. *dsm.Barrier is one for threads of all nodes, and
// NewBarrier makes one for goroutines on ordinary memory; the body of a kernel is given either.
type Barrier interface {
	// Wait returns nil once every party has called it, or ctx's error.
	Wait(ctx context.Context) error
}

// NewBarrier returns a Barrier for goroutines of one process. A party that gives up because its context
// is done leaves the barrier unusable: the others must be cancelled by the same context, as Spawn does.
// parties must be at least 1.
func NewBarrier(parties int) Barrier {
	return &localBarrier{parties: parties, release: make(chan struct{})}
}

type localBarrier struct {
	parties int

	mu      sync.Mutex
	waiting int           // guarded by mu
	release chan struct{} // closed when the present round is complete; guarded by mu
}

func (b *localBarrier) Wait(ctx context.Context) error {
	b.mu.Lock()
	release := b.release
	b.waiting++
	if b.waiting == b.parties {
		b.waiting = 0
		b.release = make(chan struct{})
		close(release)
	}
	b.mu.Unlock()
	select {
	case <-release:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Spawn runs body once per thread, 0 to threads-1, each in a goroutine, and returns when all have
// returned. The first error cancels the context of the others, so that none waits at a barrier that
// will not fill. All errors are joined. A thread that touches a lost page of shared memory ends there, with a *dsm.PageLostError.
func Spawn(ctx context.Context, threads int, body func(ctx context.Context, thread int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, threads)
	var all sync.WaitGroup
	for thread := range threads {
		all.Go(func() {
			var err error
			if lost := dsm.Guard(func() { err = body(ctx, thread) }); lost != nil {
				err = lost
			}
			if err != nil {
				errs[thread] = err
				cancel(err)
			}
		})
	}
	all.Wait()
	return distinct(errs)
}

// distinct joins errors, leaving out repetitions of the one that cancelled the rest.
func distinct(errs []error) error {
	var kept []error
	for _, err := range errs {
		if err == nil {
			continue
		}
		repeated := false
		for _, k := range kept {
			repeated = repeated || errors.Is(err, k)
		}
		if !repeated {
			kept = append(kept, err)
		}
	}
	return errors.Join(kept...)
}

// Block is the half-open range of n items that part k of parts works on. The ranges of all parts
// cover 0 to n without gaps, in order, and their lengths differ by at most one.
func Block(n, parts, k int) (lo, hi int) {
	return n * k / parts, n * (k + 1) / parts
}
