// Package kittest has what tests of the kit, the packages for users that stand on dsm, do alike.
package kittest

import (
	"context"
	"fmt"
	"os"
	"testing"

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
