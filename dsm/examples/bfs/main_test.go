package main

import (
	"context"
	"slices"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/heap"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestSearch: the distances are those that one thread finds.
func TestSearch(t *testing.T) {
	n := vertices
	if testing.Short() {
		n /= 16
	}
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h, err := heap.Open(ctx, c, "graph", 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		all, err := share(ctx, c, h, n)
		if err != nil {
			t.Fatal(err)
		}
		reached, err := search(ctx, c, all)
		if err != nil {
			t.Fatal(err)
		}
		if want := alone(n); !slices.Equal(reached, want) {
			t.Errorf("reached %v, want %v", reached, want)
		}
		lo, hi := block(c, n)
		for _, v := range all[lo:hi] {
			if err := heap.Free(h, v.Get().edges); err != nil {
				t.Fatal(err)
			}
			if err := heap.Free(h, v); err != nil {
				t.Fatal(err)
			}
		}
		if leaks, err := h.Leaks(ctx, c); len(leaks) > 0 || err != nil {
			t.Error(leaks, err)
		}
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// alone is the search by one thread, with a queue.
func alone(n int) (reached []int) {
	depth, queue := make([]int, n), []int{0}
	depth[0] = 1
	for len(queue) > 0 {
		v := queue[0]
		queue = queue[1:]
		if len(reached) < depth[v] {
			reached = append(reached, 0)
		}
		reached[depth[v]-1]++
		for _, w := range targets(v, n) {
			if depth[w] == 0 {
				depth[w] = depth[v] + 1
				queue = append(queue, w)
			}
		}
	}
	return reached
}
