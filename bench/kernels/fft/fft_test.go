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
	input := r.Program.(*run).x.rowByRow()
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

// places is a matrix whose elements say where they are.
func places(edge, threads, page int) matrix {
	l := newLayout(edge, threads, page)
	m := matrix{l, make([]complex128, l.length)}
	for i := range m.elements {
		m.elements[i] = complex(float64(i), 0)
	}
	return m
}

// TestNoPageHasTwoWriters: blocks of rows begin on pages of their own.
func TestNoPageHasTwoWriters(t *testing.T) {
	const page = 4096
	for _, threads := range []int{1, 2, 3, 7, 64, 65} {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			m, owner, total := places(64, threads, page), map[int]int{}, 0
			for thread := range threads {
				for _, at := range m.owned(thread) {
					p := int(real(at)) * elementBytes / page
					if other, taken := owner[p]; taken && other != thread {
						t.Fatalf("page %d has rows of threads %d and %d", p, other, thread)
					}
					owner[p] = thread
					total++
				}
			}
			if total != 64*64 {
				t.Fatalf("threads own %d elements, want %d", total, 64*64)
			}
		})
	}
}

// TestReadersReadWholePages at the default size: none reads a page for a part of it.
func TestReadersReadWholePages(t *testing.T) {
	const page = 4096
	for _, threads := range []int{2, 4, 8, 16} {
		m, reader := places(256, threads, page), map[int]int{}
		for thread := range threads {
			for other := range threads {
				for _, at := range m.patch(thread, other).elements {
					p := int(real(at)) * elementBytes / page
					if another, taken := reader[p]; taken && another != other {
						t.Fatalf("%d threads: page %d is for threads %d and %d", threads, p, another, other)
					}
					reader[p] = other
				}
			}
		}
	}
}
