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
//
// A miss while those pages are still coming says nothing new: it is another thread's, which could
// not know them either. If it counted, some dozens of threads would ask for all that there is at
// once, and before it is all here one of them has waited for so long that the lease is given up.
type Neighbours struct {
	lease        uint32
	first, pages pagetable.Page // asked for last
}

// Missed notes a miss during a lease, where coming tells of a page whether it was asked for and is
// not here yet. It returns the run of pages to ask for, empty if there is none, and whether the
// lease is a new one.
func (a *Neighbours) Missed(page pagetable.Page, lease uint32, coming func(pagetable.Page) bool) (first, end pagetable.Page, fresh bool) {
	if fresh = a.lease != lease; fresh {
		a.lease, a.pages = lease, LeastNeighbours
	} else {
		for p := a.first; p < a.first+a.pages; p++ {
			if coming(p) {
				return page, page, false
			}
		}
		a.pages = min(2*a.pages, MostNeighbours)
	}
	a.first = page / a.pages * a.pages
	return a.first, a.first + a.pages, fresh
}
