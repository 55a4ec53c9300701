package parallel_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"dsmd/dsm"
	"dsmd/dsm/parallel"
)

// These examples are compiled, not run: they need a daemon. dsm/examples has whole programs.

var (
	ctx = context.Background()
	c   *dsm.Cluster // from dsm.Join
)

// A sweep of a grid: each row is computed from its neighbours, and the change is added up.
func Example() {
	const rows, columns = 4096, 4096
	var grid, next []float64 // from dsm.Alloc
	team, err := parallel.New(ctx, c, "sweep")
	if err != nil {
		log.Fatal(err)
	}
	sweep := team.Touching(
		parallel.Reads(func(lo, hi int) []float64 { return grid[lo*columns : (hi+2)*columns] }),
		parallel.Writes(func(lo, hi int) []float64 { return next[(lo+1)*columns : (hi+1)*columns] }))
	change, err := parallel.Reduce(ctx, sweep, rows-2, func(i int) (sum float64, err error) {
		for at := (i+1)*columns + 1; at < (i+2)*columns-1; at++ {
			next[at] = (grid[at-columns] + grid[at-1] + grid[at+1] + grid[at+columns]) / 4
			sum += (next[at] - grid[at]) * (next[at] - grid[at])
		}
		return sum, nil
	}, dsm.Sum)
	if err != nil {
		log.Fatal(err) // *parallel.Error says which row has failed, and on which rank
	}
	fmt.Println(change)
}

// Work that is divided by hand, as a loop's is.
func ExampleTeam_Block() {
	var x []float64 // from dsm.Alloc
	team, err := parallel.New(ctx, c, "blocks")
	if err != nil {
		log.Fatal(err)
	}
	lo, hi := team.Block(len(x))
	clear(x[lo:hi])
}

// A list is sorted: a task sorts a part of it, and leaves the halves of what is long to others.
func ExampleTasks() {
	var list []int // from dsm.Alloc
	team, err := parallel.New(ctx, c, "sort")
	if err != nil {
		log.Fatal(err)
	}
	type part struct{ Lo, Hi int }
	var first []part
	if c.Rank() == 0 {
		first = []part{{0, len(list)}}
	}
	err = parallel.Tasks(ctx, team, first, func(t *parallel.Task[part]) error {
		lo, hi := t.Value.Lo, t.Value.Hi
		if hi-lo < 1<<14 {
			slices.Sort(list[lo:hi])
			return nil
		}
		middle := (lo + hi) / 2
		t.Fork(part{lo, middle})
		t.Fork(part{middle, hi})
		if err := t.Join(); err != nil {
			return err
		}
		copy(list[lo:hi], merged(list[lo:middle], list[middle:hi]))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

func merged(a, b []int) (all []int) {
	for len(a) > 0 && len(b) > 0 {
		if a[0] > b[0] {
			a, b = b, a
		}
		all, a = append(all, a[0]), a[1:]
	}
	return append(append(all, a...), b...)
}
