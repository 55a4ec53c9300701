// Package cholesky is the sparse Cholesky factorisation benchmark, after the program of that name in SPLASH-2 (Woo
// et al., ISCA 1995; the method is in E. Rothberg's thesis, Stanford 1992).
//
// The matrix is read from a file in the original's format, or belongs to a cubic grid, every point of which is connected with its six neighbours,
// ordered by nested dissection. As in the original the file says only where elements are, and in which order they are eliminated; their numbers
// follow from that. Columns with nearly the same rows are eliminated together (supernodes), and which ones these are is decided as in
// the original.
//
// The factor is computed in panels, dense blocks of up to 32 columns. (The original divides columns' rows into blocks as well.) Each panel has an owner, a
// thread, which does all that changes it. When a
// panel is finished, its owner puts its number into the inbox of each thread that owns a panel which it changes. These
// subtract from their panels what the finished one contributes; and a panel that has got all contributions is finished in turn.
//
// On pages this means: a panel is written by its owner only, and read once, as a whole, by every node that has panels
// which it changes; it can be fetched at once when its number arrives. An inbox is written by many, and its owner looks
// at it when it has nothing to do, which is a local load until somebody writes.
//
// The contributions to a panel are subtracted in a fixed order. (In the original, in the order in which they arrive.) A thread has many panels to
// go on with meanwhile, and the factor is the same, bit for bit, for any number of threads.
package cholesky

import (
	"context"
	"errors"
	"fmt"
	"io"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// Kernel is the benchmark "cholesky". Its output is the factor's panels, in order of their columns, each row by row.
type Kernel struct{}

// Name returns "cholesky".
func (Kernel) Name() string { return "cholesky" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return "sparse Cholesky factorisation of a cubic grid's matrix or one in a file, dense panels, finished ones announced in inboxes"
}

// Sizes returns the sizes; the parameter is the grid's edge: 24 has about as many equations as the original's input tk29.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "edge of the cubic grid", Test: 10, Default: 24, Large: 36, Min: 1, Max: 64}
}

// Problem returns the problem with n*n*n equations.
func (Kernel) Problem(n int) kernel.Problem { return problem{grid(n)} }

// ReadProblem returns the problem in a file of the original's format, and the number of its equations. What is wrong with a file
// is an ErrFormat.
func (Kernel) ReadProblem(from io.Reader) (kernel.Problem, int, error) {
	m, err := readMatrix(from)
	if err != nil {
		return nil, 0, err
	}
	return problem{m}, m.size(), nil
}

type problem struct{ *matrix }

// Sequential prepares the factorisation by one thread, which sends nothing to anybody.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary memory.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	s, err := analyse(p.matrix, threads)
	if err != nil {
		return nil, err
	}
	r := &run{
		input:   p.matrix,
		factor:  factor{structure: s, numbers: make([]float64, s.memory)},
		arrived: make([]counter, threads),
		inboxes: make([]int32, threads*inboxRoom(s)),
		threads: threads,
		total:   threads,
	}
	for range threads {
		r.locks = append(r.locks, kernel.NewMutex())
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared memory.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	s, err := analyse(p.matrix, total)
	if err != nil {
		return nil, err
	}
	r := &run{
		input:  p.matrix,
		factor: factor{structure: s},
		first:  threads * c.Rank(), threads: threads, total: total,
		fetch: func(ctx context.Context, block []float64) error { return dsm.Prefetch(ctx, c, block, dsm.Read) },
	}
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "cholesky/numbers", s.memory, &r.numbers),
		kernel.Share(ctx, &r.Memory, c, "cholesky/arrived", total, &r.arrived),
		kernel.Share(ctx, &r.Memory, c, "cholesky/inboxes", total*inboxRoom(s), &r.inboxes)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for k := range total {
		r.locks = append(r.locks, dsm.NewMutex(c, fmt.Sprintf("cholesky/inbox/%d", k)))
	}
	return r, r.initialise()
}
