package cholesky

import (
	"sync/atomic"
	"time"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

func (r *run) Compute(t *kernel.Thread) { newWorker(r, t).work() }

// A worker is one thread of a run. Everything in it is its own.
type worker struct {
	*kernel.Thread
	*run
	finished []bool  // panels that this thread knows to be finished
	applied  []int   // how many sources each of its panels has been changed by
	ready    []int32 // its panels that can go on, in order of arrival
	read     int     // how much of its inbox it has read
	left     int     // how many of its panels are not finished
}

func newWorker(r *run, t *kernel.Thread) *worker {
	w := &worker{Thread: t, run: r, finished: make([]bool, len(r.panels)), applied: make([]int, len(r.panels))}
	for i := range r.panels {
		if p := &r.panels[i]; p.owner == t.Index {
			w.left++
			if len(p.sources) == 0 {
				w.ready = append(w.ready, int32(i))
			}
		}
	}
	return w
}

// Waiting for a panel begins with shortestNap and becomes longer, up to longestNap. A nap leaves
// the core to whoever computes the panel.
const (
	shortestNap = 5 * time.Microsecond
	longestNap  = 200 * time.Microsecond
)

// work finishes the thread's panels.
func (w *worker) work() {
	own, nap := w.left, shortestNap
	for w.left > 0 {
		w.GoOn()
		w.receive()
		if len(w.ready) == 0 {
			time.Sleep(nap)
			nap = min(2*nap, longestNap)
			continue
		}
		nap = shortestNap
		number := w.ready[0]
		w.ready = w.ready[1:]
		w.advance(number)
		w.Done(own-w.left, own)
	}
}

// receive takes note of the panels that have arrived in the inbox.
func (w *worker) receive() {
	inbox := w.inboxes[w.Index]
	for end := int(atomic.LoadInt32(&inbox[0])); w.read < end; {
		w.read++
		number := inbox[w.read]
		if p := &w.panels[number]; p.owner/w.Threads != w.Index/w.Threads {
			kernel.Fetch(w.Thread, w.block(p), dsm.Read)
		}
		w.note(number)
	}
}

// note takes note that a panel is finished. The thread's panels that are waiting for just this one
// can go on.
func (w *worker) note(number int32) {
	w.finished[number] = true
	for _, target := range w.panels[number].targets {
		if p := &w.panels[target]; p.owner == w.Index && p.sources[w.applied[target]] == number {
			w.ready = append(w.ready, target)
		}
	}
}

// advance applies to a panel the contributions that are next and there, and finishes it if these
// were the last.
func (w *worker) advance(number int32) {
	p := &w.panels[number]
	for w.applied[number] < len(p.sources) {
		source := p.sources[w.applied[number]]
		if !w.finished[source] {
			return
		}
		w.update(p, &w.panels[source])
		w.applied[number]++
	}
	w.Check(w.eliminate(p), "eliminating panel %d", number)
	w.left--
	w.announce(number)
	w.note(number)
}

// announce puts a finished panel into the inboxes of the other threads that need it.
func (w *worker) announce(number int32) {
	told := make(map[int]bool, w.Total)
	for _, target := range w.panels[number].targets {
		if owner := w.panels[target].owner; owner != w.Index && !told[owner] {
			told[owner] = true
			w.Locked(w.locks[owner], func() {
				inbox := w.inboxes[owner]
				inbox[1+inbox[0]] = number
				atomic.AddInt32(&inbox[0], 1)
			})
		}
	}
}
