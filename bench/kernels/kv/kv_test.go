package kv

import (
	"math"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

func TestAnyNumberOfThreads(t *testing.T) {
	for _, k := range []kernel.Kernel{A, B, C} {
		kerneltest.AnyNumberOfThreads(t, k.Name, k.Problem(k.Sizes.Test), 2, 3, 8)
	}
}

// TestUpdates: as many operations update as the workload says, within chance.
func TestUpdates(t *testing.T) {
	for k, want := range map[*kernel.Kernel]float64{&A: 0.5, &B: 0.05, &C: 0} {
		r, err := kernel.Sequential(k.Problem(2000))
		f := kerneltest.Solve(t, r, err).Figures
		if share := f["updates"].(float64) / f["operations"].(float64); math.Abs(share-want) > 0.02 {
			t.Errorf("%s: %.3f of the operations update, want %.2f", k.Name, share, want)
		}
	}
}

// TestZipf: the first numbers come as often as the distribution says, and all are below n.
func TestZipf(t *testing.T) {
	const n, draws = 1000, 200_000
	z, counts := newZipf(n), make([]float64, n)
	for i := range draws {
		counts[z.draw((float64(i)+0.5)/draws)]++
	}
	for i, tolerance := range []float64{0.01, 0.01, 0.25, 0.25, 0.25} { // Gray's is exact for two
		want := draws / z.zeta / math.Pow(float64(i+1), exponent)
		if math.Abs(counts[i]-want) > tolerance*want {
			t.Errorf("%d comes %.0f times, want %.0f", i, counts[i], want)
		}
	}
	if last := z.draw(math.Nextafter(1, 0)); last != n-1 {
		t.Errorf("the last number is %d", last)
	}
}

// TestCheck: a record of two moments is found, and one of another key, and one that is not there.
func TestCheck(t *testing.T) {
	r := record{Key: 7, Sum: 2}
	r.Fields[3], r.Fields[9] = 1, 1
	if err := r.check(7, true); err != nil {
		t.Error(err)
	}
	if r.check(8, true) == nil || r.check(7, false) == nil {
		t.Error("another key's record is as good, or none")
	}
	if r.Fields[0] = 1; r.check(7, true) == nil {
		t.Error("a record of two moments is as good as one")
	}
}
