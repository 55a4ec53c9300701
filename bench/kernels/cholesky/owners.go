package cholesky

import "math"

// owners are the threads that own a supernode's panels: first to end-1, at least one.
type owners struct{ first, end int }

// dealOut deals out the threads with the branches of the tree, each branch getting as many as its
// work asks for, so that a branch with little is one thread's alone, with all that is below it.
//
// The threads are thought of as the line from 0 to their number. The whole tree takes all of it,
// and branches divide what the supernode above them has, in proportion to their work. A supernode's
// threads are those of which it has more than half. What nearly ends between two threads ends
// there, so that what is below does not change hands for the sake of little.
func dealOut(nodes []supernode, threads int) []owners {
	work := make([]float64, len(nodes)) // of the branch that ends with this supernode
	roots := 0.0
	for i := range nodes {
		work[i] += nodes[i].operations()
		if parent := nodes[i].parent; parent != none {
			work[parent] += work[i]
		} else {
			roots += work[i]
		}
	}
	type stretch struct{ low, perWork float64 } // of the line, what is still to be dealt out
	left := make([]stretch, len(nodes))
	whole := stretch{perWork: float64(threads) / roots}
	shares := make([]owners, len(nodes))
	for i := len(nodes) - 1; i >= 0; i-- {
		from := &whole
		if parent := nodes[i].parent; parent != none {
			from = &left[parent]
		}
		low := from.low
		high := low + float64(work[i]*from.perWork)
		from.low = high
		shares[i] = nearest(low, high, threads)
		if below := work[i] - nodes[i].operations(); below > 0 {
			low, high = settled(low, high)
			left[i] = stretch{low: low, perWork: (high - low) / below}
		}
	}
	return shares
}

// littleWork is the part of a thread's work that is not worth to have it share a branch.
const littleWork = 1.0 / 8

// settled is a stretch that ends between two threads where it nearly does, unless nothing of it
// would be left.
func settled(low, high float64) (float64, float64) {
	settle := func(x float64) float64 {
		if whole := math.Round(x); math.Abs(x-whole) <= littleWork {
			return whole
		}
		return x
	}
	if l, h := settle(low), settle(high); l < h {
		return l, h
	}
	return low, high
}

// nearest are the threads of which a stretch of the line has more than half, or else the one in
// which its middle lies.
func nearest(low, high float64, threads int) owners {
	o := owners{first: int(math.Round(low)), end: min(int(math.Round(high)), threads)}
	if o.first >= o.end {
		o.first = min(int((low+high)/2), threads-1)
		o.end = o.first + 1
	}
	return o
}
