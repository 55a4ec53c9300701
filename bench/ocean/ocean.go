// Package ocean is the Ocean benchmark: eddies and boundary currents of a square ocean basin.
//
// The basin is seen from above, as two layers of water on a grid of n by n points, n-2 a power of two. A
// step advances time by eight hours: a dozen sweeps over whole grids (Laplacians, Jacobians, linear
// combinations) give the right-hand sides of two elliptic equations, which a multigrid solver with red-black Gauss-Seidel
// relaxation and W-cycles solves. The run is one equation more, to begin with, and six steps. It computes what
// the program of SPLASH-2 does (Woo et al., ISCA 1995), in the version with contiguous partitions, operation by operation.
//
// # How it is divided
//
// The threads get rectangles, as square as their number permits. Each rectangle of each grid is
// contiguous in memory, with a border of one point around it that holds copies of the neighbours'
// points, and all rectangles of a thread lie on pages that only this thread writes.
//
// Where this port differs from the original is how the copies are made. There a thread reads its neighbours'
// rectangles. On pages that is expensive: a column of a rectangle touches all of its pages, and while the
// reader copies the points of one colour the owner relaxes the other colour on the same pages. Here
// a thread publishes its outermost rows and columns in a frame, a compact copy of about a page for a rectangle of 128
// by 128 points, and the neighbours read that. The rectangles themselves never travel.
//
// # What depends on the number of threads
//
// Every point is computed from the same values in the same order however the grid is divided. The exceptions are
// two integrals over the basin, sums of the threads' partial sums, which depend on the division in the last
// bits. With one thread the result has the same bits as the original with one processor, but for the few grids where
// the C library rounds a sine of the wind wrongly. With more, it is the same in every
// run with that many threads, and differs from the sequential result by rounding, which Problem.Verify bounds.
package ocean

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

const (
	smallest = 4    // the original takes no smaller grid: it has 2 by 2 interior points
	largest  = 8194 // all grids together take 20 GB
)

// Kernel is the benchmark "ocean". Its output is the stream function, both layers one after the other,
// each row by row with its fixed edge.
type Kernel struct{}

// Name returns "ocean".
func (Kernel) Name() string { return "ocean" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("eddies in an ocean basin, %d steps with a red-black multigrid solver, contiguous rectangles of the grid", steps)
}

// Sizes returns the sizes; the parameter is the grid's edge in points, the original's -n.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{
		Parameter: "grid edge, a power of 2 plus 2", Test: 66, Default: 258, Large: 1026, Min: smallest, Max: largest,
		Valid: func(n int) error {
			if bits.OnesCount(uint(n-2)) != 1 {
				return errors.New("not a power of 2 plus 2")
			}
			return nil
		},
	}
}

// Problem returns the problem on a grid of n by n points.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Sequential prepares a run by one thread. It has no neighbours, so it publishes nothing, and its barriers
// are two uncontended locks each.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on an ordinary slice.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	division := divide(p.n, threads)
	const pageWords = 512 // as on pages, so that threads don't share cache lines
	layout := division.layout(pageWords)
	t := newTeam(threads, threads, 0, make([]float64, threads), kernel.NewBarrier(threads), nil)
	return newRun(division, layout, make([]float64, layout.words), t, kernel.Memory{}), nil
}

// Cluster prepares a run on a shared slice.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	division := divide(p.n, total)
	layout := division.layout(max(1, c.PageBytes()/8))
	var memory kernel.Memory
	var words, partial []float64
	if err := errors.Join(
		kernel.Share(ctx, &memory, c, "ocean/grids", layout.words, &words),
		kernel.Share(ctx, &memory, c, "ocean/partial sums", total, &partial)); err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	t := newTeam(threads, total, threads*c.Rank(), partial,
		dsm.NewTeamBarrier(c, "ocean/barrier", c.Size(), threads),
		func(ctx context.Context, x float64) (float64, error) {
			return dsm.Reduce(ctx, c, "ocean/error", x, dsm.Max[float64])
		})
	return newRun(division, layout, words, t, memory), nil
}

// A run is this process's threads.
type run struct {
	kernel.Memory
	division division
	team     *team
	basins   []basin // of all threads, also those of other processes
	// solves and psiai and psibi are what thread 0 found, in the process that has it.
	solves       []solve
	psiai, psibi float64
}

func newRun(d division, l layout, words []float64, t *team, memory kernel.Memory) *run {
	r := &run{Memory: memory, division: d, team: t, basins: d.basins(l, words)}
	for thread := range t.local {
		// The pages start where they will be used. As in the original, that is no part of the computing.
		clear(l.memory(words, t.first+thread))
		newWorker(r, t.first+thread).initialise()
	}
	return r
}

// Compute lets every thread go through the whole simulation. Threads without points take part in the barriers.
func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.team.local, func(ctx context.Context, thread int) error {
		w := newWorker(r, r.team.first+thread)
		if err := w.simulate(ctx, progress); err != nil {
			return fmt.Errorf("ocean, thread %d: %w", w.index, err)
		}
		return nil
	})
}

func (r *run) Result(context.Context) (kernel.Result, error) {
	output := make(kernel.Float64s, 0, 2*r.division.edge*r.division.edge)
	for layer := range 2 {
		output = append(output, r.gather(layer)...)
	}
	return kernel.Result{Figures: figures(r.solves, r.psiai, r.psibi, output, r.division.edge), Output: output}, nil
}

// gather puts a layer's rectangles together.
func (r *run) gather(layer int) []float64 {
	whole := make([]float64, r.division.edge*r.division.edge)
	for _, b := range r.basins {
		g := b.psi[layer]
		for i := g.top; i <= g.bottom; i++ {
			at := (g.row0+i)*r.division.edge + g.col0
			copy(whole[at+g.left:at+g.right+1], g.owned(i))
		}
	}
	return whole
}
