package radix

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
	"dsmd/bench/kernels/random"
)

// TestOriginalsFigures compares with the original program at all sizes of the reference.
func TestOriginalsFigures(t *testing.T) {
	for n := range splash3 {
		p := Kernel.Problem(n)
		r, err := kernel.Sequential(p)
		got := kerneltest.Solve(t, r, err)
		if err := p.Verify(got, got); err != nil {
			t.Errorf("%d keys: %v", n, err)
		}
	}
}

// TestInputIsTheOriginals compares with keys and a checksum of the reference.
func TestInputIsTheOriginals(t *testing.T) {
	keys := make([]int32, 65536)
	random.Keys(keys, seed, 0, keyBits)
	if want := []int32{51955373, 27043129, 34735896, 44021636, 31334862, 14334006, 24884469, 27567729}; !slices.Equal(keys[:8], want) {
		t.Errorf("the first keys are %v, want %v", keys[:8], want)
	}
	words := make(kernel.Uint64s, len(keys))
	for i, key := range keys {
		words[i] = uint64(key)
	}
	if got := kernel.FNV(words); got != "a5c0e5213884cc8b" {
		t.Errorf("the input's fnv is %s", got)
	}
	later := make([]int32, 100)
	random.Keys(later, seed, 60000, keyBits)
	if !slices.Equal(later, keys[60000:60100]) {
		t.Error("a part of the input, made alone, differs")
	}
}

// TestAnyNumberOfThreads includes more threads than keys, and numbers of them that divide nothing.
func TestAnyNumberOfThreads(t *testing.T) {
	for _, n := range []int{1, 2, 1000, 16384} {
		kerneltest.AnyNumberOfThreads(t, fmt.Sprintf("%d keys", n), Kernel.Problem(n), 1, 2, 3, 4, 5, 6, 7, 11)
	}
}

func TestIsASort(t *testing.T) {
	const n = 5000
	keys := make([]int32, n)
	random.Keys(keys, seed, 0, keyBits)
	slices.Sort(keys)
	r, err := kernel.Sequential(Kernel.Problem(n))
	got := kerneltest.Solve(t, r, err)
	for i, key := range keys {
		if got.Output.At(i) != uint64(key) {
			t.Fatalf("key %d is %d, want %d", i, got.Output.At(i), key)
		}
	}
}

// TestVerifyNotices keys out of order, a lost key and a wrong figure.
func TestVerifyNotices(t *testing.T) {
	p := Kernel.Problem(65536)
	r, err := kernel.Sequential(p)
	right := kerneltest.Solve(t, r, err)
	keys := slices.Clone(right.Output.(kernel.Uint64s))
	keys[7], keys[70] = keys[70], keys[7]
	unsorted := kernel.Result{Figures: right.Figures, Output: keys}
	if p.Verify(unsorted, unsorted) == nil {
		t.Error("keys out of order are verified")
	}
	keys = slices.Clone(right.Output.(kernel.Uint64s))
	keys[8] = keys[7]
	if p.Verify(right, kernel.Result{Figures: right.Figures, Output: keys}) == nil {
		t.Error("a lost key is verified")
	}
	wrong := kernel.Result{Figures: keyFigures(keys), Output: keys}
	if p.Verify(wrong, wrong) == nil {
		t.Error("keys that are not the original's are verified")
	}
}

func TestSizesAreBounded(t *testing.T) {
	for _, text := range []string{"0", "-1", "1e6"} {
		if _, err := Kernel.Sizes.Parse(text); !errors.Is(err, kernel.ErrSize) {
			t.Errorf("size %s: %v, want ErrSize", text, err)
		}
	}
}
