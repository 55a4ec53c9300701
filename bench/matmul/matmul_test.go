package matmul

import (
	"math"
	"testing"

	"dsmd/bench/kernel"
)

// solve runs one version and returns its result.
func solve(t *testing.T, r kernel.Run, err error) kernel.Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Compute(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	result, err := r.Result(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestSequentialIsTheProduct compares with the definition, summed in another order: within the rounding
// of n terms of at most 1/4 each.
func TestSequentialIsTheProduct(t *testing.T) {
	for _, n := range []int{1, 2, 5, 67, 130} {
		r, err := Kernel{}.Problem(n).Sequential()
		got := solve(t, r, err)
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
		p := Kernel{}.Problem(n)
		r, err := p.Sequential()
		want := solve(t, r, err)
		for _, threads := range []int{1, 2, 3, 8, 33} {
			r, err := p.Goroutines(threads)
			if err := p.Verify(want, solve(t, r, err)); err != nil {
				t.Errorf("edge %d, %d threads: %v", n, threads, err)
			}
		}
	}
}
