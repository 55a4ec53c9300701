package tsp

import (
	"errors"
	"fmt"
)

// ErrFull is returned when the queue of tours cannot take another one.
var ErrFull = errors.New("the queue of tours is full")

// A queue is a priority queue (a binary heap) of tours in memory that all threads share. Whoever
// uses it holds its lock.
type queue struct {
	*heap
	room int // how many tours it can hold
}

// A heap is what is shared of a queue. It has the count beside the tours that are looked at first,
// since the pages of a heap go where its lock goes, and what is on one page goes at once.
type heap struct {
	count  int64
	queued [mostQueued]queued
}

// A queued tour has no room for more cities than it can have while it waits: so most of the way
// through the heap lies on its first page.
type queued struct {
	bound, length, depth int32
	path                 [splitDepth]uint8
}

// mostQueued is the capacity for the most cities.
const mostQueued = 1 + (maxCities-1)*(1+(maxCities-2)*(1+(maxCities-3)))

// capacity is how many tours can ever be in the queue at once: those of all depths up to
// splitDepth.
func capacity(n int) int {
	total, ofDepth := 1, 1
	for depth := 1; depth < splitDepth; depth++ {
		ofDepth *= max(n-depth, 1)
		total += ofDepth
	}
	return total
}

// less orders tours: the most promising first, and of these the longest, since it will lead to a
// round trip soonest.
func (h *heap) less(i, j int) bool {
	a, b := &h.queued[i], &h.queued[j]
	return a.bound < b.bound || a.bound == b.bound && a.depth > b.depth
}

func (h *heap) swap(i, j int) { h.queued[i], h.queued[j] = h.queued[j], h.queued[i] }

// push puts a tour of at most splitDepth cities into the queue.
func (q queue) push(t tour) error {
	i := int(q.count)
	if i == q.room {
		return fmt.Errorf("%w: it holds %d", ErrFull, i)
	}
	q.queued[i] = queued{bound: t.bound, length: t.length, depth: t.depth, path: [splitDepth]uint8(t.path[:])}
	q.count++
	for i > 0 && q.less(i, (i-1)/2) {
		above := (i - 1) / 2
		q.swap(i, above)
		i = above
	}
	return nil
}

// pop takes the most promising tour out of the queue; ok is false if there is none.
func (q queue) pop() (t tour, ok bool) {
	if q.count == 0 {
		return tour{}, false
	}
	first := &q.queued[0]
	t = tour{bound: first.bound, length: first.length, depth: first.depth}
	copy(t.path[:], first.path[:])
	q.count--
	last := int(q.count)
	*first = q.queued[last]
	for i := 0; ; {
		least := i
		for below := 2*i + 1; below <= 2*i+2 && below < last; below++ {
			if q.less(below, least) {
				least = below
			}
		}
		if least == i {
			return t, true
		}
		q.swap(i, least)
		i = least
	}
}
