// Package tsp is the travelling salesman benchmark: the shortest round trip through cities in a
// plane, by branch and bound with a work queue. It is a program on which distributed shared
// memories have been measured since TreadMarks (Amza et al., IEEE Computer 29, 1996).
//
// A priority queue in shared memory, under one lock, holds beginnings of round trips. A thread
// takes the most promising ones, lengthens those of fewer than splitDepth cities, putting the
// results back, and searches the others exhaustively, without the queue. The length of the best
// round trip so far is shared, too: each thread reads it at every step, without a lock, and leaves
// out what cannot be better.
//
// On pages this means: the queue moves with its lock to whoever takes work. It is as short as can
// be, a page for 256 tours, and how many there are lies on the first page of them. Most tours are
// soon searched, since their bound is near the best length, and a thread takes many of these at
// once. The best length is a page that all nodes have a copy of, until one of them finds a better
// round trip and all fetch it anew. The round trips themselves are in memory of the threads' own
// until the end. There is little data, and how much work there is depends on how early good round
// trips are found.
//
// Of several shortest round trips the one counts whose path comes first in lexicographic order. So
// the result does not depend on who finds what when.
package tsp

import (
	"bytes"
	"math"
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
		// The best length is alone on its page: everybody reads it all the time, and it seldom
		// changes.
		best:  kernel.ShareAlone[int64](t, "tsp/best"),
		trips: kernel.Share[trip](t, "tsp/trips", t.Total),
		work:  t.Mutex("tsp/work"),
	}
	return r, t.Each(r.begin)
}

// begin puts the tour that is only at city 0 into the queue, and takes the greedy round trip's
// length as the best so far. That or a better round trip is found all the same.
func (r *run) begin(t *kernel.Thread) {
	if t.Index != 0 {
		return
	}
	atomic.StoreInt64(r.best, r.cities.greedy())
	r.queue.count = 0
	t.Check(r.queue.push(tour{depth: 1}), "beginning")
}

// A trip is a round trip.
type trip struct {
	length int64
	path   path
}

// before reports whether a round trip is better than another, or as long and earlier in order.
func (a *trip) before(b *trip) bool {
	return a.length < b.length || a.length == b.length && bytes.Compare(a.path[:], b.path[:]) < 0
}

type run struct {
	cities *cityMap
	queue  queue  // guarded by work
	best   *int64 // the length of the best round trip so far, changed atomically
	trips  []trip // by thread: in the end, the round trip that it has found of the best length
	work   kernel.Mutex
}

// A worker is one thread of a run. Everything in it is its own.
type worker struct {
	*kernel.Thread
	*run
	taken []tour // to search
	most  int    // how many it takes at once
	steps int    // tours that it has lengthened since it took some
	found trip   // the first in order of the shortest round trips that it has found
}

// A thread takes twice as many tours as the last time, up to mostTaken, if searching those took
// fewer than enoughSteps steps, and else half as many. A step takes some microseconds. So the queue
// is seldom fetched for less than a millisecond's work, and at the end no thread has much to do
// when others have nothing.
const (
	enoughSteps = 256
	mostTaken   = 64
)

func (r *run) Compute(t *kernel.Thread) {
	w := &worker{Thread: t, run: r, most: 1, found: trip{length: math.MaxInt64}}
	for done := 0; ; {
		waiting := w.take()
		if len(w.taken) == 0 {
			break
		}
		for _, from := range w.taken {
			if !w.hopeless(from.bound) {
				w.search(from)
			}
			done++
		}
		// How much of what waits will be left out is not known, nor what other nodes do.
		w.Done(done, done+waiting)
	}
	if w.found.length == atomic.LoadInt64(r.best) {
		r.trips[w.Index] = w.found
	}
}

// take takes the most promising tours of splitDepth cities, or of all cities if there are fewer, at
// most its share of the queue, and returns how many tours are left in it. If there is no more work
// it takes none. Nobody who finds the queue empty has to wait for more: tours are put into it only
// by threads that hold the lock.
func (w *worker) take() (waiting int) {
	if w.steps < enoughSteps {
		w.most = min(2*w.most, mostTaken)
	} else {
		w.most = max(w.most/2, 1)
	}
	w.taken, w.steps = w.taken[:0], 0
	w.Locked(w.work, func() {
		for len(w.taken) < min(w.most, 1+int(w.queue.count)/w.Total) {
			most, ok := w.queue.pop()
			if !ok {
				return
			}
			if w.hopeless(most.bound) {
				// So are all the others: they promise less.
				w.queue.count = 0
				return
			}
			if int(most.depth) == min(splitDepth, w.cities.n) {
				w.taken = append(w.taken, most)
				continue
			}
			w.lengthen(most, func(longer tour) { w.Check(w.queue.push(longer), "lengthening a tour") })
		}
		waiting = int(w.queue.count)
	})
	return waiting
}

// hopeless says that a round trip of this length need not be considered. Those of equal length must
// be: their path may come before the best one's.
func (r *run) hopeless(length int32) bool { return int64(length) > atomic.LoadInt64(r.best) }

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
func (w *worker) search(from tour) {
	if int(from.depth) < w.cities.n {
		w.steps++
		w.lengthen(from, w.search)
		return
	}
	w.offer(trip{length: int64(from.bound), path: from.path})
}

// offer takes note of a round trip, and makes its length the best if it is.
func (w *worker) offer(found trip) {
	if found.before(&w.found) {
		w.found = found
	}
	for best := atomic.LoadInt64(w.best); found.length < best; best = atomic.LoadInt64(w.best) {
		if atomic.CompareAndSwapInt64(w.best, best, found.length) {
			return
		}
	}
}

// Result returns the best round trip, and as a figure its length.
func (r *run) Result() kernel.Result {
	first := trip{length: math.MaxInt64}
	for i := range r.trips {
		// A thread that ended before the best length was found may have left a longer one, and
		// others have left none.
		if t := &r.trips[i]; t.length == *r.best && t.before(&first) {
			first = *t
		}
	}
	output := make(kernel.Uint64s, r.cities.n)
	for i := range output {
		output[i] = uint64(first.path[i])
	}
	return kernel.Result{
		Figures: map[string]any{"length": float64(first.length), "fnv": kernel.FNV(output)},
		Output:  output,
	}
}
