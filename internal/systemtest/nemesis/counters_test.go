package nemesis

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"dsmd/dsm"
)

// counterWorkload adds to words: to some by atomic operations without any lock, to the others by
// reading and writing under a lock.
var counterWorkload = define(&Workload{Name: "counter", Threads: 2, work: func(m *member) (job, error) {
	words, err := newSpread(m, "counters")
	w := counters{m, words}
	return job{w.step, w.finish}, err
}})

type counters struct {
	m     *member
	words spread
}

// step adds to some word, or reads it.
func (w counters) step(thread int, r *rand.Rand) error {
	does := add
	if r.IntN(4) == 0 {
		does = read
	}
	return w.do(thread, w.m.era(), r.IntN(spreadWords), does)
}

// do does an operation. Every second word has a lock, and so do not all of its neighbours on the
// page.
func (w counters) do(thread, era, i int, does string) error {
	word, lock := w.words.word(era, i), dsm.NewMutex(w.m.c, fmt.Sprintf("counter %d/%d", era, i))
	o := Operation{Place: fmt.Sprintf("sum/%d/%d", era, i), Do: does}
	return w.m.record.do(thread, o, func() (result Result, err error) {
		switch {
		case i/spreadPages%2 == 1:
			err = w.m.under(lock, func() {
				if does == add {
					*word++
				}
				result.Got = *word
			})
		case does == add:
			err = dsm.Guard(func() { result.Got = atomic.AddUint64(word, 1) })
		default:
			err = dsm.Guard(func() { result.Got = atomic.LoadUint64(word) })
		}
		return result, err
	})
}

// finish reads the words of this era and the one before.
func (w counters) finish() error {
	return w.m.ofLateEras(spreadWords, func(era, i int) error { return w.do(lastThread, era, i, read) })
}
