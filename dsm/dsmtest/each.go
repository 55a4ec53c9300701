package dsmtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"dsmd/dsm"
)

// RunEach runs body as Run does, on each of these numbers of nodes, with each way to trap accesses:
// that which the daemons choose, and SIGSEGV. Each is a subtest, whose t body gets. SIGSEGV is left
// out for a test that is built without cgo.
func RunEach(t *testing.T, nodes []int, body func(t *testing.T, ctx context.Context, c *dsm.Cluster), flags ...string) {
	traps := []string{"auto", "sigsegv"}
	if only := os.Getenv(envTrap); slices.Contains(traps, only) {
		traps = []string{only}
	} else if only != "" {
		t.Fatalf("the environment has %s=%s: set it to one of %v, or not at all", envTrap, only, traps)
	}
	for _, trap := range traps {
		for _, n := range nodes {
			t.Run(fmt.Sprintf("%s/%d", trap, n), func(t *testing.T) {
				if trap == "sigsegv" && !cgo {
					t.Skip("trapping by SIGSEGV takes a test that is built with cgo")
				}
				Run(t, n, func(ctx context.Context, c *dsm.Cluster) { body(t, ctx, c) }, append([]string{"--trap", trap}, flags...)...)
			})
		}
	}
}
