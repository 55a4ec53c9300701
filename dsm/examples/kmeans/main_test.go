package main

import (
	"context"
	"math"
	"slices"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestKmeans: centres and groups are those that one thread finds, and all ranks see the groups.
func TestKmeans(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const blocks = 6
		centres, group, rounds, err := kmeans(ctx, c, blocks)
		if err != nil {
			t.Fatal(err)
		}
		want, wantGroup, wantRounds := alone(blocks)
		if rounds != wantRounds || rounds < 3 {
			t.Errorf("%d rounds, want %d", rounds, wantRounds)
		}
		for g := range want {
			if math.Hypot(centres[g].X-want[g].X, centres[g].Y-want[g].Y) > 1e-9 {
				t.Errorf("centre %d is %v, want %v", g, centres[g], want[g])
			}
		}
		if !slices.Equal(group, wantGroup) {
			t.Error("points are in other groups")
		}
	})
}

// alone is kmeans by one thread.
func alone(blocks int) (centres []point, group []int8, rounds int) {
	all := make([]point, blocks*block)
	for b := range blocks {
		fill(all[b*block:][:block], b)
	}
	group, centres = make([]int8, len(all)), make([]point, groups)
	fill(centres, 0)
	for moved := 1; moved > 0; rounds++ {
		var sums [groups]sum
		sums, moved = assign(all, group, centres)
		move(centres, [][]sum{sums[:]})
	}
	return centres, group, rounds
}
