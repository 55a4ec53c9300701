// Package lu is the LU benchmark of SPLASH-2: it factors a dense matrix into a lower and an upper
// triangular one, without pivoting, in blocks of 16 by 16 elements.
//
// The blocks are dealt to the threads as in a chessboard with as many colours as threads (a 2-D
// scatter decomposition), and each is written by its owner only. In step K the diagonal block K is
// factored; then the blocks below it and to the right of it are divided by it; then all blocks
// further below and to the right are modified by the products of those. A barrier follows the first
// two parts. So a block is read by the threads in its row and column of the chessboard, once per
// step.
//
// There are two kernels, which differ in where the elements lie:
//
//   - "lu": a block is contiguous, and the blocks of a thread are together, on pages of their own,
//     in the order of the steps that finish them. So a page has one writer, and what a thread reads
//     of another's blocks in a step lies together.
//   - "lu-nc": the matrix is a plain array, column by column. At the default size a column is a
//     page, and the blocks of a column have several owners: all of them write the same pages between
//     the same barriers. This is what happens to a program that was not written with pages in mind.
//     Its threads ask for a column of blocks at once, before they work on theirs there, and do not
//     all begin with the same column.
//
// The input is that of the original, and each element goes through the same operations in the same
// order, so that the factors are the original's, bit for bit, for any number of threads and in both
// layouts.
package lu

import (
	_ "embed"
	"errors"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// blockEdge is the number of rows and columns of a block; the original's default and the
// literature's choice.
const blockEdge = 16

// maxDifference is the original's own test: how far the solution of a system with known solution
// may be from it.
const maxDifference = 1e-5

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "lu". Its output is the matrix with both factors, column by column; the
// upper factor's diagonal, which is 1, is left out. The sizes' parameter is the number of rows.
var Kernel = kernel.Kernel{
	Name:    "lu",
	Summary: "dense LU factorisation, contiguous blocks dealt to the threads: one thread writes each page",
	Sizes:   kernel.Sizes{Parameter: "matrix edge", Test: 128, Default: 512, Large: 2048, Min: 1, Max: 1 << 15},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

// Plain is the benchmark "lu-nc", in which the matrix is a plain array. There the faults grow with
// the third power of the edge, as the computing does, so that computing outweighs them at no size.
// At 2048 there are some millions of them.
var Plain = kernel.Kernel{
	Name:    "lu-nc",
	Summary: "dense LU factorisation in blocks, in a plain array: several threads write each page",
	Sizes:   kernel.Sizes{Parameter: "matrix edge", Test: 128, Default: 512, Large: 1024, Min: 1, Max: 1 << 15},
	Problem: func(n int) kernel.Problem { return problem{n: n, plain: true} },
}

type problem struct {
	n     int
	plain bool
}

// Verify compares bit for bit with the sequential version, and with the original's figures. At any
// size the factors must solve a system of equations as precisely as the original asks.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got),
		facts.Within("the error of the solution of a system of equations", got.Figures["max_diff"], maxDifference),
		splash3.Check(p.n, got.Figures, 0))
}

// Prepare has each thread make its part of the input, divided so that no page has two writers yet.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{layout: newContiguous(p.n, t.Total, t.PageBytes()), barrier: t.Barrier("lu/barrier")}
	if p.plain {
		r.layout = newPlain(p.n, t.Total)
	}
	r.elements = kernel.Share[float64](t, "lu/matrix", r.length())
	return r, t.Each(func(t *kernel.Thread) {
		for _, b := range r.input(r.elements, t.Index) {
			b.fill()
		}
	})
}

type run struct {
	layout
	elements []float64
	barrier  kernel.Barrier
}

func (r *run) Compute(t *kernel.Thread) {
	f := factorisation{layout: r.layout, elements: r.elements, thread: t}
	for k := range r.blocks() {
		f.factorDiagonal(k)
		t.Wait(r.barrier, "after factoring the diagonal block")
		f.dividePerimeter(k)
		t.Wait(r.barrier, "after dividing the perimeter")
		// What the thread needs of the perimeter, where it lies together.
		below, right := r.perimeter(r.elements, k, t.Index)
		kernel.Fetch(t, below, dsm.Read)
		kernel.Fetch(t, right, dsm.Read)
		// No barrier follows: the next diagonal and perimeter blocks are modified by those who will
		// divide them, and what is read here, the present perimeter, is not written any more.
		f.modifyInterior(k)
		t.Done(k+1, r.blocks())
	}
}

func (r *run) Result() kernel.Result {
	output := columnByColumn(r.layout, r.elements)
	return kernel.Result{Figures: factorFigures(output, r.edge()), Output: output}
}
