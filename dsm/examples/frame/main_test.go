package main

import (
	"context"
	"maps"
	"slices"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/parallel"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestAsk: the answer is that which one thread finds.
func TestAsk(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		const orders, customers = 20_000, 1000
		spent, err := ask(ctx, c, orders, customers)
		if err != nil {
			t.Fatal(err)
		}
		if want := alone(orders, customers); !maps.Equal(spent, want) || len(want) != regions+1 {
			t.Errorf("the answer is %v, want %v", spent, want)
		}
	})
}

// alone is ask by one thread, row by row.
func alone(orders int, customers int32) map[int32]int64 {
	value := func(column func(int) (int32, error), row int) int32 {
		v, _ := column(row) // of columns that never fail
		return v
	}
	region := map[int32]int32{}
	for row := range int(customers) {
		region[value(backwards(customers), row)] = value(random(3, regions), row)
	}
	spent := map[int32]int64{}
	for row := range orders {
		cents := value(random(2, 100_00), row)
		if cents < large {
			continue
		}
		r, known := region[value(random(1, customers*21/20), row)]
		if !known {
			r = unknown
		}
		spent[r] += int64(cents)
	}
	return spent
}

// TestFilter: rows are kept in order, whatever is kept of a block.
func TestFilter(t *testing.T) {
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		f := frame{ctx: ctx, c: c}
		f.team, f.err = parallel.New(ctx, c, "team")
		const n = 5*block + 7
		for _, test := range []struct {
			name string
			keep func(row int) bool
		}{
			{"all", func(int) bool { return true }},
			{"none", func(int) bool { return false }},
			{"a block", func(row int) bool { return row/block == 2 }},
			{"some", func(row int) bool { return row%7 == 3 || row == n-1 }},
		} {
			var want []int32
			for row := range n {
				if test.keep(row) {
					want = append(want, int32(row))
				}
			}
			if got := f.filter(test.name, n, test.keep); !slices.Equal(got, want) || f.err != nil {
				t.Errorf("%s: %d rows, want %d, or others; %v", test.name, len(got), len(want), f.err)
			}
		}
	})
}
