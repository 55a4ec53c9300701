package parallel_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/parallel"
	"dsmd/internal/kittest"
)

// TestChunk: a goroutine that meets an item that takes long, after many that did not, holds back
// few others.
func TestChunk(t *testing.T) {
	kittest.RunEach(t, []int{1, 2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n, threads = 8000, 2
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "team", parallel.Threads(threads)))
		others := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "others"))
		part := n / c.Size()
		err := team.For(ctx, n, func(i int) error {
			if i != part*3/4 {
				others.Add(1)
				return nil
			}
			for others.Load() < int64(n-part/(4*threads)-1) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestNoneAfterFailure: when an item has failed, goroutines of its rank begin none, though they
// have taken some.
func TestNoneAfterFailure(t *testing.T) {
	dsmtest.Run(t, 1, func(ctx context.Context, c *dsm.Cluster) {
		const n, threads = 100000, 3
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "team", parallel.Threads(threads)))
		var came, late atomic.Int64
		var failed atomic.Bool
		err := team.For(ctx, n, func(i int) error {
			switch {
			case i < n/2:
				return nil
			case failed.Load():
				late.Add(1)
				return nil
			}
			// All goroutines meet here, with chunks that they have begun. One fails.
			if came.Add(1) == threads {
				failed.Store(true)
				return errItem
			}
			for !failed.Load() && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		if err == nil || late.Load() > 0 {
			t.Errorf("%d items were begun after one had failed: %v", late.Load(), err)
		}
	})
}
