package fft

import (
	"math/bits"
	"slices"
)

// A transform is one thread's part of the six-step method. All threads finish a step before any
// begins the next.
type transform struct {
	x, scratch matrix
	roots      []complex128
	twiddles   [][]complex128
	thread     int
	band       band
	// fetch, if not nil, has the memory fetched that the thread touches when it transposes. Else
	// that is left to the page faults.
	fetch func(to, from matrix)
}

// transpose writes the thread's rows of to, which are columns of from, when work has been done on
// each of them.
func (t transform) transpose(to, from matrix, work func(i int, row []complex128)) {
	if t.fetch != nil {
		t.fetch(to, from)
	}
	lo, hi := to.block(t.thread)
	for next := lo; next < hi; next += bandRows {
		rows := t.band[:min(bandRows, hi-next)]
		rows.transpose(from, t.thread, next-lo)
		for j, row := range rows {
			work(next+j, row)
		}
		to.set(t.thread, next, rows)
	}
}

// first transposes x into scratch, and on the way transforms the rows and multiplies them by their
// twiddle factors.
func (t transform) first() {
	t.transpose(t.scratch, t.x, func(i int, row []complex128) {
		transformRow(row, t.roots)
		multiply(row, t.twiddles[i])
	})
}

// second transposes scratch into x, and transforms the rows.
func (t transform) second() {
	t.transpose(t.x, t.scratch, func(_ int, row []complex128) { transformRow(row, t.roots) })
}

// third transposes x into scratch, which is then the result.
func (t transform) third() { t.transpose(t.scratch, t.x, func(int, []complex128) {}) }

// product is a*b. The conversions forbid the compiler to fuse a multiplication and an addition on
// processors that can, which would round differently from one to another.
func product(a, b complex128) complex128 {
	return complex(
		float64(real(a)*real(b))-float64(imag(a)*imag(b)),
		float64(real(a)*imag(b))+float64(imag(a)*real(b)))
}

func multiply(row, factors []complex128) {
	factors = factors[:len(row)]
	for i, z := range row {
		row[i] = product(factors[i], z)
	}
}

// transformRow is the radix-2 transform of one row in place. The roots for pairs of elements that
// are d apart, d a power of two, start at roots[d-1]. len(row) is a power of two.
func transformRow(row, roots []complex128) {
	reverse(row)
	for half := 1; half < len(row); half *= 2 {
		omega := roots[half-1 : 2*half-1]
		for start := 0; start < len(row); start += 2 * half {
			lower := row[start : start+half]
			upper := row[start+half : start+2*half]
			upper, lower = upper[:len(omega)], lower[:len(omega)]
			for j, w := range omega {
				tau := product(w, upper[j])
				z := lower[j]
				upper[j] = z - tau
				lower[j] = z + tau
			}
		}
	}
}

// reverse exchanges elements whose indices are each other's reversals as numbers of log2(len(row))
// bits.
func reverse(row []complex128) {
	shift := bits.UintSize - bits.TrailingZeros(uint(len(row)))
	for i := range row {
		if j := int(bits.Reverse(uint(i)) >> shift); j > i {
			row[i], row[j] = row[j], row[i]
		}
	}
}

// inverse computes the inverse transform of a matrix, row by row. roots are those of the forward
// transform.
func inverse(spectrum []complex128, edge int, roots []complex128) []complex128 {
	l := newLayout(edge, 1, elementBytes)
	t := transform{
		x:        matrix{l, slices.Clone(spectrum)},
		scratch:  matrix{l, make([]complex128, l.length)},
		roots:    conjugates(roots),
		twiddles: make([][]complex128, edge),
		band:     newBand(edge),
	}
	for i := range edge {
		t.twiddles[i] = conjugates(twiddles(i, edge))
	}
	t.first()
	t.second()
	n := float64(edge * edge)
	for i, z := range t.x.elements {
		t.x.elements[i] = complex(real(z)/n, imag(z)/n)
	}
	t.third()
	return t.scratch.elements
}

func conjugates(zs []complex128) []complex128 {
	result := make([]complex128, len(zs))
	for i, z := range zs {
		result[i] = complex(real(z), -imag(z))
	}
	return result
}
