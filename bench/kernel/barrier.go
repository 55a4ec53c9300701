package kernel

import (
	"context"
	"sync"
)

// Barrier makes threads wait for each other. *dsm.Barrier is one for threads of all nodes, and
// NewBarrier makes one for goroutines on ordinary memory; the body of a kernel is given either.
type Barrier interface {
	// Wait returns nil once every party has called it, or ctx's error.
	Wait(ctx context.Context) error
}

// NewBarrier returns a Barrier for goroutines of one process. A party that gives up because its
// context is done leaves the barrier unusable: the others must be cancelled by the same context, as
// a team's are. parties must be at least 1.
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
