// Package ocean is the Ocean benchmark: eddies and boundary currents of a square ocean basin.
//
// The basin is seen from above, as two layers of water on a grid of n by n points, n-2 a power of
// two. A step advances time by eight hours: a dozen sweeps over whole grids (Laplacians, Jacobians,
// linear combinations) give the right-hand sides of two elliptic equations, which a multigrid
// solver with red-black Gauss-Seidel relaxation and W-cycles solves. The run is one equation more,
// to begin with, and six steps. It computes what the program of SPLASH-2 does (Woo et al., ISCA
// 1995), operation by operation.
//
// # How it is divided
//
// The threads get bands of rows. Each band of each grid is contiguous in memory, with a border of
// rows around it that holds copies of the neighbours' points, and all bands of a thread lie on
// pages that only this thread writes.
//
// This port differs from the original in what is copied, and how often. The original's contiguous
// version gives the threads rectangles, which have less border. But a short row costs a page as a
// long one does, and a band has two neighbours where a rectangle has four.
//
// In the original a thread reads its neighbours' points where they are. On pages that is expensive:
// while the reader copies the points of one colour, the owner relaxes the other colour on the same
// pages. Here a thread publishes its outermost rows in a frame, a compact copy for each side at
// which there is a neighbour, and the neighbours read that. The bands themselves never travel.
//
// In the original a barrier follows the red points of a relaxation, and another one the black
// points. Here a thread has the black points of two rows of each neighbour, and relaxes the red
// ones of the nearest row as the neighbour does. So only black points travel, and the barrier that
// finds the largest error is enough. The frames have two copies of them on different pages, written
// in turn: one can be published while a neighbour reads the other. A coarser level begins in the
// border, too, so no barrier precedes its first relaxation.
//
// # What depends on the number of threads
//
// Every point is computed from the same values in the same order however the grid is divided. The
// exceptions are two integrals over the basin, sums of the threads' partial sums, which depend on
// the division in the last bits. With one thread the result has the same bits as the original with
// one processor, but for the few grids where the C library rounds a sine of the wind wrongly. With
// more, it is the same in every run with that many threads, and differs from the sequential result
// by rounding, which Problem.Verify bounds.
package ocean

import (
	"errors"
	"fmt"
	"math/bits"

	"dsmd/bench/kernel"
)

const (
	smallest = 4    // the original takes no smaller grid: it has 2 by 2 interior points
	largest  = 8194 // all grids together take 20 GB
)

// Kernel is the benchmark "ocean". Its output is the stream function, both layers one after the
// other, each row by row with its fixed edge. The sizes' parameter is the original's -n.
var Kernel = kernel.Kernel{
	Name:    "ocean",
	Summary: fmt.Sprintf("eddies in an ocean basin, %d steps with a red-black multigrid solver, bands of rows", steps),
	Sizes: kernel.Sizes{
		Parameter: "grid edge, a power of 2 plus 2", Test: 66, Default: 258, Large: 1026, Min: smallest, Max: largest,
		Valid: func(n int) error {
			if bits.OnesCount(uint(n-2)) != 1 {
				return errors.New("not a power of 2 plus 2")
			}
			return nil
		},
	},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Prepare has each thread set its grids, so that pages start where they will be used. As in the
// original, that is no part of the computing.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	d := divide(p.n, t.Total)
	l := d.layout(max(1, t.PageBytes()/8))
	words := kernel.Share[float64](t, "ocean/grids", l.words)
	r := &run{
		division: d,
		barrier:  t.Barrier("ocean/barrier"),
		partial:  kernel.Share[float64](t, "ocean/partial sums", t.Total),
		here:     kernel.NewBarrier(t.Threads),
		worst:    make([]float64, t.Threads),
	}
	if len(words) > 0 {
		r.basins = d.basins(l, words)
	}
	return r, t.Each(func(t *kernel.Thread) {
		clear(l.memory(words, t.Index))
		newWorker(r, t).initialise()
	})
}

type run struct {
	division division
	basins   []basin // of all threads, also those of other processes
	barrier  kernel.Barrier
	partial  []float64      // what each thread brings to sum
	here     kernel.Barrier // of this process's threads, for max
	worst    []float64      // what each of them brings to max
	largest  float64        // written by the first of them, between two barriers here
	// solves and psiai and psibi are what thread 0 found, in the process that has it.
	solves       []solve
	psiai, psibi float64
}

// Compute lets every thread go through the whole simulation. Threads without points take part in
// the barriers.
func (r *run) Compute(t *kernel.Thread) { newWorker(r, t).simulate() }

func (r *run) Result() kernel.Result {
	output := make(kernel.Float64s, 0, 2*r.division.edge*r.division.edge)
	for layer := range 2 {
		output = append(output, r.gather(layer)...)
	}
	return kernel.Result{Figures: figures(r.solves, r.psiai, r.psibi, output, r.division.edge), Output: output}
}

// gather puts a layer's bands together.
func (r *run) gather(layer int) []float64 {
	whole := make([]float64, r.division.edge*r.division.edge)
	for _, b := range r.basins {
		g := b.psi[layer]
		for i := g.top; i <= g.bottom; i++ {
			copy(whole[(g.row0+i)*r.division.edge:], g.row(i))
		}
	}
	return whole
}
