package parallel_test

import (
	"context"
	"fmt"
	"log"

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
