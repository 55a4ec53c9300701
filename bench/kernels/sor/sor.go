// Package sor is the red-black successive over-relaxation benchmark.
//
// It solves Laplace's equation on a square grid of float64 with fixed edges. The points are
// coloured like a chessboard. One iteration updates all red points, then all black ones, each to a
// weighted mean of its old value and its four neighbours' mean; the neighbours of a point have the
// other colour. So within a colour the order does not matter, and any division of the grid gives
// the same bits as the sequential sweep.
//
// The threads of all nodes take equal blocks of neighbouring rows. A block is written by its thread
// only. At its two edges it reads one row of each neighbour in each half iteration, and a barrier
// follows each half. As in the program on which DSMs are measured, each colour has an array of its
// own: so a half iteration writes one array and reads the other. A thread's rows begin on a page in
// both, so that no page is both written by one node and used by another between two barriers. (In
// one array for both colours, neighbours would take the pages at their edge from each other in
// every half iteration, and half of what travels would be points that nobody has asked for.)
//
// On pages this means: pages in the middle of a block are fetched once, and those of one colour's
// row at each edge travel in every half iteration. A node's first and last thread have those
// fetched (dsm.Prefetch) before they begin, so that they wait for a row at a time, not for each of
// its pages.
package sor

import (
	"fmt"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

const (
	// iterations is fixed, so that the only parameter is the grid's edge; 20 is what published
	// measurements of DSMs on this kernel use.
	iterations = 20
	// omega is the relaxation factor. Any value between 1 and 2 converges; the work is the same.
	omega = 1.25
)

// Kernel is the benchmark "sor". Its output is the grid, row by row; the sizes' parameter is its
// edge in points.
var Kernel = kernel.Kernel{
	Name:    "sor",
	Summary: fmt.Sprintf("red-black successive over-relaxation, %d iterations on a square grid, rows divided into blocks", iterations),
	Sizes:   kernel.Sizes{Parameter: "grid edge", Test: 128, Default: 2048, Large: 4096, Min: 3, Max: 1 << 16},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Prepare has each thread fill its own rows, so that pages start where they will be used.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	g := newGrid(p.n, t.Total, t.PageBytes())
	g.colours[red] = kernel.Share[float64](t, "sor/red", g.length)
	g.colours[black] = kernel.Share[float64](t, "sor/black", g.length)
	r := &run{grid: g, barrier: t.Barrier("sor/barrier")}
	return r, t.Each(func(t *kernel.Thread) {
		lo, hi := g.written(t.Total, t.Index)
		for i := lo; i < hi; i++ {
			g.fill(i)
		}
	})
}

type run struct {
	grid    grid
	barrier kernel.Barrier
}

func (r *run) Compute(t *kernel.Thread) {
	for iteration := range iterations {
		for _, colour := range []int{red, black} {
			r.sweep(t, colour)
			t.Wait(r.barrier, "of an iteration")
		}
		t.Done(iteration+1, iterations)
	}
}

// sweep updates the points of one colour in a thread's block.
func (r *run) sweep(t *kernel.Thread, colour int) {
	lo, hi := r.grid.relaxed(t.Total, t.Index)
	if lo == hi {
		return
	}
	if t.Index == t.First {
		r.meet(t, colour, lo, lo-1)
	}
	if t.Index == t.First+t.Threads-1 {
		r.meet(t, colour, hi-1, hi)
	}
	r.grid.relax(lo, hi, colour)
}

// meet fetches what is needed to update one colour of the row own, which lies beside theirs of the
// next node's: of theirs the other colour, to read, and of its own, which the other node has read,
// this colour to write. Nobody takes them away before the next barrier.
func (r *run) meet(t *kernel.Thread, colour, own, theirs int) {
	if theirs == 0 || theirs == r.grid.edge-1 {
		return
	}
	kernel.Fetch(t, r.grid.row(1-colour, theirs), dsm.Read)
	kernel.Fetch(t, r.grid.row(colour, own), dsm.Write)
}

func (r *run) Result() kernel.Result {
	return kernel.Result{
		Figures: map[string]any{"fnv": kernel.FNV(r.grid), "sum": r.grid.sum(), "iterations": float64(iterations)},
		Output:  r.grid,
	}
}
