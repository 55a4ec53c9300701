package ep

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"dsmd/bench/kernels/random"
)

// TestPublishedSums computes NAS's class S.
func TestPublishedSums(t *testing.T) {
	const classS = 24
	p := Kernel.Problem(classS)
	r, err := kernel.Goroutines(p, 2)
	got := kerneltest.Solve(t, r, err)
	if err := p.Verify(got, got); err != nil {
		t.Error(err)
	}
	// The counts of class S, as the NAS programs print them.
	want := []float64{6140517, 5865300, 1100361, 68546, 1648, 17}
	for i, n := range want {
		if q := got.Figures["q"+string(rune('0'+i))]; q != n {
			t.Errorf("count %d is %v, want %v", i, q, n)
		}
	}
}

// TestAnyNumberOfThreads includes more threads than batches.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, m := range []int{16, 18} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("M = %d", m), Kernel.Problem(m), 1, 2, 3, 4, 7)
	}
}

// TestBatchesAreOneSequence makes the pairs of two batches without batches.
func TestBatchesAreOneSequence(t *testing.T) {
	source := random.NAS(seed)
	var want batch
	for range 2 << batchBits {
		x, y := 2*source.Float64()-1, 2*source.Float64()-1
		if s := x*x + y*y; s <= 1 {
			f := math.Sqrt(-2 * math.Log(s) / s)
			want.SumX += x * f
			want.SumY += y * f
		}
	}
	a, b := compute(0), compute(1)
	if x, y := a.SumX+b.SumX, a.SumY+b.SumY; math.Abs(x-want.SumX) > 1e-8 || math.Abs(y-want.SumY) > 1e-8 {
		t.Errorf("the sums are %v, %v, want %v, %v", x, y, want.SumX, want.SumY)
	}
}

// TestVerifyNotices sums beyond NAS's tolerance.
func TestVerifyNotices(t *testing.T) {
	p := Kernel.Problem(24)
	result := func(sx float64) kernel.Result {
		return kernel.Result{Figures: map[string]any{"sx": sx, "sy": -6.958407078382297e+3}, Output: kernel.Float64s{}}
	}
	right := -3.247834652034740e+3
	if got := result(right * (1 + 1e-9)); p.Verify(got, got) != nil {
		t.Error("sums within the tolerance are not verified")
	}
	if got := result(right * (1 + 1e-7)); p.Verify(got, got) == nil {
		t.Error("sums beyond the tolerance are verified")
	}
}

func TestComputeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := kernel.Goroutines(Kernel.Problem(36), 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Compute(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Compute = %v, want %v", err, context.Canceled)
	}
}

func TestSizesAreBounded(t *testing.T) {
	for _, text := range []string{"15", "37", "S"} {
		if _, err := Kernel.Sizes.Parse(text); !errors.Is(err, kernel.ErrSize) {
			t.Errorf("size %s: %v, want ErrSize", text, err)
		}
	}
}
