package kittest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
)

// RunEach is dsmtest.RunEach with one way to trap accesses: that which the daemons choose, or which
// DSMTEST_TRAP names. It is for tests of what stands above the trap. Some of each package take
// dsmtest.RunEach, so that the package is seen with either.
func RunEach(t *testing.T, nodes []int, body func(t *testing.T, ctx context.Context, c *dsm.Cluster), flags ...string) {
	trap := cmp.Or(os.Getenv("DSMTEST_TRAP"), "auto")
	for _, n := range nodes {
		t.Run(fmt.Sprintf("%s/%d", trap, n), func(t *testing.T) {
			dsmtest.Run(t, n, func(ctx context.Context, c *dsm.Cluster) { body(t, ctx, c) }, append([]string{"--trap", trap}, flags...)...)
		})
	}
}
