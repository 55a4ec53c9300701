package dsm

import (
	"math/rand/v2"
	"time"

	"dsmd/internal/perf"
)

// windows is when the faults of this process are sampled: at first for a while, so that short
// programs have samples, too, and from then on a fifth of the time. What samples cost is not the
// faults, but that the kernel takes up to a microsecond longer for each switch between threads as
// long as one of them may be sampled. It belongs to one goroutine.
type windows struct {
	sampler *perf.Sampler // nil: there is no window now
	first   time.Duration // how much longer the first window is
	toll    time.Duration // what opening and closing the last one took
	lost    bool          // samples of windows that are closed
	err     error         // why there are no more windows
}

const (
	// firstWindow and windowTime are how long windows are, and windowPause is from the end of one
	// to the next, half of that more or less: a program that does the same at the same intervals is
	// sampled in all it does.
	firstWindow = 100 * time.Millisecond
	windowTime  = 20 * time.Millisecond
	windowPause = 80 * time.Millisecond
	// A pause is tollPause times as long at least as what the window has cost, which is much where
	// there are many threads and processors; but not longer than maxPause.
	tollPause = 50
	maxPause  = time.Second
	// samplePeriod: one of so many faults is sampled, within a window.
	samplePeriod = 2
)

// newWindows opens the first one.
func newWindows() *windows {
	w := &windows{first: firstWindow}
	w.open()
	return w
}

// turn is called once at first, and then whenever the time is over that it has returned. It may
// open or close a window.
func (w *windows) turn() time.Duration {
	switch {
	case w.sampler == nil:
		if !w.open() {
			return traceEvery
		}
		return windowTime
	case w.first > 0:
		w.first -= windowTime
		return windowTime
	}
	w.close()
	pause := windowPause/2 + rand.N(windowPause)
	return min(max(pause, tollPause*w.toll), maxPause)
}

// open opens a window, if that is possible.
func (w *windows) open() bool {
	if w.err != nil {
		return false
	}
	began := time.Now()
	w.sampler, w.err = perf.Open(samplePeriod)
	w.toll = time.Since(began)
	if w.err != nil {
		w.sampler = nil
	}
	return w.err == nil
}

// drain takes the samples of the window that is open.
func (w *windows) drain(f func(*perf.Fault)) {
	if w.sampler != nil {
		w.sampler.Drain(f)
	}
}

// close closes the window, if one is open. Samples that nobody has taken are gone.
func (w *windows) close() {
	if w.sampler == nil {
		return
	}
	began := time.Now()
	w.lost = w.lost || w.sampler.Lost() > 0
	w.sampler.Close()
	w.sampler = nil
	w.toll += time.Since(began)
}
