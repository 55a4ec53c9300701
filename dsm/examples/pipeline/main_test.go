package main

import (
	"context"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestPipeline: the number is that which threads of one process find.
func TestPipeline(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		n := kittest.Size(200_000, numbers)
		var best, want found
		kittest.Took(t, ctx, c, "with queues", func() (err error) {
			best, err = longest(ctx, c, n)
			return err
		})
		kittest.ThreadsTook(t, ctx, c, func(threads int) { want = threaded(n, threads) })
		if c.Rank() == 0 && best != want {
			t.Errorf("found %+v, want %+v", best, want)
		}
	})
}

// TestCost: items travel many at a time. The machine is shared with others, so that a queue may be
// empty when it need not be: one of some times has to show it.
func TestCost(t *testing.T) {
	const items = 20000
	dsmtest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		q, err := collections.NewQueue[found](ctx, c, "cost", 2000)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			cost := kittest.CostOf(t, ctx, c, func() (err error) {
				for i := 0; err == nil && i < items; i++ {
					if c.Rank() == 0 {
						err = q.Put(ctx, found{i, i})
					} else if v, failed := q.Take(ctx); failed != nil || v != (found{i, i}) {
						t.Fatal(i, v, failed)
					}
				}
				return err
			})
			if t.Logf("%+v for %d items", cost, items); cost.Messages < items/10 {
				return
			}
		}
		t.Error("items travel one by one")
	})
}
