// Package tsp is the travelling salesman benchmark: the shortest round trip through cities in a
// plane, by branch and bound with a work queue. It is a program on which distributed shared
// memories have been measured since TreadMarks (Amza et al., IEEE Computer 29, 1996).
//
// A priority queue in shared memory, under one lock, holds beginnings of round trips. A thread
// takes the most promising one and lengthens it, putting the results back, until it has one of
// splitDepth cities; that one it searches exhaustively, without the queue. The length of the best
// round trip so far is shared, too: each thread reads it at every step, without a lock, and leaves
// out what cannot be better.
//
// On pages this means: the queue moves with its lock to whoever takes work. It is as short as can
// be, a page for 256 tours, and how many there are lies on the first page of them. The best length
// is a page that all nodes have a copy of, until one of them finds a better round trip and all
// fetch it anew. There is little data, and how much work there is depends on how early good round
// trips are found.
//
// Of several shortest round trips the one counts whose path comes first in lexicographic order. So
// the result does not depend on who finds what when.
package tsp

import (
	"bytes"
	"sync/atomic"

	"dsmd/bench/kernel"
)

// splitDepth is the number of cities in a tour that is not divided further. Every tour of this
// depth is work for one thread: with 20 cities up to 5,814 of them, most of which are never looked
// at.
const splitDepth = 4

// Kernel is the benchmark "tsp". Its output is the best round trip's cities, in order; the sizes'
// parameter is their number.
var Kernel = kernel.Kernel{
	Name:    "tsp",
	Summary: "travelling salesman by branch and bound, priority queue of tours and best length in shared memory",
	Sizes:   kernel.Sizes{Parameter: "cities", Test: 14, Default: 20, Large: 31, Min: 3, Max: maxCities},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Verify compares with the sequential version. Both have found the same round trip, city by city.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Prepare has the first thread begin.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{
		cities: newMap(p.n),
		queue:  queue{heap: kernel.ShareAlone[heap](t, "tsp/queue"), room: capacity(p.n)},
		// The best round trip is alone on its page: everybody reads it all the time, and it seldom
		// changes.
		best:    kernel.ShareAlone[trip](t, "tsp/best"),
		work:    t.Mutex("tsp/work"),
		improve: t.Mutex("tsp/improve"),
	}
	return r, t.Each(r.begin)
}

// begin puts the tour that is only at city 0 into the queue, and takes the greedy round trip as the
// best so far.
func (r *run) begin(t *kernel.Thread) {
	if t.Index != 0 {
		return
	}
	greedy := r.cities.greedy()
	r.best.path = r.cities.direct(greedy.path)
	atomic.StoreInt64(&r.best.length, greedy.length)
	r.queue.count = 0
	t.Check(r.queue.push(tour{depth: 1}), "beginning")
}

// A trip is a round trip.
type trip struct {
	length int64 // read without the lock, and so changed atomically
	path   path
}

type run struct {
	cities  *cityMap
	queue   queue        // guarded by work
	best    *trip        // changed under improve
	work    kernel.Mutex // may be held when improve is locked, not the other way round
	improve kernel.Mutex
}

// direct turns a round trip round if that is the direction that does not count.
func (m *cityMap) direct(p path) path {
	one, two := bytes.IndexByte(p[:], 1), bytes.IndexByte(p[:], 2)
	if one < two {
		return p
	}
	reversed := p
	for i := 1; i < m.n; i++ {
		reversed[i] = p[m.n-i]
	}
	return reversed
}

func (r *run) Compute(t *kernel.Thread) {
	for done := 1; ; done++ {
		next, waiting := r.take(t)
		if next.depth == 0 {
			return
		}
		r.search(t, next)
		// How much of what waits will be left out is not known, nor what other nodes do.
		t.Done(done, done+waiting)
	}
}

// take returns the most promising tour of splitDepth cities, or of all cities if there are fewer,
// and how many tours are left in the queue. If there is no more work the tour has depth 0. Nobody
// who finds the queue empty has to wait for more: tours are put into it only by threads that hold
// the lock.
func (r *run) take(t *kernel.Thread) (next tour, waiting int) {
	t.Locked(r.work, func() {
		for {
			most, ok := r.queue.pop()
			if !ok {
				return
			}
			if r.hopeless(most.bound) {
				// So are all the others: they promise less.
				r.queue.count = 0
				return
			}
			if int(most.depth) == min(splitDepth, r.cities.n) {
				next, waiting = most, int(r.queue.count)
				return
			}
			r.lengthen(most, func(longer tour) { t.Check(r.queue.push(longer), "lengthening a tour") })
		}
	})
	return next, waiting
}

// hopeless says that a round trip of this length need not be considered. Those of equal length must
// be: their path may come before the best one's.
func (r *run) hopeless(length int32) bool { return int64(length) > atomic.LoadInt64(&r.best.length) }

// lengthen calls next with the tour lengthened by each city, in order of distance, unless that is
// hopeless.
func (r *run) lengthen(t tour, next func(tour)) {
	left := r.cities.all()
	for _, city := range t.path[:t.depth] {
		left = left.without(int(city))
	}
	last := t.path[t.depth-1]
	for _, to := range r.cities.nearest[last] {
		if city := int(to); left.has(city) && allowed(city, left) {
			longer := t
			longer.path[t.depth] = to
			longer.depth++
			longer.length += r.cities.distance[last][city]
			longer.bound = longer.length + r.cities.remaining(city, left.without(city))
			if r.hopeless(longer.bound) {
				continue
			}
			next(longer)
		}
	}
}

// search looks at all round trips that begin with the given tour.
func (r *run) search(t *kernel.Thread, from tour) {
	if int(from.depth) < r.cities.n {
		r.lengthen(from, func(longer tour) { r.search(t, longer) })
		return
	}
	r.offer(t, trip{length: int64(from.bound), path: from.path})
}

// offer makes a round trip the best if it is.
func (r *run) offer(t *kernel.Thread, found trip) {
	t.Locked(r.improve, func() {
		best := atomic.LoadInt64(&r.best.length)
		if found.length < best || found.length == best && bytes.Compare(found.path[:], r.best.path[:]) < 0 {
			r.best.path = found.path
			atomic.StoreInt64(&r.best.length, found.length)
		}
	})
}

// Result returns the best round trip, and as a figure its length.
func (r *run) Result() kernel.Result {
	output := make(kernel.Uint64s, r.cities.n)
	for i := range output {
		output[i] = uint64(r.best.path[i])
	}
	return kernel.Result{
		Figures: map[string]any{"length": float64(r.best.length), "fnv": kernel.FNV(output)},
		Output:  output,
	}
}
