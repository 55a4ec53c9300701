package dsm

import (
	"fmt"
	"math/rand/v2"
	"time"

	"dsmd/internal/perf"
)

// windows is when the faults of this process are sampled: at first for a while, so that short
// programs have samples, too, and from then on a fifth of the time. What samples cost is not the
// faults, but that the kernel takes up to a microsecond longer for each switch between threads as
// long as one of them may be sampled. It belongs to one goroutine.
type windows struct {
	ways   []opener      // to open one, the best first; none: none has worked
	open   sampler       // nil: there is no window now
	first  time.Duration // how much longer the first window is
	pause  time.Duration // how much longer there is none
	toll   time.Duration // what opening and closing the last one took
	opened bool          // one at least
	lost   bool          // samples of windows that are closed
	err    error         // why better ways do not work
}

// opener begins to sample one of period faults, or of moments.
type opener func(period uint64) (sampler, error)

// sampler is a *perf.Sampler, or a *perf.Watcher.
type sampler interface {
	Drain(func(*perf.Fault))
	Lost() uint64
	Close()
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
	// firstPeriod and windowPeriod: one of so many faults is sampled, within a window. So it is the
	// same share of all faults, early or late, as long as pauses have their usual length.
	firstPeriod  = (windowTime + windowPause) / windowTime
	windowPeriod = 1
)

// newWindows opens the first one.
func newWindows(ways ...opener) *windows {
	w := &windows{ways: ways, first: firstWindow}
	w.begin(uint64(firstPeriod))
	return w
}

// turn is called once at first, and then whenever the time is over that it has returned, which is
// at most 2 * traceEvery. It may open or close a window.
func (w *windows) turn() time.Duration {
	switch {
	case w.first > 0 && w.open != nil:
		w.first -= windowTime
		return windowTime
	case w.open != nil:
		w.close()
		w.pause = min(max(windowPause/2+rand.N(windowPause), tollPause*w.toll), maxPause)
	case w.pause == 0 && w.begin(windowPeriod):
		return windowTime
	}
	part := min(w.pause, 2*traceEvery)
	w.pause -= part
	return part
}

// begin opens a window. If that is not possible now it may be later: there may be too many open
// files at the moment, say. A way that does not work at first is given up for the next one.
func (w *windows) begin(period uint64) bool {
	w.pause = traceEvery
	for !w.givenUp() {
		began := time.Now()
		s, err := w.ways[0](period)
		switch {
		case err == nil:
			w.open, w.opened = s, true
			w.toll, w.pause = time.Since(began), 0
			return true
		case w.opened:
			w.lost, w.pause = true, maxPause
			return false
		}
		if w.err != nil {
			err = fmt.Errorf("%w; %w", w.err, err)
		}
		w.err = err
		w.ways = w.ways[1:]
	}
	return false
}

// givenUp is whether no way works, so that nothing is sampled.
func (w *windows) givenUp() bool { return len(w.ways) == 0 }

// drain takes the samples of the window that is open.
func (w *windows) drain(f func(*perf.Fault)) {
	if w.open != nil {
		w.open.Drain(f)
	}
}

// close closes the window, if one is open. Samples that nobody has taken are gone.
func (w *windows) close() {
	if w.open == nil {
		return
	}
	began := time.Now()
	w.lost = w.lost || w.open.Lost() > 0
	w.open.Close()
	w.open = nil
	w.toll += time.Since(began)
}
