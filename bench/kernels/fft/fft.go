// Package fft is the FFT benchmark of SPLASH-2: the one-dimensional transform of 2^M complex
// numbers by the six-step method (Bailey, "FFTs in External or Hierarchical Memory", 1990).
//
// The numbers are the elements of a square matrix, row by row. The transform transposes the matrix,
// transforms each row and multiplies it by twiddle factors, transposes, transforms each row, and
// transposes again. Each thread owns a block of neighbouring rows, and only the transpositions
// communicate: a thread reads a part of every row of all others and writes its own rows. What one
// thread reads of another's rows, a patch, lies together, and the rows of a thread begin a page. So
// every page is written by one thread; and where patches are whole pages, it is read by one in each
// of three transpositions. A thread transforms its rows in memory of its own, some at a time, and
// stores them when they are done.
//
// There are two kernels. "fft" touches what it needs, and so takes its page faults one after the
// other. "fft-prefetch" is the same program, which has what it needs fetched before each
// transposition (dsm.Prefetch): the same pages and bytes, many at a time.
//
// What is kept of the original, so that results compare: the input (drand48 from seed 0), the order
// of the operations on each number, and pi taken as 3.1416. The result does not depend on the
// number of threads, bit for bit. The original's own bits depend on its C library's sine and
// cosine; see tolerance.
package fft

import (
	_ "embed"
	"errors"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

// tolerance bounds the figures' distance from the original's. The twiddle factors here are the
// correctly rounded ones, where glibc's differ from these in the last bit about once in a thousand;
// that gives relative errors of some 1e-16 in an element, and a sum over all elements, which are of
// both signs, magnifies them to some 1e-13.
const tolerance = 1e-12

// maxCheckSumDifference is the original's own test of the inverse transform.
const maxCheckSumDifference = 0.001

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "fft". Its output is the transform, each number as two words, the real
// part first; the sizes' parameter is M.
var Kernel = kernel.Kernel{
	Name:    "fft",
	Summary: "one-dimensional complex FFT by the six-step method: three blocked transpositions, rows divided into blocks",
	Sizes: kernel.Sizes{Parameter: "M, for 2^M complex numbers", Test: 10, Default: 16, Large: 22, Min: 2, Max: 28,
		Valid: func(m int) error {
			if m%2 != 0 {
				return errors.New("not even, and the numbers form a square matrix")
			}
			return nil
		}},
	Problem: func(m int) kernel.Problem { return problem{m: m} },
}

// Prefetching is the benchmark "fft-prefetch".
var Prefetching = kernel.Kernel{
	Name:    "fft-prefetch",
	Summary: "fft which asks for the pages of each transposition beforehand, instead of faulting on them",
	Sizes:   Kernel.Sizes,
	Problem: func(m int) kernel.Problem { return problem{m: m, prefetch: true} },
}

type problem struct {
	m        int
	prefetch bool
}

// edge is the number of rows and of columns of the matrix.
func (p problem) edge() int { return 1 << (p.m / 2) }

// Verify compares bit for bit with the sequential version, and with the original's figures.
// Whatever the size, the inverse transform must lead back to the input.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got),
		facts.Within("the difference of the input's checksum and the inverse transform's", got.Figures["checksum_difference"], maxCheckSumDifference),
		splash3.Check(p.m, got.Figures, tolerance))
}

// Prepare allocates two matrices, and has each thread make its own rows, so that pages start where
// they will be used. The twiddle factors are not shared: nobody needs another thread's.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	edge := p.edge()
	l := newLayout(edge, t.Total, t.PageBytes())
	r := &run{
		problem:  p,
		x:        matrix{l, kernel.Share[complex128](t, "fft/x", l.length)},
		scratch:  matrix{l, kernel.Share[complex128](t, "fft/scratch", l.length)},
		barrier:  t.Barrier("fft/barrier"),
		roots:    rowRoots(edge),
		twiddles: make([][]complex128, edge),
		bands:    make([]band, t.Total),
	}
	return r, t.Each(r.initialise)
}

type run struct {
	problem
	x, scratch matrix
	barrier    kernel.Barrier
	roots      []complex128   // for the rows' transforms; the same for all
	twiddles   [][]complex128 // by row; nil for rows of other processes
	bands      []band         // by thread; nil for those of other processes
}

func (r *run) initialise(t *kernel.Thread) {
	edge := r.edge()
	lo, hi := t.Mine(edge)
	source := random.Rand48(0)
	source.Skip(2 * uint64(lo) * uint64(edge))
	r.bands[t.Index] = newBand(edge)
	for next := lo; next < hi; next += bandRows {
		rows := r.bands[t.Index][:min(bandRows, hi-next)]
		for i, row := range rows {
			for j := range row {
				re := source.Float64()
				row[j] = complex(re, source.Float64())
			}
			r.twiddles[next+i] = twiddles(next+i, edge)
		}
		r.x.set(t.Index, next, rows)
	}
	clear(r.scratch.owned(t.Index))
}

// steps is the number of parts of the transform that a barrier ends.
const steps = 3

func (r *run) Compute(t *kernel.Thread) {
	part := transform{x: r.x, scratch: r.scratch, roots: r.roots, twiddles: r.twiddles, thread: t.Index, band: r.bands[t.Index]}
	if r.prefetch {
		part.fetch = prefetcher{t}.step
	}
	for step, work := range []func(){part.first, part.second, part.third} {
		work()
		t.Wait(r.barrier, "after a step")
		t.Done(step+1, steps)
	}
}

// Result also transforms back, on ordinary memory and by one thread: the original's own test.
func (r *run) Result() kernel.Result {
	spectrum := r.scratch.rowByRow()
	output := make(kernel.Float64s, 0, 2*len(spectrum))
	for _, z := range spectrum {
		output = append(output, real(z), imag(z))
	}
	figures := spectrumFigures(spectrum, r.edge())
	before := checkSumOfInput(r.edge())
	figures["checksum"] = before
	figures["checksum_difference"] = before - checkSum(inverse(spectrum, r.edge(), r.roots))
	return kernel.Result{Figures: figures, Output: output}
}
