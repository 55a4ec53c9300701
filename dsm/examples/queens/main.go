// Command queens counts the ways to put queens on a board, one in each row, so that none attacks
// another. Run it with `dsmd run -n 4 -- ./queens`, and a number for a board of another size.
//
// A task is a board with queens in its first rows. It forks a task for each place of the next one,
// or counts alone what is left, if that is little. Rank 0 begins with the empty board; the other
// ranks take boards from it, those with the fewest queens first, and then from each other.
package main

import (
	"context"
	"fmt"
	"log"
	"math/bits"
	"os"
	"strconv"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/parallel"
)

const (
	most  = 32 // so many columns fit into a word
	alone = 8  // so many rows are no task any more: they take some microseconds
)

// board is what queens in the rows above attack in the next one, a bit for each column.
type board struct {
	Rows              int32 // without a queen
	Straight          uint32
	LeftDown, RightUp uint32 // by diagonals
}

// each calls f with the boards that have one queen more.
func (b board) each(columns int, f func(board)) {
	free := uint32(1<<columns-1) &^ (b.Straight | b.LeftDown | b.RightUp)
	for ; free != 0; free &= free - 1 {
		queen := uint32(1) << bits.TrailingZeros32(free)
		f(board{b.Rows - 1, b.Straight | queen, (b.LeftDown | queen) << 1, (b.RightUp | queen) >> 1})
	}
}

// count returns how many boards come of b.
func (b board) count(columns int) (n int64) {
	if b.Rows == 0 {
		return 1
	}
	b.each(columns, func(next board) { n += next.count(columns) })
	return n
}

// solve returns how many ways there are to put n queens on n rows and columns.
func solve(ctx context.Context, c *dsm.Cluster, n int) (int64, error) {
	found, err := collections.NewAccumulator[int64](ctx, c, fmt.Sprint("found ", n))
	if err != nil {
		return 0, err
	}
	team, err := parallel.New(ctx, c, "queens")
	if err != nil {
		return 0, err
	}
	var first []board
	if c.Rank() == 0 {
		first = []board{{Rows: int32(n)}}
	}
	err = parallel.Tasks(ctx, team, first, func(t *parallel.Task[board]) error {
		if t.Value.Rows <= alone {
			found.Add(t.Value.count(n))
			return nil
		}
		t.Value.each(n, t.Fork)
		return nil
	})
	if err != nil {
		return 0, err // *parallel.Error says which board has failed, and on which rank
	}
	return found.Sum(ctx)
}

func main() {
	n := 14
	if len(os.Args) > 1 {
		var err error
		if n, err = strconv.Atoi(os.Args[1]); err != nil || n < 1 || n > most {
			log.Fatalf("queens are 1 to %d, not %q", most, os.Args[1])
		}
	}
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ways, err := solve(ctx, c, n)
	if err != nil {
		log.Fatal(err)
	}
	if c.Rank() == 0 {
		fmt.Println(ways, "ways for", n, "queens")
	}
}
