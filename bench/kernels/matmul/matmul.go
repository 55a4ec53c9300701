// Package matmul is the dense matrix multiplication benchmark, C = A·B, square matrices of float64.
//
// The threads of all nodes take equal blocks of neighbouring rows of A and C; every thread reads
// all of B. On pages this means: A and C stay where they are, and B, initialised in blocks by all
// nodes, is fetched once by every node. There is no write sharing except on pages that two blocks'
// edges share.
//
// Each element of C is a sum in a fixed order that does not depend on the division of the rows, so
// any number of threads and nodes gives the same bits.
package matmul

import (
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// Kernel is the benchmark "matmul". Its output is C, row by row; the sizes' parameter is the
// matrices' edge.
var Kernel = kernel.Kernel{
	Name:    "matmul",
	Summary: "dense matrix multiplication C = A·B, rows of A and C divided into blocks, all of B read by all",
	Sizes:   kernel.Sizes{Parameter: "matrix edge", Test: 128, Default: 1024, Large: 2048, Min: 1, Max: 1 << 15},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Verify compares bit for bit.
func (problem) Verify(sequential, got kernel.Result) error { return kernel.SameBits(sequential, got) }

// Prepare has each thread fill its own rows of all three matrices, so that pages start where they
// will be used (of B, each node has a part).
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	matrix := func(name string) []float64 { return kernel.Share[float64](t, name, p.n*p.n) }
	r := &run{matrices{n: p.n, a: matrix("matmul/a"), b: matrix("matmul/b"), c: matrix("matmul/c")}}
	return r, t.Each(func(t *kernel.Thread) { r.m.fill(t.Mine(p.n)) })
}

type run struct{ m matrices }

func (r *run) Compute(t *kernel.Thread) {
	n := r.m.n
	lo, hi := t.Mine(n)
	panels := (n + panelRows - 1) / panelRows
	for panel := range panels {
		klo, khi := panel*panelRows, min((panel+1)*panelRows, n)
		t.GoOn()
		// Every thread asks for the rows: which comes first is not known, and for rows that are
		// here or on their way it costs next to nothing.
		kernel.Fetch(t, r.m.b[klo*n:khi*n], dsm.Read)
		r.m.multiply(lo, hi, klo, khi)
		t.Done(panel+1, panels)
	}
}

func (r *run) Result() kernel.Result {
	output := kernel.Float64s(r.m.c)
	return kernel.Result{Figures: map[string]any{"fnv": kernel.FNV(output), "sum": output.Sum()}, Output: output}
}
