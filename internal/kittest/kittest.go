// Package kittest has what tests of the kit, the packages for users that stand on dsm, do alike.
package kittest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"dsmd/dsm"

	"golang.org/x/sys/unix"
)

// Must is for what a test needs to go on.
func Must[V any](t *testing.T) func(V, error) V {
	return func(v V, err error) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Barrier waits for all ranks.
func Barrier(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	t.Helper()
	if err := c.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
}

// Quiet wants passes of all ranks that make no page travel. The first ones may: a node may have
// asked for a page ahead, in vain, just before the rank that uses it came. Pages that ranks share
// travel in each pass.
func Quiet(t *testing.T, ctx context.Context, c *dsm.Cluster, what string, pass func()) {
	t.Helper()
	var faults uint64
	for range 20 {
		Barrier(t, ctx, c)
		before := Must[dsm.Stats](t)(c.Stats(ctx))
		pass()
		after := Must[dsm.Stats](t)(c.Stats(ctx))
		own := after.Faults.Remote() - before.Faults.Remote()
		faults = Must[uint64](t)(dsm.Reduce(ctx, c, "faults of "+what, own, dsm.Sum))
		if faults == 0 {
			return
		}
	}
	t.Errorf("%s takes faults, %d in the last of many passes", what, faults)
}

var whole = flag.Bool("whole", false, "the examples of docs/guide.md at their own sizes; -v says how long each took")

// Size is the brief size of a problem, or with -whole that of the program itself.
func Size[T any](brief, own T) T {
	if *whole {
		return own
	}
	return brief
}

// Took is CostOf that says on rank 0 how long it took, and returns nothing.
func Took(t *testing.T, ctx context.Context, c *dsm.Cluster, what string, f func() error) {
	t.Helper()
	if cost := CostOf(t, ctx, c, f); c.Rank() == 0 {
		t.Logf("%s, on %d nodes: %v", what, c.Size(), cost.Time)
	}
}

// ThreadsTook calls f, which is to do the same with threads of one process, on all ranks, and says
// on rank 0, while the others wait, how long it took with one thread and with one for each
// processor.
func ThreadsTook(t *testing.T, ctx context.Context, c *dsm.Cluster, f func(threads int)) {
	t.Helper()
	if c.Rank() == 0 {
		for _, threads := range []int{1, runtime.NumCPU()} {
			began := time.Now()
			f(threads)
			t.Logf("%d threads of one process: %v", threads, time.Since(began))
		}
	}
	Barrier(t, ctx, c)
	if c.Rank() > 0 {
		f(2)
	}
	Barrier(t, ctx, c)
}

// Terminal returns both sides of a terminal (pty(7)): what is written to the second, which is the
// terminal for programs, the first reads. The caller closes the second.
func Terminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside = Must[*os.File](t)(os.OpenFile("/dev/ptmx", os.O_RDWR, 0))
	t.Cleanup(func() { _ = outside.Close() })
	if err := unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number := Must[int](t)(unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN))
	inside = Must[*os.File](t)(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))
	return outside, inside
}
