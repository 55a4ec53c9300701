package nemesis

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"dsmd/dsm"
)

const (
	// heapKind is the kind of words of the heap.
	heapKind = "heap"
	// heapPages is how many pages it has, with one word each: so many that it takes long to hand
	// them over by a slow line.
	heapPages = 512
	// heapRun is over how many neighbouring pages a step goes.
	heapRun = 8
)

// heapWorkload reads and writes many pages, without locks. When it is told to leave it writes half
// of them and reads all, so that those who leave together have the same pages, which perhaps nobody
// else has. It is for slow-drains, and takes a while to leave.
var heapWorkload = define(&Workload{Name: heapKind, Threads: 1, work: func(m *member) (job, error) {
	words, err := dsm.Alloc[uint64](m.ctx, m.c, heapKind, heapPages*m.c.PageBytes()/8, dsm.Keep())
	w := heap{m, words}
	return job{w.step, w.finish}, err
}})

type heap struct {
	m     *member
	words []uint64
}

// step reads or writes a run of pages.
func (w heap) step(thread int, r *rand.Rand) error {
	first, does := r.IntN(heapPages-heapRun+1), read
	if r.IntN(3) == 0 {
		does = write
	}
	for page := first; page < first+heapRun; page++ {
		if err := w.do(thread, page, does); err != nil {
			return err
		}
	}
	return nil
}

// do does an operation at the word of a page. Each page is named like an era's only one.
func (w heap) do(thread, page int, does string) error {
	word := &w.words[page*w.m.c.PageBytes()/8]
	o := Operation{Place: fmt.Sprintf("%s/%d/0", heapKind, page), Do: does}
	if does == write {
		o.New = 1 + rand.Uint64()>>1
	}
	return w.m.record.do(thread, o, func() (result Result, err error) {
		err = dsm.Guard(func() {
			if does == write {
				atomic.StoreUint64(word, o.New)
			} else {
				result.Got = atomic.LoadUint64(word)
			}
		})
		return result, err
	})
}

func (w heap) finish() error {
	for page := range heapPages {
		if page%2 == w.m.c.Rank()%2 {
			if err := w.do(lastThread, page, write); err != nil {
				return err
			}
		}
	}
	for page := range heapPages {
		if err := w.do(lastThread, page, read); err != nil {
			return err
		}
	}
	return nil
}
