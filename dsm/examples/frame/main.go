// Command frame asks two tables what the customers of each region have spent on large orders. Run
// it with `dsmd run -n 4 -- ./frame`.
//
// A table is columns in shared memory. An operator goes over its rows on all ranks, each of which
// has a part, and makes a column of the result. Rows stay where they are. Groups are summed up on
// each rank first, and only the sums travel.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"dsmd/dsm"
	"dsmd/dsm/parallel"
)

const (
	block   = 1024 // rows, of which a column of int32 is a page
	regions = 5
	large   = 80_00 // cents
	unknown = -1    // the row of a customer that is not in the table, and the region
)

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	spent, err := ask(ctx, c, 1_000_000, 50_000)
	if err != nil {
		log.Fatal(err)
	}
	for region := range int32(regions) {
		if c.Rank() == 0 {
			fmt.Printf("region %d: %d cents\n", region, spent[region])
		}
	}
}

// ask returns what the customers of each region have spent on large orders.
func ask(ctx context.Context, c *dsm.Cluster, orders int, customers int32) (spent map[int32]int64, err error) {
	f := frame{ctx: ctx, c: c}
	f.team, f.err = parallel.New(ctx, c, "team")
	buyers := column(&f, "buyers", orders, random(1, customers*21/20)) // some are not in the table
	cents := column(&f, "cents", orders, random(2, 100_00))
	names := column(&f, "names", int(customers), backwards(customers))
	region := column(&f, "regions", int(customers), random(3, regions))

	some := f.filter("large", orders, func(row int) bool { return cents[row] >= large })
	who := f.join("who", len(some), func(i int) int32 { return buyers[some[i]] }, names)
	spent = f.sums("spent", regions+1, len(some), func(i int) (int32, int64) {
		if who[i] == unknown {
			return unknown, int64(cents[some[i]])
		}
		return region[who[i]], int64(cents[some[i]])
	})
	return spent, f.err
}

// random is a column of numbers below n.
func random(column uint64, n int32) func(row int) (int32, error) {
	return func(row int) (int32, error) { return rand.New(rand.NewPCG(column, uint64(row))).Int32N(n), nil }
}

// backwards is a column of all numbers below n, the last one first.
func backwards(n int32) func(row int) (int32, error) {
	return func(row int) (int32, error) { return n - 1 - int32(row), nil }
}
