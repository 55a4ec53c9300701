package main

import (
	"context"
	"math"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestPagerank: the ranks are those that threads of one process find.
func TestPagerank(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		n, limit := kittest.Size(5000, vertices), kittest.Size(1e-6, 1e-9)
		var ranks, want []float64
		var rounds, wantRounds int
		kittest.Took(t, ctx, c, "with parallel.Reduce", func() (err error) {
			g, err := share(ctx, c, n)
			if err == nil {
				ranks, rounds, err = pagerank(ctx, c, g, limit)
			}
			return err
		})
		kittest.ThreadsTook(t, ctx, c, func(threads int) { want, wantRounds = threaded(random(n), n, limit, threads) })
		if rounds != wantRounds {
			t.Errorf("%d rounds, want %d", rounds, wantRounds)
		}
		sum := 0.0
		for v := range ranks {
			if math.Abs(ranks[v]-want[v]) > 1e-12 {
				t.Fatalf("vertex %d has rank %g, want %g", v, ranks[v], want[v])
			}
			sum += ranks[v]
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("all ranks add up to %g, want 1", sum)
		}
	})
}

// TestCost: what package parallel costs beside what an expert writes by hand.
func TestCost(t *testing.T) {
	if testing.Short() {
		t.Skip("costs are those of builds that users have")
	}
	kittest.RunEach(t, []int{4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		n, limit := kittest.Size(20000, vertices), kittest.Size(1e-6, 1e-9)
		g := kittest.Must[graph](t)(share(ctx, c, n))
		_, want := threaded(random(n), n, limit, 2)
		after := func(rounds int, err error) error {
			if rounds != want {
				t.Errorf("%d rounds, want %d", rounds, want)
			}
			return err
		}
		onKit := func() error {
			_, rounds, err := pagerank(ctx, c, g, limit)
			return after(rounds, err)
		}
		// Others take from ranks that are late, which costs faults; by hand they would wait.
		kittest.Versions{Kit: onKit, Hand: func() error { return after(byHand(ctx, c, g, limit)) }, Faults: 6}.Compare(t, ctx, c)
		kittest.Took(t, ctx, c, "the obvious version", func() error { return after(obvious(ctx, c, g, limit)) })
	})
}
