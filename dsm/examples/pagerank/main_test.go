package main

import (
	"context"
	"math"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestPagerank: the ranks are those that threads of one process find.
func TestPagerank(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n, limit = 5000, 1e-6
		ranks, rounds, err := pagerank(ctx, c, n, limit)
		if err != nil {
			t.Fatal(err)
		}
		want, wantRounds := threaded(random(n), n, limit, 2)
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
