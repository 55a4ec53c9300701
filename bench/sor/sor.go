// Package sor is the red-black successive over-relaxation benchmark.
//
// It solves Laplace's equation on a square grid of float64 with fixed edges. The points are coloured
// like a chessboard. One iteration updates all red points, then all black ones, each to a weighted
// mean of its old value and its four neighbours' mean; the neighbours of a point have the other colour.
// So within a colour the order does not matter, and any division of the grid gives the same bits as the
// sequential sweep.
//
// The threads of all nodes take equal blocks of neighbouring rows. A block is written by its thread only. At
// its two edges it reads one row of each neighbour in each half iteration, and a barrier follows each half. On
// pages this means: pages in the middle of a block are fetched once, and the pages of two rows at each edge
// travel in every iteration. A node's first and last thread have those fetched (dsm.Prefetch) just before they update the row at the edge,
// so that they wait for a row at a time, not for each of its pages.
package sor

import (
	"context"
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

// Kernel is the benchmark "sor". Its output is the grid, row by row.
type Kernel struct{}

// Name returns "sor".
func (Kernel) Name() string { return "sor" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("red-black successive over-relaxation, %d iterations on a square grid, rows divided into blocks", iterations)
}

// Sizes returns the sizes; the parameter is the grid's edge in points.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "grid edge", Test: 128, Default: 2048, Large: 4096, Min: 3, Max: 1 << 16}
}

// Problem returns the problem on a grid of n by n points.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Sequential prepares the sweep by one thread.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on an ordinary slice. With one thread the barriers cost two uncontended
// locks an iteration, which is nothing beside a sweep, so that this is the sequential version, too.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	r := &run{
		grid:    grid{edge: p.n, points: make([]float64, p.n*p.n)},
		barrier: kernel.NewBarrier(threads),
		threads: threads,
		total:   threads,
	}
	return r, r.initialise()
}

// Cluster prepares a run on a shared slice.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	r := &run{
		grid:    grid{edge: p.n},
		barrier: dsm.NewTeamBarrier(c, "sor/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   threads * c.Size(),
		fetch: func(ctx context.Context, row []float64, access dsm.Access) error {
			return dsm.Prefetch(ctx, c, row, access)
		},
	}
	if err := kernel.Share(ctx, &r.Memory, c, "sor/grid", p.n*p.n, &r.grid.points); err != nil {
		return nil, err
	}
	return r, r.initialise()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	grid    grid
	barrier kernel.Barrier
	first   int
	threads int
	total   int
	fetch   func(ctx context.Context, row []float64, access dsm.Access) error // nil on ordinary memory
}

// initialise has each thread fill its own rows, so that pages start where they will be used.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		k := r.first + thread
		lo, hi := r.grid.block(r.total, k)
		// The fixed edges go to the first and the last thread, which are the ones beside them. (Blocks
		// may be empty, so the edge cannot be told from the block's limits.)
		if k == 0 {
			lo = 0
		}
		if k == r.total-1 {
			hi = r.grid.edge
		}
		for i := lo; i < hi; i++ {
			r.grid.fill(i)
		}
		return nil
	})
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		for iteration := range iterations {
			for colour := range 2 {
				if err := r.sweep(ctx, thread, colour); err != nil {
					return fmt.Errorf("fetching rows of iteration %d: %w", iteration, err)
				}
				if err := r.barrier.Wait(ctx); err != nil {
					return fmt.Errorf("barrier of iteration %d: %w", iteration, err)
				}
			}
			if thread == 0 {
				progress.Report(iteration+1, iterations)
			}
		}
		return nil
	})
}

// sweep updates the points of one colour in a thread's block.
func (r *run) sweep(ctx context.Context, thread, colour int) error {
	lo, hi := r.grid.block(r.total, r.first+thread)
	if lo == hi {
		return nil
	}
	if thread == 0 {
		if err := r.meet(ctx, lo, lo-1); err != nil {
			return err
		}
	}
	r.grid.relax(lo, hi-1, colour)
	if thread == r.threads-1 {
		if err := r.meet(ctx, hi-1, hi); err != nil {
			return err
		}
	}
	r.grid.relax(hi-1, hi, colour)
	return nil
}

// meet fetches what is needed to update the row own, which lies beside theirs of the next node's: theirs to read, and its own, which the
// other node has read, to write. It does so just before, so that neither is taken away again until it was used.
func (r *run) meet(ctx context.Context, own, theirs int) error {
	if r.fetch == nil || theirs == 0 || theirs == r.grid.edge-1 {
		return nil
	}
	if err := r.fetch(ctx, r.grid.row(theirs), dsm.Read); err != nil {
		return err
	}
	return r.fetch(ctx, r.grid.row(own), dsm.Write)
}

func (r *run) Result(context.Context) (kernel.Result, error) {
	output := kernel.Float64s(r.grid.points)
	sum := 0.0
	for _, x := range output {
		sum += x
	}
	return kernel.Result{
		Figures: map[string]any{"fnv": kernel.FNV(output), "sum": sum, "iterations": float64(iterations)},
		Output:  output,
	}, nil
}
