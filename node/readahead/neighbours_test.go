package readahead

import (
	"testing"

	"dsmd/pagetable"
)

// TestNeighboursGrowWithinALease: each miss of a lease asks for twice as many pages, around the one
// that was missed.
func TestNeighboursGrowWithinALease(t *testing.T) {
	const page = 3*MostNeighbours + 5
	var a Neighbours
	coming := map[pagetable.Page]bool{page + MostNeighbours: true} // which was not asked for here
	want := func(lease uint32, miss int, pages pagetable.Page, isNew bool) {
		t.Helper()
		first, end, fresh := a.Missed(page, lease, func(p pagetable.Page) bool { return coming[p] })
		if end-first != pages || first%pages != 0 || page < first || page >= end || fresh != isNew {
			t.Errorf("miss %d of lease %d asks for pages %d to %d (new: %v), want %d pages (new: %v)", miss, lease, first, end, fresh, pages, isNew)
		}
	}
	for miss, pages := range []pagetable.Page{LeastNeighbours, 2 * LeastNeighbours, 4 * LeastNeighbours, 8 * LeastNeighbours, MostNeighbours, MostNeighbours} {
		want(1, miss, pages, miss == 0)
	}
	want(2, 0, LeastNeighbours, true)
	// Other threads miss pages while the last of those is not here yet.
	coming[page/LeastNeighbours*LeastNeighbours+LeastNeighbours-1] = true
	for range 10 {
		if first, end, fresh := a.Missed(page+MostNeighbours, 2, func(p pagetable.Page) bool { return coming[p] }); first != end || fresh {
			t.Errorf("pages %d to %d are asked for while others are coming (new: %v)", first, end, fresh)
		}
	}
	clear(coming)
	want(2, 1, 2*LeastNeighbours, false)
}
