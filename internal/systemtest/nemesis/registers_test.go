package nemesis

import (
	"fmt"
	"math/rand/v2"

	"dsmd/dsm"
)

const (
	// spreadPages is over how many pages the words of an era are spread.
	spreadPages = 4
	// stridePages is from one of them to the next: more than a node ever asks for together, so that
	// it has only those that its programs touch. Then each loss can be judged by who has touched
	// the page.
	stridePages = 256
	// spreadWords is how many words there are in an era: three on each page, so that neighbours are
	// in each other's way.
	spreadWords = 3 * spreadPages
)

// spread is words that lie far apart, and on each page some close together; there are fresh ones
// for every era.
type spread struct {
	words     []uint64
	pageWords int
}

func newSpread(m *member, name string, options ...dsm.AllocOption) (spread, error) {
	s := spread{pageWords: m.c.PageBytes() / 8}
	var err error
	// It has to outlive its programs, all of which may be dead at the same time.
	s.words, err = dsm.Alloc[uint64](m.ctx, m.c, name, maxEras*spreadPages*stridePages*s.pageWords, append(options, dsm.Keep())...)
	return s, err
}

// word is one of the words of an era.
func (s spread) word(era, i int) *uint64 {
	return &s.words[pageOf(era, i)*stridePages*s.pageWords+i/spreadPages]
}

// pageOf is the page of a word, of those that are used.
func pageOf(era, i int) int { return era*spreadPages + i%spreadPages }

// ofLateEras calls visit for each of so many places of the present era and the one before, which
// late operations may still have been at.
func (m *member) ofLateEras(places int, visit func(era, i int) error) error {
	present := m.era()
	for era := max(present-1, 0); era <= present; era++ {
		for i := range places {
			if err := visit(era, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// registerWorkload reads, writes, and compares and sets words, each under a lock of its own. Some
// of them survive the loss of a host (see replicas.go).
var registerWorkload = define(&Workload{Name: "register", Threads: 2, work: func(m *member) (job, error) {
	plain, err := newSpread(m, "registers")
	if err != nil {
		return job{}, err
	}
	lasting, err := newSpread(m, "replicas", dsm.Replicated(replicas))
	w := registers{m, []memory{{plainKind, plain}, {replicaKind, lasting}}}
	return job{w.step, w.finish}, err
}})

type registers struct {
	m        *member
	memories []memory
}

// memory is words of places of a kind.
type memory struct {
	kind string
	spread
}

// plainKind is the kind of words that are lost with the host that had them.
const plainKind = "register"

// distinct is how many values writes choose from: few, so that comparing often succeeds.
const distinct = 5

// step does an operation at some word of this era.
func (w registers) step(thread int, r *rand.Rand) error {
	o := Operation{New: r.Uint64N(distinct), Old: r.Uint64N(distinct)}
	switch r.IntN(4) {
	case 0:
		o.Do = write
		// A value that nobody else writes tells most about who has seen it.
		o.New, o.Old = 1+r.Uint64(), 0
	case 1, 2:
		o.Do = read
		o.New, o.Old = 0, 0
	default:
		o.Do = swap
	}
	return w.do(thread, w.memories[r.IntN(len(w.memories))], w.m.era(), r.IntN(spreadWords), o)
}

// do does an operation under the lock of the word. A holder that died has written the word or has
// not: there is nothing to repair.
func (w registers) do(thread int, x memory, era, i int, o Operation) error {
	word, lock := x.word(era, i), dsm.NewMutex(w.m.c, fmt.Sprintf("%s %d/%d", x.kind, era, i))
	o.Place = fmt.Sprintf("%s/%d/%d", x.kind, era, i)
	return w.m.record.do(thread, o, func() (result Result, err error) {
		return result, w.m.under(lock, func() {
			switch o.Do {
			case read:
				result.Got = *word
			case write:
				*word = o.New
			case swap:
				if *word == o.Old {
					*word, result.Got = o.New, 1
				}
			}
		})
	})
}

// finish reads the words of this era and the one before.
func (w registers) finish() error {
	return w.m.ofLateEras(spreadWords, func(era, i int) error {
		for _, x := range w.memories {
			if err := w.do(lastThread, x, era, i, Operation{Do: read}); err != nil {
				return err
			}
		}
		return nil
	})
}
