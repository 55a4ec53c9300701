// Command pipeline looks for the number whose Collatz sequence is longest: n is followed by n/2, or
// by 3n+1 if it is odd, until it is 1. Run it with `dsmd run -n 4 -- ./pipeline`.
//
// It is a pipeline over all ranks. Each puts spans of numbers into a queue. Workers on all ranks
// take them, and put what they have found into another queue, from which rank 0 takes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"runtime"
	"sync"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

const (
	numbers = 3_000_000
	step    = 500 // numbers of a span
	waiting = 64  // items of a rank that may wait in a queue
)

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	best, err := longest(ctx, c, numbers)
	if err != nil {
		log.Fatal(err)
	}
	if c.Rank() == 0 {
		fmt.Printf("%d takes %d steps\n", best.Number, best.Steps)
	}
}

type span struct{ Lo, Hi int }
type found struct{ Number, Steps int }

func (f found) or(g found) found {
	if g.Steps > f.Steps || g.Steps == f.Steps && g.Number < f.Number {
		return g
	}
	return f
}

// longest returns, on rank 0, the number below n with the longest sequence.
func longest(ctx context.Context, c *dsm.Cluster, n int) (best found, err error) {
	spans, err := collections.NewQueue[span](ctx, c, "spans", waiting)
	results, failed := collections.NewQueue[found](ctx, c, "results", waiting)
	if err := errors.Join(err, failed); err != nil {
		return best, err
	}
	put := stage(1, func() error {
		for lo := 1 + c.Rank()*step; lo < n; lo += c.Size() * step {
			if err := spans.Put(ctx, span{lo, min(lo+step, n)}); err != nil {
				return err
			}
		}
		return nil
	})
	work := stage(runtime.NumCPU(), func() error {
		return each(ctx, spans, func(s span) error { return results.Put(ctx, look(s)) })
	})
	collect := stage(1-min(c.Rank(), 1), func() error { // on rank 0
		return each(ctx, results, func(f found) error {
			best = best.or(f)
			return nil
		})
	})
	// A queue is closed when all ranks are done with what puts items there.
	err = errors.Join(put(), c.Barrier(ctx), spans.Close(ctx))
	err = errors.Join(err, work(), c.Barrier(ctx), results.Close(ctx), collect())
	return best, errors.Join(err, c.Barrier(ctx), spans.Free(ctx), results.Free(ctx))
}

// stage runs f in some goroutines, and returns what waits for them.
func stage(goroutines int, f func() error) (wait func() error) {
	errs := make([]error, goroutines)
	var team sync.WaitGroup
	for i := range errs {
		team.Go(func() { errs[i] = f() })
	}
	return func() error { team.Wait(); return errors.Join(errs...) }
}

// each calls f with all items until the queue is closed.
func each[T any](ctx context.Context, q *collections.Queue[T], f func(T) error) error {
	for {
		v, err := q.Take(ctx)
		if errors.Is(err, collections.ErrQueueClosed) && !errors.Is(err, dsm.ErrPageLost) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(v); err != nil {
			return err
		}
	}
}

// look looks at the numbers of a span.
func look(s span) (best found) {
	for number := s.Lo; number < s.Hi; number++ {
		steps := 0
		for n := number; n != 1; steps++ {
			n = [2]int{n / 2, 3*n + 1}[n%2]
		}
		best = best.or(found{number, steps})
	}
	return best
}
