package kittest

import (
	"context"
	"os"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
)

// RunEach is dsmtest.RunEach with one way to trap accesses: that which DSMTEST_TRAP names, or else
// the daemons choose. It is for tests of what stands above the trap. Some of each package take
// dsmtest.RunEach, so that the package is seen with either. The test can't be parallel.
func RunEach(t *testing.T, nodes []int, body func(t *testing.T, ctx context.Context, c *dsm.Cluster), flags ...string) {
	if os.Getenv("DSMTEST_TRAP") == "" {
		t.Setenv("DSMTEST_TRAP", "auto")
	}
	dsmtest.RunEach(t, nodes, body, flags...)
}
