package matmul

import (
	"fmt"
	"math"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

// TestSequentialIsTheProduct compares with the definition, summed in another order: within the
// rounding of n terms of at most 1/4 each.
func TestSequentialIsTheProduct(t *testing.T) {
	for _, n := range []int{1, 2, 5, 67, 130} {
		r, err := kernel.Sequential(Kernel.Problem(n))
		got := kerneltest.Solve(t, r, err)
		in := matrices{n: n, a: make([]float64, n*n), b: make([]float64, n*n), c: make([]float64, n*n)}
		in.fill(0, n)
		for i := range n {
			for j := range n {
				want := 0.0
				for k := range n {
					want += in.a[i*n+k] * in.b[k*n+j]
				}
				if x := math.Float64frombits(got.Output.At(i*n + j)); math.Abs(x-want) > float64(n)*1e-15 {
					t.Fatalf("edge %d: C[%d,%d] is %v, want %v", n, i, j, x, want)
				}
			}
		}
	}
}

// TestAnyNumberOfThreads includes more threads than rows.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{1, 7, 128} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("edge %d", n), Kernel.Problem(n), 1, 2, 3, 8, 33)
	}
}
