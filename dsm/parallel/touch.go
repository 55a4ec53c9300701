package parallel

import (
	"context"
	"sync"

	"dsmd/dsm"
)

// Touch says what items of a loop touch; see Team.Touching.
type Touch func(ctx context.Context, c *dsm.Cluster, lo, hi int) error

// Reads says that the items from lo to hi (which is not among them) load from part(lo, hi), which
// is part of a slice from dsm.Alloc. It is fetched, as by dsm.Prefetch, before they begin. part is
// called by the rank that runs them, at any time during the loop, and may touch shared memory.
func Reads[T any](part func(lo, hi int) []T) Touch { return touch(part, dsm.Read) }

// Writes is Reads for what the items store to.
func Writes[T any](part func(lo, hi int) []T) Touch { return touch(part, dsm.Write) }

func touch[T any](part func(lo, hi int) []T, access dsm.Access) Touch {
	return func(ctx context.Context, c *dsm.Cluster, lo, hi int) error {
		return dsm.Prefetch(ctx, c, part(lo, hi), access)
	}
}

// fetch fetches all that the items touch, at the same time.
func (l *loop) fetch(lo, hi int) {
	var all sync.WaitGroup
	for _, touch := range l.touches {
		all.Go(func() {
			l.try(func(e *Error) { e.Index = lo }, func() error { return touch(l.ctx, l.t.c, lo, hi) })
		})
	}
	all.Wait()
}
