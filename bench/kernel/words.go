package kernel

import (
	"fmt"
	"math"

	"dsmd/bench/facts"
)

// Words is an output as a sequence of 64-bit words.
type Words interface {
	Len() int
	// At returns word i, 0 <= i < Len.
	At(i int) uint64
}

// Uint64s is an output of integers.
type Uint64s []uint64

// Len returns the number of integers.
func (w Uint64s) Len() int { return len(w) }

// At returns integer i.
func (w Uint64s) At(i int) uint64 { return w[i] }

// Float64s is an output of floating-point numbers, compared by their IEEE 754 bits: -0 differs from
// 0, and a NaN equals itself.
type Float64s []float64

// Len returns the number of floating-point numbers.
func (w Float64s) Len() int { return len(w) }

// At returns the bits of number i.
func (w Float64s) At(i int) uint64 { return math.Float64bits(w[i]) }

// Sum is the sum of the numbers, added up in order.
func (w Float64s) Sum() float64 {
	sum := 0.0
	for _, x := range w {
		sum += x
	}
	return sum
}

const (
	fnvOffset = 1469598103934665603
	fnvPrime  = 1099511628211
)

// FNV is the checksum that the reference outputs of the original programs call "fnv", in
// hexadecimal: from h = 1469598103934665603, for each word w in order, h = (h xor w) *
// 1099511628211 modulo 2^64. It takes whole words, unlike hash/fnv, and its start is not the
// published offset basis; both are as in the reference.
func FNV(w Words) string {
	h := uint64(fnvOffset)
	for i := range w.Len() {
		h = (h ^ w.At(i)) * fnvPrime
	}
	return fmt.Sprintf("%016x", h)
}

// SameBits compares two results bit for bit: all figures and all words of the output. The error
// names the first word that differs and how many do, because the position of an error in a shared
// array (a page's first word, a block's edge) says most about its cause.
func SameBits(sequential, got Result) error {
	if err := sameOutput(sequential.Output, got.Output); err != nil {
		return err
	}
	if len(got.Figures) > len(sequential.Figures) {
		return fmt.Errorf("there are %d figures, the sequential version has %d", len(got.Figures), len(sequential.Figures))
	}
	return facts.Compare("the sequential version's", sequential.Figures, got.Figures, func(_ string, got, want any) bool { return got == want })
}

func sameOutput(want, got Words) error {
	if want.Len() != got.Len() {
		return fmt.Errorf("the output has %d words, the sequential version's has %d", got.Len(), want.Len())
	}
	first, differing := -1, 0
	for i := range want.Len() {
		if want.At(i) != got.At(i) {
			if first < 0 {
				first = i
			}
			differing++
		}
	}
	if differing > 0 {
		return fmt.Errorf("%d of %d words of the output differ from the sequential version's, first word %d: %#016x (%v as a float64) instead of %#016x (%v)",
			differing, want.Len(), first,
			got.At(first), math.Float64frombits(got.At(first)),
			want.At(first), math.Float64frombits(want.At(first)))
	}
	return nil
}
