package collections_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

// These examples are compiled, not run: they need a daemon.

var (
	ctx = context.Background()
	c   *dsm.Cluster // from dsm.Join
)

// Pi by chance: every rank adds what it finds, without a message, and rank 0 looks at times.
func ExampleAccumulator() {
	inside, err := collections.NewAccumulator[int64](ctx, c, "inside")
	if err != nil {
		log.Fatal(err)
	}
	const each = 1 << 30
	for i := range each {
		if x, y := rand.Float64(), rand.Float64(); x*x+y*y < 1 {
			inside.Add(1)
		}
		if c.Rank() == 0 && i%(each/10) == 0 {
			sum, err := inside.Sum(ctx)
			fmt.Println(sum, "of all points so far, ", err)
		}
	}
	if err := c.Barrier(ctx); err != nil {
		log.Fatal(err)
	}
	sum, err := inside.Sum(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(4 * float64(sum) / float64(each*c.Size()))
}

// Each rank draws a hundred numbers at a time, so the page travels once for a hundred tasks.
func ExampleCounter() {
	const tasks, batch = 100000, 100
	next, err := collections.NewCounter(ctx, c, "next task")
	if err != nil {
		log.Fatal(err)
	}
	for {
		end := next.Add(batch)
		for task := end - batch; task < min(end, tasks); task++ {
			fmt.Println("rank", c.Rank(), "does task", task)
		}
		if end >= tasks {
			break
		}
	}
}

// Each rank says how far it has come, where that makes no other rank's page travel.
func ExamplePadded() {
	progress, err := collections.NewPadded[int64](ctx, c, "progress", c.Size())
	if err != nil {
		log.Fatal(err)
	}
	*progress.At(c.Rank())++
}
