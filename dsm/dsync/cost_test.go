package dsync_test

import (
	"context"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
)

// TestCost: to wake a goroutine on another node, again and again, takes a bounded number of
// messages and of faults, however long it waits.
func TestCost(t *testing.T) {
	const rounds = 200
	dsmtest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		turns := []*dsync.Semaphore{newSemaphore(t, ctx, c, "turn of 0", 1), newSemaphore(t, ctx, c, "turn of 1", 1)}
		mine, other := turns[c.Rank()], turns[1-c.Rank()]
		check(t, "Acquire", mine.Acquire(ctx, 1), nil)
		before := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		kittest.Barrier(t, ctx, c)
		for i := range rounds {
			if i > 0 || c.Rank() > 0 {
				check(t, "Acquire", mine.Acquire(ctx, 1), nil)
			}
			check(t, "Release", other.Release(1), nil)
		}
		kittest.Barrier(t, ctx, c)
		after := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		own := [2]uint64{after.Traffic.MessagesSent - before.Traffic.MessagesSent, after.Faults.Remote() - before.Faults.Remote()}
		sum := kittest.Must[[2]uint64](t)(dsm.Reduce(ctx, c, "cost", own, func(a, b [2]uint64) [2]uint64 { return [2]uint64{a[0] + b[0], a[1] + b[1]} }))
		if c.Rank() == 0 {
			t.Logf("%d messages and %d faults for %d times that a permit went to the other node", sum[0], sum[1], 2*rounds)
		}
		if sum[0] > 2*rounds*24 || sum[1] > 2*rounds*4 {
			t.Errorf("%d messages and %d faults for %d wakings", sum[0], sum[1], 2*rounds)
		}
	})
}
