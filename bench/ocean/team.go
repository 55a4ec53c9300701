package ocean

import (
	"context"
	"fmt"

	"dsmd/bench/kernel"
)

// A team is the threads, which meet at barriers and agree on numbers.
type team struct {
	first, local, total int            // this process's threads are first to first+local-1 of total
	barrier             kernel.Barrier // of all threads
	partial             []float64      // what each thread brings to sum

	// The rest is for max.
	here   kernel.Barrier                                        // of this process's threads
	brings []float64                                             // what each of them brings
	found  float64                                               // written by the first of them, between two barriers here
	reduce func(ctx context.Context, x float64) (float64, error) // maximum of all processes; nil if this is the only one
}

func newTeam(local, total, first int, partial []float64, barrier kernel.Barrier,
	reduce func(context.Context, float64) (float64, error)) *team {
	return &team{
		first: first, local: local, total: total, barrier: barrier, partial: partial,
		here: kernel.NewBarrier(local), brings: make([]float64, local), reduce: reduce,
	}
}

// max returns the largest x of all threads. It is also a barrier. It takes one message per process each
// way, where the original takes a lock, a shared variable and two barriers.
func (t *team) max(ctx context.Context, thread int, x float64) (float64, error) {
	t.brings[thread-t.first] = x
	if err := t.here.Wait(ctx); err != nil {
		return 0, err
	}
	if thread == t.first {
		t.found = 0
		for _, brought := range t.brings {
			t.found = max(t.found, brought)
		}
		if t.reduce != nil {
			var err error
			if t.found, err = t.reduce(ctx, t.found); err != nil {
				return 0, fmt.Errorf("finding the maximum of all ranks: %w", err)
			}
		}
	}
	if err := t.here.Wait(ctx); err != nil {
		return 0, err
	}
	return t.found, nil
}

// sum returns the sum of all threads' x, added up in the order of threads, so that it depends neither on
// which comes first nor on how the threads are distributed over processes. It contains one barrier, and
// another must come before the next sum.
func (t *team) sum(ctx context.Context, thread int, x float64) (float64, error) {
	t.partial[thread] = x
	if err := t.barrier.Wait(ctx); err != nil {
		return 0, err
	}
	total := 0.0
	for _, partial := range t.partial {
		total += partial
	}
	return total, nil
}
