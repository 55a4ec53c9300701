// Package lu is the LU benchmark of SPLASH-2: it factors a dense matrix into a lower and an upper triangular one, without
// pivoting, in blocks of 16 by 16 elements.
//
// The blocks are dealt to the threads as in a chessboard with as many colours as threads (a 2-D scatter
// decomposition), and each is written by its owner only. In step K the diagonal block K is factored; then the blocks below
// it and to the right of it are divided by it; then all blocks further below and to the right are
// modified by the products of those. A barrier follows the first two parts. So a block is read by the threads in its row and column of the
// chessboard, once per step.
//
// There are two kernels, which differ in where the elements lie:
//
//   - "lu": a block is contiguous, and the blocks of a thread are together, on pages of their own.
//     So a page has one writer.
//   - "lu-nc": the matrix is a plain array, column by column. At the default size a column is a page, and the
//     blocks of a column have several owners: all of them write the same pages between the same barriers. This
//     is what happens to a program that was not written with pages in mind.
//
// The input is that of the original, and each element goes through the same operations in the same order, so that the factors are the
// original's, bit for bit, for any number of threads and in both layouts.
package lu

import (
	"context"
	_ "embed"
	"fmt"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// blockEdge is the number of rows and columns of a block; the original's default and the literature's choice.
const blockEdge = 16

// maxDifference is the original's own test: how far the solution of a system with known solution may be from it.
const maxDifference = 1e-5

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "lu" or "lu-nc". Its output is the matrix with both factors, column by column; the upper factor's
// diagonal, which is 1, is left out.
type Kernel struct {
	// Plain makes the matrix a plain array: "lu-nc".
	Plain bool
}

// Name returns "lu" or "lu-nc".
func (k Kernel) Name() string {
	if k.Plain {
		return "lu-nc"
	}
	return "lu"
}

// Summary describes the kernel in one line.
func (k Kernel) Summary() string {
	if k.Plain {
		return "dense LU factorisation in blocks, in a plain array: several threads write each page"
	}
	return "dense LU factorisation, contiguous blocks dealt to the threads: one thread writes each page"
}

// Sizes returns the sizes; the parameter is the number of rows.
func (k Kernel) Sizes() kernel.Sizes {
	sizes := kernel.Sizes{Parameter: "matrix edge", Test: 128, Default: 512, Large: 2048, Min: 1, Max: 1 << 15}
	if k.Plain {
		// In a plain array the faults grow with the third power of the edge, as the computing does, so that computing outweighs
		// them at no size. At 2048 there are some millions of them.
		sizes.Large = 1024
	}
	return sizes
}

// Problem returns the factorisation of an n by n matrix.
func (k Kernel) Problem(n int) kernel.Problem { return problem{n: n, plain: k.Plain} }

type problem struct {
	n     int
	plain bool
}

// Verify compares bit for bit with the sequential version, and with the original's figures. At any size the factors must
// solve a system of equations as precisely as the original asks.
func (p problem) Verify(sequential, got kernel.Result) error {
	if err := kernel.SameBits(sequential, got); err != nil {
		return err
	}
	difference, ok := got.Figures["max_diff"].(float64)
	if !ok || !(difference < maxDifference) {
		return fmt.Errorf("solving a system whose solution is all ones gives values that are off by %v, the original allows %v",
			got.Figures["max_diff"], maxDifference)
	}
	return splash3.Check(p.n, got.Figures, 0)
}

// Sequential prepares the factorisation by one thread, which waits for nobody at its barriers.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// ordinaryAlign is the alignment, in bytes, of the threads' blocks in ordinary memory; the usual page, as in the original.
const ordinaryAlign = 4096

func (p problem) layout(threads, alignBytes int) layout {
	if p.plain {
		return newPlain(p.n, threads)
	}
	return newContiguous(p.n, threads, alignBytes)
}

// Goroutines prepares a run on an ordinary slice.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	l := p.layout(threads, ordinaryAlign)
	r := &run{
		layout:   l,
		elements: make([]float64, l.length()),
		barrier:  kernel.NewBarrier(threads),
		threads:  threads,
		total:    threads,
	}
	return r, r.initialise()
}

// Cluster prepares a run on a shared slice.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	l := p.layout(total, c.PageBytes())
	r := &run{
		layout:  l,
		barrier: dsm.NewTeamBarrier(c, "lu/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   total,
	}
	r.fetch = func(ctx context.Context, elements []float64) error { return dsm.Prefetch(ctx, c, elements, dsm.Read) }
	if err := kernel.Share(ctx, &r.Memory, c, "lu/matrix", l.length(), &r.elements); err != nil {
		return nil, err
	}
	return r, r.initialise()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	layout
	elements []float64
	barrier  kernel.Barrier
	first    int
	threads  int
	total    int
	// fetch brings elements here at once, not page by page as they are touched; nil on ordinary memory.
	fetch func(ctx context.Context, elements []float64) error
}

// initialise has each thread make its part of the input, divided so that no page has two writers yet.
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		for _, b := range r.input(r.elements, r.first+thread) {
			b.fill()
		}
		return nil
	})
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	steps := r.blocks()
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		f := factorisation{layout: r.layout, elements: r.elements, thread: r.first + thread}
		for k := range steps {
			for _, work := range []func(int){f.factorDiagonal, f.dividePerimeter} {
				work(k)
				if err := r.barrier.Wait(ctx); err != nil {
					return fmt.Errorf("barrier of step %d: %w", k, err)
				}
			}
			if err := r.fetchPerimeter(ctx, k, f.thread); err != nil {
				return err
			}
			// No barrier follows: the next diagonal and perimeter blocks are modified by those who will divide them,
			// and what is read here, the present perimeter, is not written any more.
			f.modifyInterior(k)
			if thread == 0 {
				progress.Report(k+1, steps)
			}
		}
		return nil
	})
}

// fetchPerimeter fetches what a thread needs of the blocks below diagonal block k, where they lie together.
func (r *run) fetchPerimeter(ctx context.Context, k, thread int) error {
	if r.fetch == nil {
		return nil
	}
	below := r.below(r.elements, k, thread)
	if len(below) == 0 {
		return nil
	}
	if err := r.fetch(ctx, below); err != nil {
		return fmt.Errorf("fetching the blocks below diagonal block %d: %w", k, err)
	}
	return nil
}

func (r *run) Result(context.Context) (kernel.Result, error) {
	output := columnByColumn(r.layout, r.elements)
	return kernel.Result{Figures: factorFigures(output, r.edge()), Output: output}, nil
}
