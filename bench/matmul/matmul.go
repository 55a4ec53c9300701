// Package matmul is the dense matrix multiplication benchmark, C = A·B, square matrices of float64.
//
// The threads of all nodes take equal blocks of neighbouring rows of A and C; every thread reads all
// of B. On pages this means: A and C stay where they are, and B, initialised in blocks by all nodes, is
// fetched once by every node. There is no write sharing except on pages that two blocks' edges share.
//
// Each element of C is a sum in a fixed order that does not depend on the division of the rows, so any number of
// threads and nodes gives the same bits.
package matmul

import (
	"context"
	"errors"
	"fmt"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// Kernel is the benchmark "matmul". Its output is C, row by row.
type Kernel struct{}

// Name returns "matmul".
func (Kernel) Name() string { return "matmul" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return "dense matrix multiplication C = A·B, rows of A and C divided into blocks, all of B read by all"
}

// Sizes returns the sizes; the parameter is the matrices' edge.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "matrix edge", Test: 128, Default: 1024, Large: 2048, Min: 1, Max: 1 << 15}
}

// Problem returns the problem with matrices of n by n.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Sequential prepares the multiplication by one thread, which has nothing to synchronise.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary slices.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	matrix := func() []float64 { return make([]float64, p.n*p.n) }
	r := &run{m: matrices{n: p.n, a: matrix(), b: matrix(), c: matrix()}, threads: threads, total: threads}
	return r, r.initialise()
}

// Cluster prepares a run on shared slices.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	r := &run{m: matrices{n: p.n}, first: threads * c.Rank(), threads: threads, total: threads * c.Size()}
	r.prefetch = func(ctx context.Context, rows []float64) error { return dsm.Prefetch(ctx, c, rows, dsm.Read) }
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "matmul/a", p.n*p.n, &r.m.a),
		kernel.Share(ctx, &r.Memory, c, "matmul/b", p.n*p.n, &r.m.b),
		kernel.Share(ctx, &r.Memory, c, "matmul/c", p.n*p.n, &r.m.c)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, r.initialise()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	m       matrices
	first   int
	threads int
	total   int
	// prefetch brings rows of B here at once, not page by page as they are touched; nil on ordinary memory.
	prefetch func(ctx context.Context, rows []float64) error
}

// initialise has each thread fill its own rows of all three matrices, so that pages start where they will
// be used (of B, each node has a part).
func (r *run) initialise() error {
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		lo, hi := kernel.Block(r.m.n, r.total, r.first+thread)
		r.m.fill(lo, hi)
		return nil
	})
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		lo, hi := kernel.Block(r.m.n, r.total, r.first+thread)
		panels := (r.m.n + panelRows - 1) / panelRows
		for panel := range panels {
			klo, khi := panel*panelRows, min((panel+1)*panelRows, r.m.n)
			if err := r.fetch(ctx, klo, khi); err != nil {
				return err
			}
			r.m.multiply(lo, hi, klo, khi)
			if thread == 0 {
				progress.Report(panel+1, panels)
			}
		}
		return nil
	})
}

// fetch brings rows klo to khi-1 of B here. Every thread asks for them: which comes first is not known, and for rows
// that are here or on their way it costs next to nothing.
func (r *run) fetch(ctx context.Context, klo, khi int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if r.prefetch == nil {
		return nil
	}
	if err := r.prefetch(ctx, r.m.b[klo*r.m.n:khi*r.m.n]); err != nil {
		return fmt.Errorf("fetching rows %d to %d of B: %w", klo, khi, err)
	}
	return nil
}

func (r *run) Result(context.Context) (kernel.Result, error) {
	output := kernel.Float64s(r.m.c)
	sum := 0.0
	for _, x := range output {
		sum += x
	}
	return kernel.Result{Figures: map[string]any{"fnv": kernel.FNV(output), "sum": sum}, Output: output}, nil
}
