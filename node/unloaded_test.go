package node

import (
	"testing"

	"dsmd/internal/attach"
)

// TestUnloadedComeBackInBounds: a thread goes twice over a file of another node that is larger than
// the room here. What comes back is asked for within bounds, too, and nobody is taken for greedy.
func TestUnloadedComeBackInBounds(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	either(t, func(t *testing.T, async bool) {
		s := setup{nodes: 2, pages: pages + HomeStripe, async: async, before: func(n *Node) { n.intake.window = window{8, 16} }}
		c := startTight(t, s, 1)
		what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{0}}
		first, all := c.mapped("x", pages, what, laid(t, pages*4096, same), nil)
		for range 2 {
			all[1].wantPages(first, pages, asLaid)
		}
		if n := c.members[1].counter("pages_unloaded"); n < 2*pages-2*leastRoom {
			t.Errorf("%d pages have left", n)
		}
		c.quiet()
	})
}
