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
		before := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		if got, err := solve(ctx, c, n); got != 73712 || err != nil {
			t.Fatal(got, err)
		}
		after := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
		sent := kittest.Must[uint64](t)(dsm.Reduce(ctx, c, "sent", after.Traffic.MessagesSent-before.Traffic.MessagesSent, dsm.Sum))
		faults := kittest.Must[uint64](t)(dsm.Reduce(ctx, c, "faults", after.Faults.Remote()-before.Faults.Remote(), dsm.Sum))
		all := tasks(board{Rows: n}, n)
		if t.Logf("%d messages, %d faults for %d tasks", sent, faults, all); sent > uint64(all/10) {
			t.Errorf("%d messages for %d tasks", sent, all)
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
