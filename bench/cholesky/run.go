package cholesky

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"dsmd/bench/kernel"
)

// inboxRoom is the length of an inbox: every panel can arrive there once. It is a multiple of a page of 4 KiB.
func inboxRoom(s *structure) int {
	const granule = 1024
	return (len(s.panels) + granule - 1) / granule * granule
}

// A counter is how many panels have arrived in an inbox, on a page of its own (of up to 4 KiB).
type counter struct {
	n int64 // changed under the inbox's lock, and read atomically by its owner
	_ [4096 - 8]byte
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	factor
	input   *matrix
	arrived []counter // by thread
	inboxes []int32   // of all threads, one after another, each inboxRoom long
	locks   []kernel.Mutex
	first   int
	threads int
	total   int
	// fetch brings a panel here at once, not page by page as it is touched; nil on ordinary memory.
	fetch func(ctx context.Context, block []float64) error
}

// initialise has each thread store the matrix's elements in its panels, so that pages start where they will be written.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		k := r.first + thread
		atomic.StoreInt64(&r.arrived[k].n, 0)
		for i := range r.panels {
			if p := &r.panels[i]; p.owner == k {
				r.fill(p)
			}
		}
		return nil
	})
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		w := newWorker(r, r.first+thread)
		if thread != 0 {
			return w.work(ctx, nil)
		}
		return w.work(ctx, progress)
	})
}

// A worker is one thread of a run, number k of all nodes' threads. Everything in it is its own.
type worker struct {
	*run
	k        int
	finished []bool  // panels that this thread knows to be finished
	applied  []int   // how many sources each of its panels has been changed by
	ready    []int32 // its panels that can go on, in order of arrival
	read     int     // how much of its inbox it has read
	left     int     // how many of its panels are not finished
}

func newWorker(r *run, k int) *worker {
	w := &worker{run: r, k: k, finished: make([]bool, len(r.panels)), applied: make([]int, len(r.panels))}
	for i := range r.panels {
		if p := &r.panels[i]; p.owner == k {
			w.left++
			if len(p.sources) == 0 {
				w.ready = append(w.ready, int32(i))
			}
		}
	}
	return w
}

// Waiting for a panel begins with shortestNap and becomes longer, up to longestNap. A nap leaves the core to
// whoever computes the panel.
const (
	shortestNap = 5 * time.Microsecond
	longestNap  = 200 * time.Microsecond
)

// work finishes the thread's panels.
func (w *worker) work(ctx context.Context, progress kernel.Progress) error {
	own, nap := w.left, shortestNap
	for w.left > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.receive(ctx); err != nil {
			return err
		}
		if len(w.ready) == 0 {
			time.Sleep(nap)
			nap = min(2*nap, longestNap)
			continue
		}
		nap = shortestNap
		number := w.ready[0]
		w.ready = w.ready[1:]
		if err := w.goOn(ctx, number); err != nil {
			return err
		}
		progress.Report(own-w.left, own)
	}
	return nil
}

// receive takes note of the panels that have arrived in the inbox.
func (w *worker) receive(ctx context.Context) error {
	room := len(w.inboxes) / w.total
	for end := int(atomic.LoadInt64(&w.arrived[w.k].n)); w.read < end; w.read++ {
		number := w.inboxes[w.k*room+w.read]
		p := &w.panels[number]
		if elsewhere := p.owner/w.threads != w.k/w.threads; elsewhere && w.fetch != nil {
			if err := w.fetch(ctx, w.block(p)); err != nil {
				return fmt.Errorf("fetching panel %d: %w", number, err)
			}
		}
		w.note(number)
	}
	return nil
}

// note takes note that a panel is finished. The thread's panels that are waiting for just this one can go on.
func (w *worker) note(number int32) {
	w.finished[number] = true
	for _, target := range w.panels[number].targets {
		if p := &w.panels[target]; p.owner == w.k && p.sources[w.applied[target]] == number {
			w.ready = append(w.ready, target)
		}
	}
}

// goOn applies to a panel the contributions that are next and there, and finishes it if these were the last.
func (w *worker) goOn(ctx context.Context, number int32) error {
	p := &w.panels[number]
	for w.applied[number] < len(p.sources) {
		source := p.sources[w.applied[number]]
		if !w.finished[source] {
			return nil
		}
		w.update(p, &w.panels[source])
		w.applied[number]++
	}
	if err := w.eliminate(p); err != nil {
		return err
	}
	w.left--
	if err := w.announce(ctx, number); err != nil {
		return fmt.Errorf("announcing panel %d: %w", number, err)
	}
	w.note(number)
	return nil
}

// announce puts a finished panel into the inboxes of the other threads that need it.
func (w *worker) announce(ctx context.Context, number int32) error {
	told := make(map[int]bool, w.total)
	for _, target := range w.panels[number].targets {
		owner := w.panels[target].owner
		if owner == w.k || told[owner] {
			continue
		}
		told[owner] = true
		if err := w.put(ctx, owner, number); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) put(ctx context.Context, k int, number int32) (err error) {
	if err := r.locks[k].Lock(ctx); err != nil {
		return fmt.Errorf("locking inbox %d: %w", k, err)
	}
	defer func() { err = errors.Join(err, r.locks[k].Unlock()) }()
	room := len(r.inboxes) / r.total
	n := atomic.LoadInt64(&r.arrived[k].n)
	r.inboxes[k*room+int(n)] = number
	// The number must be there before it counts: the owner reads without the lock.
	atomic.StoreInt64(&r.arrived[k].n, n+1)
	return nil
}
