package readahead

import "dsmd/pagetable"

// LeastNeighbours and MostNeighbours are how many pages, the missed one among them, are asked for
// at the first miss of a group lease and at most. The first is what a home has in a row by default;
// the second fills the network's pipe, as MaxWindow does.
const LeastNeighbours, MostNeighbours = 16, MaxWindow

// Neighbours is how far the pages lie that are asked for together during a group lease. While it
// lasts a node keeps what it gains for writing for some milliseconds, and its threads write to
// pages in any order, which no stream foretells. So with each miss of the same lease twice as many
// pages are asked for. A thread that finds them here needs no lease at all for the rest.
type Neighbours struct {
	lease uint32
	pages pagetable.Page
}

// Missed notes a miss during a lease. It returns the run of pages to ask for, and whether the lease
// is a new one.
func (a *Neighbours) Missed(page pagetable.Page, lease uint32) (first, end pagetable.Page, fresh bool) {
	if fresh = a.lease != lease; fresh {
		a.lease, a.pages = lease, LeastNeighbours
	} else {
		a.pages = min(2*a.pages, MostNeighbours)
	}
	first = page / a.pages * a.pages
	return first, first + a.pages, fresh
}
