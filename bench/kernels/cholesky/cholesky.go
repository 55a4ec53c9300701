// Package cholesky is the sparse Cholesky factorisation benchmark, after the program of that name
// in SPLASH-2 (Woo et al., ISCA 1995; the method is in E. Rothberg's thesis, Stanford 1992).
//
// The matrix is read from a file in the original's format, or belongs to a cubic grid, every point
// of which is connected with its six neighbours, ordered by nested dissection. As in the original
// the file says only where elements are, and in which order they are eliminated; their numbers
// follow from that. Columns with nearly the same rows are eliminated together (supernodes), and
// which ones these are is decided as in the original.
//
// The factor is computed in panels, dense blocks of up to 32 columns. (The original divides
// columns' rows into blocks as well.) Each panel has an owner, a thread, which does all that
// changes it. When a panel is finished, its owner puts its number into the inbox of each thread
// that owns a panel which it changes. These subtract from their panels what the finished one
// contributes; and a panel that has got all contributions is finished in turn.
//
// On pages this means: a panel is written by its owner only, and read once, as a whole, by every
// node that has panels which it changes; it can be fetched at once when its number arrives. An
// inbox is written by many, and its owner looks at it when it has nothing to do, which is a local
// load until somebody writes.
//
// The contributions to a panel are subtracted in a fixed order. (In the original, in the order in
// which they arrive.) A thread has many panels to go on with meanwhile, and the factor is the same,
// bit for bit, for any number of threads.
package cholesky

import (
	"fmt"
	"io"

	"dsmd/bench/kernel"
)

// Kernel is the benchmark "cholesky". Its output is the factor's panels, in order of their columns,
// each row by row. The sizes' parameter is the grid's edge: 24 has about as many equations as the
// original's input tk29.
var Kernel = kernel.Kernel{
	Name:    "cholesky",
	Summary: "sparse Cholesky factorisation of a cubic grid's matrix or one in a file, dense panels, finished ones announced in inboxes",
	Sizes:   kernel.Sizes{Parameter: "edge of the cubic grid", Test: 10, Default: 24, Large: 36, Min: 1, Max: 64},
	Problem: func(n int) kernel.Problem { return problem{grid(n)} },
	Read:    read,
}

// read returns the problem in a file of the original's format, and the number of its equations.
// What is wrong with a file is an ErrFormat.
func read(from io.Reader) (kernel.Problem, int, error) {
	m, err := readMatrix(from)
	if err != nil {
		return nil, 0, err
	}
	return problem{m}, m.size(), nil
}

type problem struct{ *matrix }

// Prepare has each thread store the matrix's elements in its panels, so that pages start where they
// will be written.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	s, err := analyse(p.matrix, t.Total)
	if err != nil {
		return nil, err
	}
	r := &run{
		input:  p.matrix,
		factor: factor{structure: s, numbers: kernel.Share[float64](t, "cholesky/numbers", s.memory)},
		locks:  t.Mutexes("cholesky/inbox", t.Total),
	}
	for i := range t.Total {
		// Every panel can arrive in an inbox once.
		r.inboxes = append(r.inboxes, kernel.Share[int32](t, fmt.Sprint("cholesky/inbox/", i), 1+len(s.panels)))
	}
	return r, t.Each(func(t *kernel.Thread) {
		for i := range r.panels {
			if p := &r.panels[i]; p.owner == t.Index {
				r.fill(p)
			}
		}
	})
}

type run struct {
	factor
	input *matrix
	// inboxes have, by thread, how many panels have arrived, and their numbers. The count is
	// changed under the lock, and atomically: the owner reads without it.
	inboxes [][]int32
	locks   []kernel.Mutex
}
