// Package fft is the FFT benchmark of SPLASH-2: the one-dimensional transform of 2^M complex numbers by the six-step
// method (Bailey, "FFTs in External or Hierarchical Memory", 1990).
//
// The numbers are the elements of a square matrix, row by row. The transform transposes the matrix,
// transforms each row and multiplies it by twiddle factors, transposes, transforms each row, and
// transposes again. Each thread owns a block of neighbouring rows, and only the transpositions
// communicate: a thread reads a part of every row of all others and writes its own rows. So
// all pages are written by one thread, and in each of three transpositions every page is read by several.
//
// There are two kernels. "fft" touches what it needs, and so takes its page faults one after the other. "fft-prefetch" is the same
// program, which has what it needs fetched before each transposition (dsm.Prefetch): the same pages and bytes,
// many at a time.
//
// What is kept of the original, so that results compare: the input (drand48 from seed 0), the
// order of the operations on each number, and pi taken as 3.1416. The result does not depend on the number of
// threads, bit for bit. The original's own bits depend on its C library's sine and cosine; see tolerance.
package fft

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/rand48"
	"dsmd/dsm"
)

// tolerance bounds the figures' distance from the original's. The twiddle factors here are the correctly rounded ones,
// where glibc's differ from these in the last bit about once in a thousand; that gives relative errors of some 1e-16 in
// an element, and a sum over all elements, which are of both signs, magnifies them to some 1e-13.
const tolerance = 1e-12

// maxCheckSumDifference is the original's own test of the inverse transform.
const maxCheckSumDifference = 0.001

//go:embed testdata/splash3.json
var splash3Text []byte

var splash3 = facts.Parse(splash3Text)

// Kernel is the benchmark "fft" or "fft-prefetch". Its output is the transform, each number as two words, the real part
// first.
type Kernel struct {
	// Prefetch has shared memory fetched before each transposition: "fft-prefetch".
	Prefetch bool
}

// Name returns "fft" or "fft-prefetch".
func (k Kernel) Name() string {
	if k.Prefetch {
		return "fft-prefetch"
	}
	return "fft"
}

// Summary describes the kernel in one line.
func (k Kernel) Summary() string {
	if k.Prefetch {
		return "fft which asks for the pages of each transposition beforehand, instead of faulting on them"
	}
	return "one-dimensional complex FFT by the six-step method: three blocked transpositions, rows divided into blocks"
}

// Sizes returns the sizes; the parameter is M.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "M, for 2^M complex numbers", Test: 10, Default: 16, Large: 22, Min: 2, Max: 28,
		Valid: func(m int) error {
			if m%2 != 0 {
				return errors.New("not even, and the numbers form a square matrix")
			}
			return nil
		}}
}

// Problem returns the transform of 2^m numbers.
func (k Kernel) Problem(m int) kernel.Problem { return problem{m: m, prefetch: k.Prefetch} }

type problem struct {
	m        int
	prefetch bool
}

// edge is the number of rows and of columns of the matrix.
func (p problem) edge() int { return 1 << (p.m / 2) }

// Verify compares bit for bit with the sequential version, and with the original's figures. Whatever the size, the inverse
// transform must lead back to the input.
func (p problem) Verify(sequential, got kernel.Result) error {
	if err := kernel.SameBits(sequential, got); err != nil {
		return err
	}
	difference, ok := got.Figures["checksum_difference"].(float64)
	if !ok || !(math.Abs(difference) < maxCheckSumDifference) {
		return fmt.Errorf("the checksums of the input and of the inverse of its transform differ by %v, the original allows %v",
			got.Figures["checksum_difference"], maxCheckSumDifference)
	}
	return splash3.Check(p.m, got.Figures, tolerance)
}

// Sequential prepares the transform by one thread, which waits for nobody at its barriers.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// ordinaryAlign is the alignment, in bytes, of the blocks of rows in ordinary memory; the usual page, as in the original.
const ordinaryAlign = 4096

// Goroutines prepares a run on ordinary slices.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	l := newLayout(p.edge(), threads, ordinaryAlign)
	r := &run{
		x:       matrix{l, make([]complex128, l.length)},
		scratch: matrix{l, make([]complex128, l.length)},
		barrier: kernel.NewBarrier(threads),
		threads: threads,
		total:   threads,
		fetch:   noFetch,
		free:    func() error { return nil },
	}
	return r, r.initialise()
}

// Cluster prepares a run on two shared slices. The twiddle factors are not shared: nobody needs another thread's.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	l := newLayout(p.edge(), total, c.PageBytes())
	x, err := dsm.Alloc[complex128](c, "fft/x", l.length, dsm.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("allocating the matrix: %w", err)
	}
	scratch, err := dsm.Alloc[complex128](c, "fft/scratch", l.length, dsm.WithContext(ctx))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("allocating the transposed matrix: %w", err), dsm.Free(c, x))
	}
	fetch := noFetch
	if p.prefetch {
		fetch = prefetcher{c}.transposition
	}
	r := &run{
		x:       matrix{l, x},
		scratch: matrix{l, scratch},
		barrier: dsm.NewTeamBarrier(c, "fft/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   total,
		fetch:   fetch,
		free:    func() error { return errors.Join(dsm.Free(c, x), dsm.Free(c, scratch)) },
	}
	return r, r.initialise()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	x, scratch matrix
	roots      []complex128   // for the rows' transforms; the same for all
	twiddles   [][]complex128 // by row; nil for rows of other processes
	barrier    kernel.Barrier
	first      int
	threads    int
	total      int
	fetch      fetcher
	free       func() error
}

// initialise has each thread make its own rows, so that pages start where they will be used.
func (r *run) initialise() error {
	edge := r.x.edge
	r.roots = rowRoots(edge)
	r.twiddles = make([][]complex128, edge)
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		lo, hi := kernel.Block(edge, r.total, r.first+thread)
		source := rand48.New(0)
		source.Skip(2 * uint64(lo) * uint64(edge))
		for i := lo; i < hi; i++ {
			for j, row := 0, r.x.row(i); j < len(row); j++ {
				re := source.Float64()
				row[j] = complex(re, source.Float64())
			}
			clear(r.scratch.row(i))
			r.twiddles[i] = twiddles(i, edge)
		}
		return nil
	})
}

// steps is the number of parts of the transform that a barrier ends.
const steps = 3

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		t := transform{
			x: r.x, scratch: r.scratch, roots: r.roots, twiddles: r.twiddles,
			thread: r.first + thread, total: r.total, fetch: r.fetch,
		}
		for step, work := range []func(context.Context) error{t.first, t.second, t.third} {
			if err := work(ctx); err != nil {
				return fmt.Errorf("step %d: %w", step+1, err)
			}
			if err := r.barrier.Wait(ctx); err != nil {
				return fmt.Errorf("barrier after step %d: %w", step+1, err)
			}
			if thread == 0 {
				progress.Report(step+1, steps)
			}
		}
		return nil
	})
}

// Result also transforms back, on ordinary memory and by one thread: the original's own test.
func (r *run) Result(ctx context.Context) (kernel.Result, error) {
	l := newLayout(r.x.edge, 1, ordinaryAlign)
	spectrum := matrix{l, make([]complex128, l.length)}
	output := make(kernel.Float64s, 0, 2*l.edge*l.edge)
	for i := range l.edge {
		row := spectrum.row(i)
		copy(row, r.scratch.row(i))
		for _, z := range row {
			output = append(output, real(z), imag(z))
		}
	}
	figures := spectrumFigures(spectrum)
	before := checkSumOfInput(l.edge)
	figures["checksum"] = before
	back, err := inverse(ctx, spectrum, r.roots)
	if err != nil {
		return kernel.Result{}, fmt.Errorf("transforming back: %w", err)
	}
	figures["checksum_difference"] = before - checkSum(back)
	return kernel.Result{Figures: figures, Output: output}, nil
}

func (r *run) Close() error { return r.free() }
