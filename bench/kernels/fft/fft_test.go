package fft

import (
	"errors"
	"fmt"
	"math"
	"math/cmplx"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

// TestOriginalsFigures compares with the original program at all sizes of the reference. At M = 8,
// all of glibc's twiddle factors are correctly rounded, so that even the bits agree.
func TestOriginalsFigures(t *testing.T) {
	for m := range splash3 {
		p := Kernel.Problem(m)
		r, err := kernel.Sequential(p)
		got := kerneltest.Solve(t, r, err)
		if err := p.Verify(got, got); err != nil {
			t.Errorf("M = %d: %v", m, err)
		}
	}
}

// TestAnyNumberOfThreads includes more threads than rows and numbers that divide nothing.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, m := range []int{2, 4, 6, 10, 12} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("M = %d", m), Kernel.Problem(m), 1, 2, 3, 4, 5)
	}
}

// TestIsTheTransform compares with the definition. pi being 3.1416, the agreement is that of its
// digits: the last row's angles are wrong by up to 2e-5.
func TestIsTheTransform(t *testing.T) {
	p := Kernel.Problem(6)
	r, err := kernel.Sequential(p)
	if err != nil {
		t.Fatal(err)
	}
	input := make([]complex128, 64)
	for i := range 8 {
		copy(input[8*i:], r.Program.(*run).x.row(i))
	}
	got := kerneltest.Solve(t, r, nil)
	for k := range 64 {
		want := complex(0, 0)
		for j, z := range input {
			want += z * cmplx.Rect(1, -2*math.Pi*float64(j*k)/64)
		}
		z := complex(math.Float64frombits(got.Output.At(2*k)), math.Float64frombits(got.Output.At(2*k+1)))
		if cmplx.Abs(z-want) > 1e-2 {
			t.Errorf("element %d is %v, want %v", k, z, want)
		}
	}
}

// TestVerifyNotices a wrong inverse, a wrong figure and a wrong word.
func TestVerifyNotices(t *testing.T) {
	p := Kernel.Problem(8)
	r, err := kernel.Sequential(p)
	right := kerneltest.Solve(t, r, err)
	for _, figure := range []string{"checksum_difference", "sum_re", "Xlast_im"} {
		wrong := kernel.Result{Figures: map[string]any{}, Output: right.Output}
		for name, value := range right.Figures {
			wrong.Figures[name] = value
		}
		wrong.Figures[figure] = 0.01
		if p.Verify(wrong, wrong) == nil {
			t.Errorf("%s = 0.01 is verified", figure)
		}
	}
	output := append(kernel.Float64s(nil), right.Output.(kernel.Float64s)...)
	output[77] = math.Nextafter(output[77], 0)
	if p.Verify(right, kernel.Result{Figures: right.Figures, Output: output}) == nil {
		t.Error("a wrong bit is verified")
	}
}

func TestOddSizesAreNone(t *testing.T) {
	for _, text := range []string{"3", "0", "11", "30"} {
		if _, err := Kernel.Sizes.Parse(text); !errors.Is(err, kernel.ErrSize) {
			t.Errorf("size %s: %v, want ErrSize", text, err)
		}
	}
}

// TestNoPageHasTwoWriters: blocks of rows begin on pages of their own.
func TestNoPageHasTwoWriters(t *testing.T) {
	const page = 4096
	for _, threads := range []int{1, 2, 3, 7, 64, 65} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			l, owner := newLayout(64, threads, page), map[int]int{}
			for thread := range threads {
				for lo, hi := kernel.Block(64, threads, thread); lo < hi; lo++ {
					for at := l.offsets[lo]; at < l.offsets[lo]+l.edge; at++ {
						p := at * elementBytes / page
						if other, taken := owner[p]; taken && other != thread {
							t.Fatalf("page %d has rows of threads %d and %d", p, other, thread)
						}
						owner[p] = thread
						if at >= l.length {
							t.Fatalf("element %d lies beyond the length %d", at, l.length)
						}
					}
				}
			}
		})
	}
}
