// Package ep is the "embarrassingly parallel" benchmark of NAS (Bailey et al., "The NAS Parallel
// Benchmarks", RNR-94-007, section 2.1): it makes 2^M pairs of random numbers, turns those that lie
// within the unit circle into pairs of normally distributed numbers, adds these up, and counts them
// by the larger of their magnitudes.
//
// The pairs come in batches of 2^16, and each thread makes the batches of a block, from the place
// in the sequence where each begins. Shared are only the sums and counts of each batch, which its
// thread writes once: so this shows what a program costs that hardly communicates. A batch's sums
// are added up in the order of batches, so that the result does not depend on the number of
// threads; NAS allows a difference of 1e-8 from its own sums.
package ep

import (
	_ "embed"
	"errors"
	"fmt"
	"math"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

const (
	// seed is what NAS starts from.
	seed = 271828183
	// batchBits says how many pairs, 2^batchBits, are in a batch; NAS's choice.
	batchBits = 16
	// rings is the number of counts. No pair falls outside: that would take a square below e^-50,
	// which is 2^-72, and the longest sequence has 2^36 pairs.
	rings = 10
	// tolerance is NAS's, for the sums.
	tolerance = 1e-8
)

//go:embed testdata/nas.json
var nasText []byte

// nas are the sums that NAS publishes for its classes, and the counts that the algorithm leads to.
var nas = facts.Parse(nasText)

// Kernel is the benchmark "ep". Its output is the sums and counts of each batch. The sizes'
// parameter is M: 24 is NAS's class S, 25 is W, and 28 is A.
var Kernel = kernel.Kernel{
	Name:    "ep",
	Summary: "NAS embarrassingly parallel: sums of normally distributed random numbers, batches divided into blocks",
	Sizes:   kernel.Sizes{Parameter: "M, for 2^M pairs", Test: 20, Default: 24, Large: 28, Min: batchBits, Max: 36},
	Problem: func(m int) kernel.Problem { return problem{m: m} },
}

type problem struct{ m int }

func (p problem) batches() int { return 1 << (p.m - batchBits) }

// Verify compares bit for bit with the sequential version, and with NAS's sums.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got), nas.Check(p.m, got.Figures, tolerance))
}

// Prepare fills in nothing.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	return &run{kernel.Share[batch](t, "ep/batches", p.batches())}, nil
}

type run struct{ batches []batch }

// A batch is what has been found out about the pairs of a batch.
type batch struct {
	// SumX and SumY are the sums of the normally distributed numbers.
	SumX, SumY float64
	// Counts says of how many pairs the larger magnitude is from i to i+1.
	Counts [rings]float64
}

// Compute needs no barrier but the one after it: nobody reads what another thread writes.
func (r *run) Compute(t *kernel.Thread) {
	lo, hi := t.Mine(len(r.batches))
	for k := lo; k < hi; k++ {
		t.GoOn()
		r.batches[k] = compute(k)
		t.Done(k+1-lo, hi-lo)
	}
}

// compute makes the pairs of batch k and adds them up.
func compute(k int) (b batch) {
	source := random.NAS(seed)
	source.Skip(2 * uint64(k) << batchBits)
	for range 1 << batchBits {
		x := float64(2*source.Float64()) - 1
		y := float64(2*source.Float64()) - 1
		square := float64(x*x) + float64(y*y)
		if square > 1 {
			continue
		}
		factor := math.Sqrt(-2 * math.Log(square) / square)
		x *= factor
		y *= factor
		b.Counts[int(max(math.Abs(x), math.Abs(y)))]++
		b.SumX += float64(x)
		b.SumY += float64(y)
	}
	return b
}

func (r *run) Result() kernel.Result {
	var total batch
	output := make(kernel.Float64s, 0, len(r.batches)*(2+rings))
	for _, b := range r.batches {
		output = append(append(output, b.SumX, b.SumY), b.Counts[:]...)
		total.SumX += b.SumX
		total.SumY += b.SumY
		for i, n := range b.Counts {
			total.Counts[i] += n
		}
	}
	figures := map[string]any{"sx": total.SumX, "sy": total.SumY}
	pairs := 0.0
	for i, n := range total.Counts {
		figures[fmt.Sprintf("q%d", i)] = n
		pairs += n
	}
	figures["gc"] = pairs
	return kernel.Result{Figures: figures, Output: output}
}
