package node

import (
	"testing"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// TestNeighbours: where two nodes fight for the pages of an allocation, those around a missed one
// are asked for as well, none outside of it is asked for, and nothing that was stored is lost.
func TestNeighbours(t *testing.T) {
	const pages = 3 * readahead.LeastNeighbours
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		first := a.bind("fought for", pages)
		b.bind("fought for", pages)
		for i := range pagetable.Page(protocol.DefaultContentionThreshold) {
			a.store(first+2*i, 0, uint64(i)) // every other page: no run
			b.store(first+2*i, 8, uint64(i))
		}
		eventually(t, "the first node asks for pages around", func() bool {
			for i := range pagetable.Page(pages) {
				a.store(first+(i*7)%pages, 16, uint64((i*7)%pages))
			}
			return c.members[0].counter("around_pages") > 0
		})
		if c.members[0].ask()[attach.ContendedIn+"fought for"] == 0 {
			t.Error("the allocation is not named among those that are fought for")
		}
		for i := range pagetable.Page(pages) {
			b.wantLoad(first+i, 16, uint64(i))
			if i < protocol.DefaultContentionThreshold {
				b.wantLoad(first+2*i, 0, uint64(i))
				a.wantLoad(first+2*i, 8, uint64(i))
			}
		}
		c.quiet()
		for _, m := range c.members {
			for page := first + pages; page < first+pages+readahead.MostNeighbours; page++ {
				if got := m.node.drive.engine.Access(protocol.PageObject(uint64(page))); got != protocol.None {
					t.Fatalf("page %d, outside of the allocation, is here for %v", page, got)
				}
			}
		}
	})
}
