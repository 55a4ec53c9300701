package dsm

import (
	"errors"
	"testing"
	"time"

	"dsmd/internal/perf"
)

// window is a sampler that samples nothing.
type window struct{}

func (window) Drain(func(*perf.Fault)) {}
func (window) Lost() uint64            { return 0 }
func (window) Close()                  {}

// TestWindows: the same share of faults is sampled in the first window as later, and who waits
// between turns never waits for long.
func TestWindows(t *testing.T) {
	period := uint64(0)
	w := newWindows(func(p uint64) (sampler, error) {
		period = p
		return window{}, nil
	})
	sampled := 0.0 // time, by the share of faults
	early := 0.0
	const long = 5 * time.Minute
	for now := time.Duration(0); now < long; {
		d := w.turn()
		if d <= 0 || d > 2*traceEvery {
			t.Fatalf("the next turn is after %v, want at most %v", d, 2*traceEvery)
		}
		if w.open != nil {
			sampled += d.Seconds() / float64(period)
		}
		if now += d; now == firstWindow {
			early = sampled / firstWindow.Seconds()
		}
	}
	if late := sampled / long.Seconds(); early < late*0.8 || early > late*1.25 {
		t.Errorf("a share of %.3f of all faults is sampled at first, and later %.3f", early, late)
	}
	w.close()
	if w.lost || w.open != nil {
		t.Error("a window has lost samples, or is open when it is closed")
	}
}

// TestWindowsThatFail: if none can be opened at first there are none. Later it is tried again.
func TestWindowsThatFail(t *testing.T) {
	for _, first := range []bool{true, false} {
		tries, fails := 0, first
		w := newWindows(func(uint64) (sampler, error) {
			if tries++; fails {
				return nil, errors.New("too many open files")
			}
			return window{}, nil
		})
		for range 10 {
			w.turn()
		}
		fails = true
		for range 1000 {
			w.turn()
		}
		if got := w.givenUp(); got != first || w.lost == first || w.open != nil {
			t.Errorf("fails at first: %v, given up: %v, samples lost: %v", first, w.err, w.lost)
		}
		before := tries
		fails = false
		for range 2 * int(maxPause/(2*traceEvery)) {
			w.turn()
		}
		if again := tries > before; again == first {
			t.Errorf("fails at first: %v, tried again: %v", first, again)
		}
	}
}

// TestNextWay: where the best way to sample is forbidden the next one is taken, from the first
// window on and for good; and why is known.
func TestNextWay(t *testing.T) {
	forbidden, absent := errors.New("forbidden"), errors.New("absent")
	tries := map[string]int{}
	way := func(name string, err error) opener {
		return func(uint64) (sampler, error) {
			tries[name]++
			return window{}, err
		}
	}
	w := newWindows(way("best", forbidden), way("next", nil), way("last", nil))
	for range 100 {
		w.turn()
	}
	if tries["best"] != 1 || tries["next"] < 10 || tries["last"] > 0 || w.givenUp() || !errors.Is(w.err, forbidden) {
		t.Errorf("tries %v, given up: %v, %v", tries, w.givenUp(), w.err)
	}
	w = newWindows(way("best", forbidden), way("next", absent))
	if w.turn(); !w.givenUp() || w.open != nil || !errors.Is(w.err, forbidden) || !errors.Is(w.err, absent) {
		t.Errorf("given up: %v, %v", w.givenUp(), w.err)
	}
}
