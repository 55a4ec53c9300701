// Package kerneltest has what the tests of all kernels do: run a version, and compare runs by different numbers of goroutines.
package kerneltest

import (
	"testing"

	"dsmd/bench/kernel"
)

// Solve runs a version that was prepared, or failed to be, on ordinary memory, and returns its result. The test ends if anything fails.
func Solve(t testing.TB, r kernel.Run, err error) kernel.Result {
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
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return result
}

// AnyNumberOfThreads runs the sequential version and those with the given numbers of goroutines, and has the problem verify all of these. The
// name says in errors which problem it is.
func AnyNumberOfThreads(t testing.TB, name string, p kernel.Problem, threads ...int) {
	t.Helper()
	r, err := p.Sequential()
	want := Solve(t, r, err)
	for _, n := range threads {
		r, err := p.Goroutines(n)
		if err := p.Verify(want, Solve(t, r, err)); err != nil {
			t.Errorf("%s, %d threads: %v", name, n, err)
		}
	}
}
