package micro

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/bench/floor"
	"dsmd/dsm"

	"golang.org/x/sys/unix"
)

// A Request names one run of one microbenchmark, for every rank.
type Request struct {
	Name string `json:"name"`
	// Run counts from 0. No two requests of a cluster may have the same Name and Run.
	Run int `json:"run"`
	// Starts asks for Reply.Starts.
	Starts bool `json:"starts,omitempty"`
}

// A Reply is the samples that one rank took, in the unit of the Micro; most ranks take none.
type Reply struct {
	Samples []float64 `json:"samples"`
	// Starts says when the operation of each sample began, in nanoseconds of CLOCK_MONOTONIC, which
	// all processes of a machine share. Only benchmarks of single accesses tell.
	Starts []int64 `json:"starts,omitempty"`
}

// Measure does this rank's part of one run. It is collective: all ranks of c call it with the same
// request.
func Measure(ctx context.Context, c *dsm.Cluster, request Request) (Reply, error) {
	chosen, err := Choose([]string{request.Name})
	if err != nil {
		return Reply{}, err
	}
	p := &place{ctx: ctx, cluster: c, request: request}
	samples, err := chosen[0].measure(p)
	if err != nil {
		return Reply{}, fmt.Errorf("%s, run %d: %w", request.Name, request.Run, err)
	}
	reply := Reply{Samples: samples}
	if request.Starts {
		reply.Starts, err = monotonic(timed(p.starts))
	}
	return reply, err
}

// monotonic are times as CLOCK_MONOTONIC has them.
func monotonic(times []time.Time) ([]int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("reading CLOCK_MONOTONIC: %w", err)
	}
	here := time.Now()
	nanos := make([]int64, len(times))
	for i, t := range times {
		nanos[i] = now.Nano() - int64(here.Sub(t))
	}
	return nanos, nil
}

// A place is where a microbenchmark runs: one rank of one run.
type place struct {
	ctx     context.Context
	cluster *dsm.Cluster
	request Request
	starts  []time.Time // when each access began that timeEach has timed
}

func (p *place) is(rank int) bool { return p.cluster.Rank() == rank }

func (p *place) barrier() error { return p.cluster.Barrier(p.ctx) }

// name is for shared objects of this run.
func (p *place) name() string { return fmt.Sprintf("micro/%s/%d", p.request.Name, p.request.Run) }

// order is a random order of all pages, another one in each run, the same on every rank. Single
// misses are not measured in ascending order, so that fetching ahead can't pass for a fast miss;
// scan measures that.
func (p *place) order(pages int) []int {
	return rand.New(rand.NewPCG(1, uint64(p.request.Run))).Perm(pages)
}

// pages is a shared array that is used one word per page.
type pages struct {
	words []uint64
	each  int // words per page
}

func (s pages) load(page int) uint64 { return s.words[page*s.each] }
func (s pages) store(page int)       { s.words[page*s.each] = uint64(page) + 1 }
func (s pages) count() int           { return len(s.words) / s.each }

// onPages allocates pages, lets steps happen one after the other on all ranks, and frees them. A
// barrier follows each step.
func (p *place) onPages(count int, steps ...func(pages)) error {
	each := p.cluster.PageBytes() / 8
	words, err := dsm.Alloc[uint64](p.ctx, p.cluster, p.name(), count*each)
	if err != nil {
		return fmt.Errorf("allocating %d pages: %w", count, err)
	}
	for i, step := range steps {
		step(pages{words, each})
		if err := p.barrier(); err != nil {
			return fmt.Errorf("barrier after step %d: %w", i, err)
		}
	}
	if err := dsm.Free(p.ctx, p.cluster, words); err != nil {
		return fmt.Errorf("freeing the pages: %w", err)
	}
	return nil
}

// at makes a step that only one rank does.
func (p *place) at(rank int, step func(pages)) func(pages) {
	return func(s pages) {
		if p.is(rank) {
			step(s)
		}
	}
}

// except makes a step that all ranks but one do.
func (p *place) except(rank int, step func(pages)) func(pages) {
	return func(s pages) {
		if !p.is(rank) {
			step(s)
		}
	}
}

func storeAll(s pages) {
	for page := range s.count() {
		s.store(page)
	}
}

func loadAll(s pages) {
	for page := range s.count() {
		sink += s.load(page)
	}
}

// sink keeps loads from being optimised away.
var sink uint64

// timed are the samples that follow the warm-up, of the rank that took any.
func timed[T any](samples []T) []T { return samples[min(floor.WarmUps, len(samples)):] }

// timeEach makes a step that accesses all pages in p's random order and appends the time of each
// access, in microseconds, to samples.
func (p *place) timeEach(samples *[]float64, gap time.Duration, access func(s pages, page int)) func(pages) {
	return func(s pages) {
		p.starts = make([]time.Time, 0, s.count())
		for _, page := range p.order(s.count()) {
			if gap > 0 {
				floor.Compute(gap)
			}
			start := time.Now()
			access(s, page)
			*samples = append(*samples, microseconds(time.Since(start)))
			p.starts = append(p.starts, start)
		}
	}
}

// timePasses makes a step that does pass for each of so many equal parts of the pages and appends
// the time per page, in microseconds, to samples.
func timePasses(passes int, samples *[]float64, pass func(pages)) func(pages) {
	return func(s pages) {
		words := len(s.words) / passes
		for i := range passes {
			part := pages{s.words[i*words : (i+1)*words], s.each}
			start := time.Now()
			pass(part)
			*samples = append(*samples, microseconds(time.Since(start))/float64(part.count()))
		}
	}
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func readMiss(gap time.Duration) func(*place) ([]float64, error) {
	return func(p *place) (samples []float64, err error) {
		err = p.onPages(pagesPerRun,
			p.at(0, storeAll),
			p.at(1, p.timeEach(&samples, gap, func(s pages, page int) { sink += s.load(page) })))
		return timed(samples), err
	}
}

func writeMiss(p *place) (samples []float64, err error) {
	err = p.onPages(pagesPerRun, p.at(0, storeAll), p.at(1, p.timeEach(&samples, 0, pages.store)))
	return timed(samples), err
}

func upgrade(p *place) (samples []float64, err error) {
	err = p.onPages(pagesPerRun, p.at(0, storeAll), p.at(1, loadAll), p.at(1, p.timeEach(&samples, 0, pages.store)))
	return timed(samples), err
}

func invalidate(p *place) (samples []float64, err error) {
	err = p.onPages(pagesPerRun, p.at(0, storeAll), p.except(0, loadAll), p.at(0, p.timeEach(&samples, 0, pages.store)))
	return timed(samples), err
}

func scan(pagesPerRun, passes int) func(*place) ([]float64, error) {
	return func(p *place) (samples []float64, err error) {
		err = p.onPages(pagesPerRun,
			p.at(0, storeAll),
			p.at(1, timePasses(passes, &samples, func(s pages) {
				for _, word := range s.words {
					sink += word
				}
			})))
		return samples, err
	}
}

func firstTouch(pagesPerRun, passes int) func(*place) ([]float64, error) {
	return func(p *place) (samples []float64, err error) {
		err = p.onPages(pagesPerRun, p.at(1, timePasses(passes, &samples, storeAll)))
		return samples, err
	}
}

// reads times single loads, readsAtATime together, with the program of rank 0 computing on every
// core or at rest.
func reads(busy bool) func(*place) ([]float64, error) {
	return func(p *place) (samples []float64, err error) {
		stop := func() {}
		err = p.onPages(readsPerRun,
			p.at(0, storeAll),
			p.at(0, func(pages) {
				if busy {
					stop = computeEverywhere()
				}
			}),
			p.at(1, func(s pages) {
				for some := range slices.Chunk(p.order(s.count()), readsAtATime) {
					start := time.Now()
					for _, page := range some {
						sink += s.load(page)
					}
					samples = append(samples, microseconds(time.Since(start))/float64(len(some)))
				}
			}))
		stop()
		return samples, err
	}
}

// computeEverywhere computes in as many goroutines as there are cores, until stop is called.
func computeEverywhere() (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	// One P more, so that the barrier at which this rank waits is answered at once.
	procs := runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	for range runtime.NumCPU() {
		all.Go(func() {
			for !over.Load() {
				floor.Compute(gap)
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
		runtime.GOMAXPROCS(procs)
	}
}

// locked locks and unlocks m and returns how long locking took, and both together, in microseconds.
func (p *place) locked(m *dsm.Mutex) (lock, both float64, err error) {
	start := time.Now()
	if err := m.Lock(p.ctx); err != nil {
		return 0, 0, fmt.Errorf("locking: %w", err)
	}
	lock = microseconds(time.Since(start))
	if err := m.Unlock(); err != nil {
		return 0, 0, fmt.Errorf("unlocking: %w", err)
	}
	return lock, microseconds(time.Since(start)), nil
}

func lockLocal(p *place) ([]float64, error) {
	m := dsm.NewMutex(p.cluster, p.name())
	var samples []float64
	if p.is(1) {
		if _, _, err := p.locked(m); err != nil { // Brings the lock here.
			return nil, err
		}
		for range callsPerRun {
			_, both, err := p.locked(m)
			if err != nil {
				return nil, err
			}
			samples = append(samples, both)
		}
	}
	return timed(samples), p.barrier()
}

func lockHandoff(p *place) ([]float64, error) {
	m := dsm.NewMutex(p.cluster, p.name())
	var samples []float64
	for range callsPerRun {
		for rank := range 2 {
			if p.is(rank) {
				lock, _, err := p.locked(m)
				if err != nil {
					return nil, err
				}
				if rank == 1 {
					samples = append(samples, lock)
				}
			}
			if err := p.barrier(); err != nil {
				return nil, err
			}
		}
	}
	return timed(samples), nil
}

func barrier(p *place) ([]float64, error) {
	if err := p.barrier(); err != nil { // So that all ranks are here when the times begin.
		return nil, err
	}
	var samples []float64
	for range callsPerRun {
		start := time.Now()
		if err := p.barrier(); err != nil {
			return nil, err
		}
		if p.is(0) {
			samples = append(samples, microseconds(time.Since(start)))
		}
	}
	return timed(samples), nil
}
