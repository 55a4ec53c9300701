package main

import (
	"context"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestSolve: the ways are as many as are known (OEIS A000170).
func TestSolve(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		for _, known := range []struct {
			n    int
			ways int64
		}{{1, 1}, {2, 0}, {8, 92}, {9, 352}, {12, 14200}} {
			if got, err := solve(ctx, c, known.n); got != known.ways || err != nil {
				t.Errorf("%d ways for %d queens, %v, want %d", got, known.n, err, known.ways)
			}
		}
	})
}

// TestCost: tasks travel seldom, and many at a time.
func TestCost(t *testing.T) {
	dsmtest.RunEach(t, []int{4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const n = 13
		cost := kittest.CostOf(t, ctx, c, func() error {
			got, err := solve(ctx, c, n)
			if got != 73712 {
				t.Errorf("%d ways for %d queens", got, n)
			}
			return err
		})
		all := tasks(board{Rows: n}, n)
		if t.Logf("%+v for %d tasks", cost, all); cost.Messages > uint64(all/10) {
			t.Errorf("%d messages for %d tasks", cost.Messages, all)
		}
	})
}

// tasks is how many tasks come of b.
func tasks(b board, n int) int {
	sum := 1
	if b.Rows > alone {
		b.each(n, func(next board) { sum += tasks(next, n) })
	}
	return sum
}
