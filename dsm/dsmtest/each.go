package dsmtest

import (
	"context"
	"fmt"
	"testing"

	"dsmd/dsm"
)

// RunEach runs body as Run does on 1, 2 and 4 nodes, with each way to trap accesses: that which the
// daemons choose, and SIGSEGV. Each is a subtest, whose t body gets. SIGSEGV is left out for a test
// that is built without cgo.
func RunEach(t *testing.T, body func(t *testing.T, ctx context.Context, c *dsm.Cluster)) {
	for _, trap := range []string{"auto", "sigsegv"} {
		for _, n := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/%d", trap, n), func(t *testing.T) {
				if trap == "sigsegv" && !cgo {
					t.Skip("trapping by SIGSEGV takes a test that is built with cgo")
				}
				Run(t, n, func(ctx context.Context, c *dsm.Cluster) { body(t, ctx, c) }, "--trap", trap)
			})
		}
	}
}
