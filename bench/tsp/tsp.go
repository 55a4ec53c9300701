// Package tsp is the travelling salesman benchmark: the shortest round trip through cities in a plane, by branch
// and bound with a work queue. It is a program on which distributed shared memories have been measured since TreadMarks
// (Amza et al., IEEE Computer 29, 1996).
//
// A priority queue in shared memory, under one lock, holds beginnings of round trips. A thread takes the most
// promising one and lengthens it, putting the results back, until it has one of splitDepth cities; that one it searches
// exhaustively, without the queue. The length of the best round trip so far is shared, too: each thread reads it
// at every step, without a lock, and leaves out what cannot be better.
//
// On pages this means: the queue moves with its lock to whoever takes work, and the best length is a page that all nodes
// have a copy of, until one of them finds a better round trip and all fetch it anew. There is little data, and how
// much work there is depends on how early good round trips are found.
//
// Of several shortest round trips the one counts whose path comes first in lexicographic order. So the result
// does not depend on who finds what when.
package tsp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// splitDepth is the number of cities in a tour that is not divided further. Every tour of this depth is work
// for one thread: with 20 cities up to 5,814 of them, most of which are never looked at.
const splitDepth = 4

// Kernel is the benchmark "tsp". Its output is the best round trip's cities, in order.
type Kernel struct{}

// Name returns "tsp".
func (Kernel) Name() string { return "tsp" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return "travelling salesman by branch and bound, priority queue of tours and best length in shared memory"
}

// Sizes returns the sizes; the parameter is the number of cities.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "cities", Test: 14, Default: 20, Large: 31, Min: 3, Max: maxCities}
}

// Problem returns the problem with n cities.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Verify compares with the sequential version. Both have found the same round trip, city by city.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Sequential prepares the search by one thread.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary memory.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	r := &run{
		cities:  newMap(p.n),
		queue:   queue{count: new(int64), tours: make([]tour, capacity(p.n))},
		best:    new(trip),
		work:    kernel.NewMutex(),
		improve: kernel.NewMutex(),
		threads: threads,
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared memory.
func (p problem) Cluster(_ context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	count, err := dsm.Isolate[int64](c, "tsp/count")
	if err != nil {
		return nil, fmt.Errorf("allocating the length of the queue: %w", err)
	}
	tours, err := dsm.Alloc[tour](c, "tsp/queue", capacity(p.n))
	if err != nil {
		return nil, fmt.Errorf("allocating the queue: %w", err)
	}
	// The best round trip is alone on its page: everybody reads it all the time, and it seldom changes.
	best, err := dsm.Isolate[trip](c, "tsp/best")
	if err != nil {
		return nil, fmt.Errorf("allocating the best round trip: %w", err)
	}
	r := &run{
		cities:  newMap(p.n),
		queue:   queue{count: count, tours: tours},
		best:    best,
		work:    dsm.NewMutex(c, "tsp/work"),
		improve: dsm.NewMutex(c, "tsp/improve"),
		threads: threads,
		free: func() error {
			return errors.Join(dsm.FreeIsolated(c, count), dsm.Free(c, tours), dsm.FreeIsolated(c, best))
		},
	}
	if c.Rank() != 0 {
		return r, nil
	}
	return r, r.initialise()
}

// A trip is a round trip.
type trip struct {
	length int64 // read without the lock, and so changed atomically
	path   path
}

// A run is this process's threads.
type run struct {
	cities  *cityMap
	queue   queue        // guarded by work
	best    *trip        // changed under improve
	work    kernel.Mutex // may be held when improve is locked, not the other way round
	improve kernel.Mutex
	threads int
	free    func() error // nil on ordinary memory
}

// initialise puts the tour that is only at city 0 into the queue, and takes the greedy round trip as the best so far.
func (r *run) initialise() error {
	greedy := r.cities.greedy()
	r.best.path = r.cities.direct(greedy.path)
	atomic.StoreInt64(&r.best.length, greedy.length)
	*r.queue.count = 0
	return r.queue.push(tour{depth: 1})
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

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		for done := 1; ; done++ {
			t, waiting, err := r.take(ctx)
			if err != nil {
				return fmt.Errorf("taking work: %w", err)
			}
			if t.depth == 0 {
				return nil
			}
			if err := r.search(ctx, t); err != nil {
				return err
			}
			if thread == 0 {
				// How much of what waits will be left out is not known, nor what other nodes do.
				progress.Report(done, done+waiting)
			}
		}
	})
}

// take returns the most promising tour of splitDepth cities, or of all cities if there are fewer, and how many tours
// are left in the queue. If there is no more work the tour has depth 0. Nobody who finds the queue empty has to wait for more:
// tours are put into it only by threads that hold the lock.
func (r *run) take(ctx context.Context) (t tour, waiting int, err error) {
	if err := r.work.Lock(ctx); err != nil {
		return tour{}, 0, err
	}
	defer func() { err = errors.Join(err, r.work.Unlock()) }()
	for {
		t, ok := r.queue.pop()
		if !ok {
			return tour{}, 0, nil
		}
		if r.hopeless(t.bound) {
			// So are all the others: they promise less.
			*r.queue.count = 0
			return tour{}, 0, nil
		}
		if int(t.depth) == min(splitDepth, r.cities.n) {
			return t, int(*r.queue.count), nil
		}
		if err := r.lengthen(t, r.queue.push); err != nil {
			return tour{}, 0, err
		}
	}
}

// hopeless says that a round trip of this length need not be considered. Those of equal length must be:
// their path may come before the best one's.
func (r *run) hopeless(length int32) bool { return int64(length) > atomic.LoadInt64(&r.best.length) }

// lengthen calls next with the tour lengthened by each city, in order of distance, unless that is hopeless.
func (r *run) lengthen(t tour, next func(tour) error) error {
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
			if err := next(longer); err != nil {
				return err
			}
		}
	}
	return nil
}

// search looks at all round trips that begin with t.
func (r *run) search(ctx context.Context, t tour) error {
	if int(t.depth) < r.cities.n {
		return r.lengthen(t, func(longer tour) error { return r.search(ctx, longer) })
	}
	return r.offer(ctx, trip{length: int64(t.bound), path: t.path})
}

// offer makes t the best round trip if it is.
func (r *run) offer(ctx context.Context, t trip) (err error) {
	if err := r.improve.Lock(ctx); err != nil {
		return fmt.Errorf("locking the best round trip: %w", err)
	}
	defer func() { err = errors.Join(err, r.improve.Unlock()) }()
	best := atomic.LoadInt64(&r.best.length)
	if t.length < best || t.length == best && bytes.Compare(t.path[:], r.best.path[:]) < 0 {
		r.best.path = t.path
		atomic.StoreInt64(&r.best.length, t.length)
	}
	return nil
}

// Result returns the best round trip, and as a figure its length.
func (r *run) Result(context.Context) (kernel.Result, error) {
	output := make(kernel.Uint64s, r.cities.n)
	for i := range output {
		output[i] = uint64(r.best.path[i])
	}
	return kernel.Result{
		Figures: map[string]any{"length": float64(r.best.length), "fnv": kernel.FNV(output)},
		Output:  output,
	}, nil
}

func (r *run) Close() error {
	if r.free == nil {
		return nil
	}
	return r.free()
}
