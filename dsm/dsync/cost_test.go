package dsync_test

import (
	"context"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
)

// TestCost: to wake a goroutine on another node, again and again, takes a bounded number of
// messages and of faults, however long it waits.
func TestCost(t *testing.T) {
	const rounds = 200
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		turns := []*dsync.Semaphore{newSemaphore(t, ctx, c, "turn of 0", 1), newSemaphore(t, ctx, c, "turn of 1", 1)}
		mine, other := turns[c.Rank()], turns[1-c.Rank()]
		check(t, "Acquire", mine.Acquire(ctx, 1), nil)
		cost := kittest.CostOf(t, ctx, c, func() error {
			for i := range rounds {
				if i > 0 || c.Rank() > 0 {
					check(t, "Acquire", mine.Acquire(ctx, 1), nil)
				}
				check(t, "Release", other.Release(1), nil)
			}
			return nil
		})
		if c.Rank() == 0 {
			t.Logf("%+v for %d times that a permit went to the other node", cost, 2*rounds)
		}
		if cost.Messages > 2*rounds*24 || cost.Faults > 2*rounds*4 {
			t.Errorf("%+v for %d wakings", cost, 2*rounds)
		}
	})
}
