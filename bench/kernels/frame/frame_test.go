package frame

import (
	"testing"

	"dsmd/bench/kernel"
	"dsmd/bench/kernel/kerneltest"
)

func TestAnyNumberOfThreads(t *testing.T) {
	for _, k := range []kernel.Kernel{Filter, Group, Join} {
		for _, n := range []int{k.Sizes.Min, 1000, k.Sizes.Test} {
			kerneltest.AnyNumberOfThreads(t, k.Name, k.Problem(n), 2, 3, 8)
		}
	}
}

// solve is the result of an operator by one thread, and the table.
func solve(t *testing.T, k kernel.Kernel, n int) (kernel.Words, *frame) {
	t.Helper()
	r, err := kernel.Sequential(k.Problem(n))
	words := kerneltest.Solve(t, r, err).Output
	return words, r.Program.(*run).frame
}

// TestResults compares with the definitions.
func TestResults(t *testing.T) {
	const n = 5000
	got, f := solve(t, Filter, n)
	next := 0
	for row, k := range f.keys {
		if k < kept {
			if got.At(next) != uint64(f.values[row]) {
				t.Fatalf("the %dth row that is kept is %d, want %d", next, got.At(next), f.values[row])
			}
			next++
		}
	}
	if next < n/5 || next > n*3/10 || got.At(next) != 0 {
		t.Errorf("%d of %d rows are kept, and then comes %d", next, n, got.At(next))
	}

	got, f = solve(t, Group, n)
	want := make([]int64, groups)
	for row, k := range f.keys {
		want[k%groups] += int64(f.values[row])
	}
	for g := range want {
		if got.At(g) != uint64(want[g]) {
			t.Errorf("group %d is %d, want %d", g, got.At(g), want[g])
		}
	}

	got, f = solve(t, Join, n)
	other := n / 16
	for row, k := range f.keys {
		if want := int32(mix(-(other - 1 - int(k)%other))); got.At(row) != uint64(want) {
			t.Fatalf("row %d is joined with %d, want %d", row, got.At(row), want)
		}
	}
}
