// Package kerneltest has what the tests of all kernels do: run a version, and compare runs by
// different numbers of goroutines.
package kerneltest

import (
	"context"
	"testing"

	"dsmd/bench/kernel"
)

// Solve runs a version that was prepared, or failed to be, on ordinary memory, and returns its
// result. The test ends if anything fails.
func Solve(t testing.TB, r *kernel.Run, err error) kernel.Result {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Compute(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	result := r.Result()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return result
}

// Cancelled computes a problem with two goroutines and a context that has ended, and returns what
// Compute says of that.
func Cancelled(t testing.TB, p kernel.Problem) error {
	t.Helper()
	r, err := kernel.Goroutines(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return r.Compute(ctx, nil)
}

// AnyNumberOfThreads runs the sequential version and those with the given numbers of goroutines,
// and has the problem verify all of these. The name says in errors which problem it is.
func AnyNumberOfThreads(t testing.TB, name string, p kernel.Problem, threads ...int) {
	t.Helper()
	r, err := kernel.Sequential(p)
	want := Solve(t, r, err)
	for _, n := range threads {
		r, err := kernel.Goroutines(p, n)
		if err := p.Verify(want, Solve(t, r, err)); err != nil {
			t.Errorf("%s, %d threads: %v", name, n, err)
		}
	}
}
