// Package replacement chooses which page a node parts with when it has room for no more.
//
// A node sees few uses: a load from or a store to a page that is here traps nobody. It sees that a
// page comes, that it comes back after the node has parted with it, that others take it, and that a
// store needs a page which was here for reading. Policies that order pages by their uses have
// little to go by then, and a sweep that is larger than memory leaves them with nothing.
//
// A page that comes stands in a small queue, as in S3-FIFO (Yang, Zhang, Qiu, Yue and Rashmi,
// "FIFO queues are all you need for cache eviction", SOSP 2023). So what was asked for ahead is
// here for a while. Then it leaves, or it goes to the main queue, and the oldest page there leaves.
// Which of them is a matter of chance, as in bimodal insertion (Qureshi, Jaleel, Patt, Steely and
// Emer, "Adaptive insertion policies for high performance caching", ISCA 2007): with a small chance
// a part of a long sweep stays, with a large one the oldest pages leave. The chance is learned from
// pages that come back, as in LeCaR (Vietri et al., "Driving cache replacement with ML-based
// LeCaR", HotStorage 2018): it grows while those that were turned away from the main queue come
// back more often, or sooner, than those that left it, and shrinks otherwise. Pages that have come
// back have a chance of their own.
//
// docs/performance.md compares this with other policies, and says what it costs: nothing between
// faults.
//
// A Queue is not safe for concurrent use.
package replacement

import "dsmd/pagetable"

// Queue is the pages of a node, in the order in which it parts with them. See New.
type Queue struct {
	small, main, aside, ghosts list
	ghostMost                  int

	entries []entry
	free    uint32 // the first entry that is not in use, linked by next; 0: none
	index   map[pagetable.Page]uint32

	chances chances
	clock   uint32 // pages that were parted with
	period  uint32 // after how many of them it learns
	// peak is how many pages were in both queues, at most, when room was wanted in this period, and
	// lastPeak in the last one.
	peak, lastPeak int
}

// entry is a page in one of the lists. The first one stands for no page.
type entry struct {
	page       pagetable.Page
	prev, next uint32
	left       uint32 // when it was set aside, or the node parted with it
	in         place
	fate       fate // how it has left, or will leave if it does so now
	stays      bool // it goes to the main queue when it leaves the small one
	used       bool // it has another turn in the main queue
}

type place uint8

const (
	inSmall place = iota + 1
	inMain
	inAside  // see Keep
	inGhosts // not here, and remembered
)

const (
	// Of the pages of a node one in smallShare stands in the small queue, but at least smallLeast,
	// or half of them all: some windows that were asked for ahead.
	smallShare, smallLeast = 10, 128
	// For ghostShare pages that there is room for one is remembered that is not here.
	ghostShare = 2
	// periodShare is what part of the node's pages a period is.
	periodShare = 10
)

// New returns a queue without pages, for a node that has room for so many, at least one.
func New(capacity int) *Queue {
	capacity = max(capacity, 1)
	return &Queue{ghostMost: capacity / ghostShare, period: uint32(max(capacity/periodShare, 1)),
		entries: make([]entry, 1), index: map[pagetable.Page]uint32{}, chances: newChances()}
}

// smallMost is how many pages of both queues stand in the small one, about.
func smallMost(all int) int { return min(max(all/smallShare, smallLeast), all/2) }

// Len is how many pages there are.
func (q *Queue) Len() int { return q.small.count + q.main.count + q.aside.count }

// Fresh is how many pages there are that were not set aside: all of them have their turn before
// those that were.
func (q *Queue) Fresh() int { return q.small.count + q.main.count }

// Has reports whether a page is there.
func (q *Queue) Has(p pagetable.Page) bool { return q.here(p) != 0 }

// here is the entry of a page that is there; 0: it is not.
func (q *Queue) here(p pagetable.Page) uint32 {
	if i := q.index[p]; i != 0 && q.entries[i].in != inGhosts {
		return i
	}
	return 0
}

// Add notes that a page has come. One that is there already is used.
func (q *Queue) Add(p pagetable.Page) {
	i := q.index[p]
	switch {
	case i == 0:
		i = q.take(p)
		q.entries[i].fate = newcomer
	case q.entries[i].in == inGhosts:
		q.unlink(i)
		e := &q.entries[i]
		q.chances.back(e.fate, max(0, 1-float64(q.clock-e.left)/float64(q.ghostMost)))
		e.fate = returned
	default:
		q.Use(p)
		return
	}
	e := &q.entries[i]
	e.stays, e.used = q.chances.draw(e.fate), false
	q.push(i, inSmall)
}

// Use notes that a page is used. One that is not there is not noted, nor one that is young: it is
// often written as soon as it was read.
func (q *Queue) Use(p pagetable.Page) {
	if i := q.here(p); i != 0 && q.entries[i].in == inMain {
		q.entries[i].used = true
	}
}

// Remove notes that others have taken a page. It is not remembered, unless it was set aside: then
// the node has wanted to part with it, and done so.
func (q *Queue) Remove(p pagetable.Page) {
	switch i := q.here(p); {
	case i == 0:
	case q.entries[i].in == inAside:
		q.Evicted(p)
	default:
		q.drop(i)
	}
}

// Oldest is the page to part with first, if there is one. It stays there until Evicted, Keep or
// Remove is called for it.
func (q *Queue) Oldest() (p pagetable.Page, ok bool) {
	// A node parts with pages before it is full. What counts is how many it has when it does.
	q.peak = max(q.peak, q.small.count+q.main.count)
	all := max(q.peak, q.lastPeak)
	mainMost := all - smallMost(all)
	for q.small.count+q.main.count > 0 {
		i, goesOn := q.main.oldest, false
		if q.small.count > 0 && q.main.count <= mainMost {
			i = q.small.oldest
			goesOn = q.entries[i].stays || q.main.count+q.aside.count < mainMost
		}
		if !goesOn && !q.entries[i].used {
			return q.entries[i].page, true
		}
		q.entries[i].fate, q.entries[i].used = leftMain, false
		q.move(i, inMain)
	}
	return q.entries[q.aside.oldest].page, q.aside.count > 0
}

// Evicted notes that the node has parted with a page. It is remembered for a while.
func (q *Queue) Evicted(p pagetable.Page) {
	i := q.here(p)
	if i == 0 {
		return
	}
	e := &q.entries[i]
	q.clock++
	e.left = q.clock
	q.chances.gone[e.fate]++
	q.move(i, inGhosts)
	for q.ghosts.count > q.ghostMost {
		q.drop(q.ghosts.oldest)
	}
	if q.clock%q.period == 0 {
		q.chances.learn()
		q.peak, q.lastPeak = 0, q.peak
	}
	q.takeBack()
}

// Keep notes that the node cannot part with a page now. It is set aside for a period, in case the
// node soon can, and its turn comes again after all others.
func (q *Queue) Keep(p pagetable.Page) {
	if i := q.here(p); i != 0 {
		q.entries[i].left = q.clock
		q.move(i, inAside)
	}
}

// takeBack puts pages that were set aside a period ago where they were before, some at a time.
func (q *Queue) takeBack() {
	for range 2 {
		i := q.aside.oldest
		e := &q.entries[i]
		switch {
		case i == 0 || q.clock-e.left < q.period:
			return
		case e.fate == leftMain:
			q.move(i, inMain)
		default:
			q.move(i, inSmall)
		}
	}
}

// RemoveAll forgets a run of pages that is freed, and returns how many of them were here.
func (q *Queue) RemoveAll(first pagetable.Page, count uint64) (here int) {
	gone := func(p pagetable.Page) {
		i := q.index[p]
		if i == 0 {
			return
		}
		if q.entries[i].in != inGhosts {
			here++
		}
		q.drop(i)
	}
	if count <= uint64(len(q.index)) {
		for p := first; uint64(p-first) < count; p++ {
			gone(p)
		}
		return here
	}
	for p := range q.index { // in any order: they are only dropped
		if p >= first && uint64(p-first) < count {
			gone(p)
		}
	}
	return here
}
