package main

import (
	"sync"
	"testing"
)

// threaded is the program as it was before: goroutines with channels between them.
func threaded(n, workers int) (best found) {
	spans, results := make(chan span, waiting), make(chan found, waiting)
	go func() {
		defer close(spans)
		for lo := 1; lo < n; lo += step {
			spans <- span{lo, min(lo+step, n)}
		}
	}()
	var team sync.WaitGroup
	for range workers {
		team.Go(func() {
			for s := range spans {
				results <- look(s)
			}
		})
	}
	go func() {
		team.Wait()
		close(results)
	}()
	for f := range results {
		best = best.or(f)
	}
	return best
}

// TestThreads: the number that is known to be the one below a million.
func TestThreads(t *testing.T) {
	if best := threaded(1_000_000, 2); best != (found{837_799, 524}) {
		t.Errorf("found %+v", best)
	}
}
