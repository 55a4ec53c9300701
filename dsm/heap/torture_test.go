package heap_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/heap"
	"dsmd/internal/kittest"
)

var (
	tortureFor  = flag.Duration("heap.for", 0, "how long TestTorture runs, all clusters together; 0: as long as some thousand values take")
	tortureSeed = flag.Uint64("heap.seed", 0, "what TestTorture draws; 0: something else each time")
)

// cell is where goroutines of all ranks put values and take them away.
type cell struct {
	state atomic.Uint32 // empty, busy (somebody uses the cell), taken
	what  heap.Slice[uint64]
	first uint64 // what the value has: this, and multiples of it
}

const (
	empty = iota
	busy
	taken
)

func together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// words is how many words a value has: most have few.
func words(r *rand.Rand) int {
	switch r.IntN(1000) {
	case 0:
		return r.IntN(50000) + 1
	case 1, 2, 3, 4, 5, 6, 7, 8, 9:
		return r.IntN(3000) + 1
	}
	return r.IntN(60) + 1
}

// use puts a value into an empty cell, or takes one away that must be what was put there.
func (e *cell) use(t *testing.T, h *heap.Heap, r *rand.Rand) {
	switch {
	case e.state.CompareAndSwap(empty, busy):
		s, err := heap.NewSlice[uint64](h, words(r))
		if err != nil {
			t.Error(err)
			e.state.Store(empty)
			return
		}
		e.what, e.first = s, r.Uint64()
		for i := range s.Get() {
			if w := &s.Get()[i]; *w != 0 {
				t.Errorf("word %d of %d of a new value is %#x", i, s.Len(), *w)
			}
			s.Get()[i] = e.first * uint64(i+1)
		}
		e.state.Store(taken)
	case e.state.CompareAndSwap(taken, busy):
		for i, w := range e.what.Get() {
			if w != e.first*uint64(i+1) {
				t.Errorf("word %d of %d is %#x, want %#x: values overlap", i, e.what.Len(), w, e.first*uint64(i+1))
				break
			}
		}
		if err := heap.Free(h, e.what); err != nil {
			t.Error(err)
		}
		e.state.Store(empty)
	}
}

// TestTorture: all goroutines of all ranks allocate and free at the same time, also what others
// have allocated. No two values overlap, each is zero when it is new, and none is left.
func TestTorture(t *testing.T) {
	const threads, each, steps = 4, 300, 400
	if *tortureSeed == 0 {
		// Ranks are given the flags that are set.
		if err := flag.Set("heap.seed", fmt.Sprint(rand.Uint64())); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("-heap.seed %d", *tortureSeed)
	dsmtest.RunEach(t, []int{1, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		h := open(t, ctx, c, "torture", 256<<20)
		cells := kittest.Must[[]cell](t)(dsm.Alloc[cell](ctx, c, "cells", each*c.Size()))
		until := time.Now().Add(*tortureFor / 4)
		var done atomic.Int64
		together(threads, func(thread int) {
			r := rand.New(rand.NewPCG(*tortureSeed, uint64(c.Rank()*threads+thread)))
			for i := 0; !t.Failed() && (i < steps || time.Now().Before(until)); i++ {
				at := each*c.Rank() + r.IntN(each) // its own, mostly
				if r.IntN(4) == 0 {
					at = r.IntN(len(cells))
				}
				cells[at].use(t, h, r)
				if r.IntN(5000) == 0 {
					if err := h.Flush(); err != nil {
						t.Error(err)
					}
				}
				done.Add(1)
			}
		})
		t.Logf("rank %d has allocated and freed %d times", c.Rank(), done.Load())
		kittest.Barrier(t, ctx, c)
		r := rand.New(rand.NewPCG(*tortureSeed, 0))
		for i := c.Rank(); i < len(cells); i += c.Size() {
			if cells[i].state.Load() == taken {
				cells[i].use(t, h, r)
			}
		}
		end(t, ctx, c, h)
	})
}
