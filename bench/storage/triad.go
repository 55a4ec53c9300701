package storage

import (
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// triadBytes are those of the three arrays together: more than caches hold that a core has for
// itself.
const triadBytes = 64 << 20

// Passes are when a program went over its arrays, and the processor time that it had used until
// then, in nanoseconds. The first of either is from its beginning.
type Passes struct {
	Ends      []int64 `json:"ends"` // of CLOCK_MONOTONIC
	Processor []int64 `json:"processor"`
}

// playTriad is the program that is bound by its memory. It is told to begin, and told to end.
func playTriad(asked *json.Decoder, answers *json.Encoder) error {
	_, words, err := buffer(triadBytes) // until the process ends, which does not wait for a pass
	if err != nil {
		return err
	}
	third := len(words) / 3
	a, b, c := words[:third], words[third:2*third], words[2*third:3*third]
	var stop atomic.Bool
	type outcome struct {
		passes Passes
		err    error
	}
	running := make(chan outcome, 1)
	return answer(asked, answers, func(begin bool) (any, error) {
		if begin {
			stop.Store(false)
			var p Passes
			err := p.mark() // what is read from now on is beside it
			go func() {
				err := p.triad(a, b, c, &stop)
				running <- outcome{p, err}
			}()
			return true, err
		}
		stop.Store(true)
		o := <-running
		return o.passes, o.err
	})
}

// triad is that of McCalpin's STREAM, of words: a = b + s·c.
func (p *Passes) triad(a, b, c []uint64, stop *atomic.Bool) error {
	b, c = b[:len(a)], c[:len(a)]
	for last := false; !last; {
		// What was read before it was told to stop has ended before this pass has.
		last = stop.Load()
		for i := range a {
			a[i] = b[i] + 3*c[i]
		}
		if err := p.mark(); err != nil {
			return err
		}
	}
	return nil
}

// mark notes that a pass is over.
func (p *Passes) mark() error {
	end, err := clock(unix.CLOCK_MONOTONIC)
	if err != nil {
		return err
	}
	used, err := clock(unix.CLOCK_PROCESS_CPUTIME_ID)
	if err != nil {
		return err
	}
	p.Ends, p.Processor = append(p.Ends, end), append(p.Processor, used)
	return nil
}

// Whole is all of the time that there are passes of.
func (p *Passes) Whole() []Reading {
	return []Reading{{Begin: p.Ends[0], End: p.Ends[len(p.Ends)-1]}}
}

// Rate is how many bytes went through the arrays per second while something was read, and which
// part of a processor the program had then. Errors: the program did not run then.
func (p *Passes) Rate(during []Reading) (bytesPerSecond, share float64, err error) {
	var passes, processor, nanos float64
	for _, r := range during {
		before, usedBefore, ok := p.at(r.Begin)
		after, usedAfter, ok2 := p.at(r.End)
		if !ok || !ok2 {
			return 0, 0, errors.New("the memory-bound program did not run while something was read")
		}
		passes, processor, nanos = passes+after-before, processor+usedAfter-usedBefore, nanos+float64(r.End-r.Begin)
	}
	return passes * triadBytes / (nanos / 1e9), processor / nanos, nil
}

// at is how many passes were made at a time, and what they had used, by interpolation.
func (p *Passes) at(when int64) (passes, processor float64, ok bool) {
	i, found := slices.BinarySearch(p.Ends, when)
	switch {
	case found:
		return float64(i), float64(p.Processor[i]), true
	case i == 0 || i == len(p.Ends):
		return 0, 0, false
	}
	part := float64(when-p.Ends[i-1]) / float64(p.Ends[i]-p.Ends[i-1])
	return float64(i-1) + part, float64(p.Processor[i-1]) + part*float64(p.Processor[i]-p.Processor[i-1]), true
}
