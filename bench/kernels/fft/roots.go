package fft

import "dsmd/bench/kernels/rounded"

// pi is what the original takes for it. Its results can be compared with no other value.
const pi = 3.1416

// rowRoots are the roots of unity for transformRow: for d = 1, 2, 4, … below edge, the d roots
// exp(-i*pi*j/d), from index d-1 on.
func rowRoots(edge int) []complex128 {
	roots := make([]complex128, 0, edge)
	for d := 1; d < edge; d *= 2 {
		for j := range d {
			roots = append(roots, rounded.Root(2*pi*float64(j)/float64(2*d)))
		}
	}
	return roots
}

// twiddles are the factors for row i after the first transforms: exp(-2*pi*i*j/n), n the number of
// elements of the matrix. The products are rounded one after the other, as in the original.
func twiddles(i, edge int) []complex128 {
	factors := make([]complex128, edge)
	for j := range factors {
		angle := float64(2 * pi * float64(j))
		factors[j] = rounded.Root(float64(angle*float64(i)) / float64(edge*edge))
	}
	return factors
}
