package collections_test

import (
	"context"
	"errors"
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

// Some text is counted by all ranks. What a rank finds is combined before anything is sent.
func ExampleMap() {
	counts, err := collections.NewMap[string, int](ctx, c, "counts", 50000)
	if err != nil {
		log.Fatal(err)
	}
	sums := counts.Combine(dsm.Sum[int])
	for _, word := range []string{"a", "part", "of", "a", "text"} {
		if err := sums.Add(ctx, word, 1); err != nil {
			log.Fatal(err)
		}
	}
	if err := sums.FlushAll(ctx, c); err != nil { // waits for all ranks
		log.Fatal(err)
	}
	for e, err := range counts.Part(ctx, c.Rank(), c.Size()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Key, e.Value)
	}
}

// Balances are changed by any rank, at any time.
func ExampleMap_Update() {
	balances, err := collections.NewMap[int64, int64](ctx, c, "balances", 1e6)
	if err != nil {
		log.Fatal(err)
	}
	balance, err := balances.Update(ctx, 4711, func(old int64, there bool) int64 { return old + 100 })
	fmt.Println(balance, err)
}

// What one rank finds, others look at.
func ExampleQueue() {
	type task struct{ First, Last int }
	tasks, err := collections.NewQueue[task](ctx, c, "tasks", 1000)
	if err != nil {
		log.Fatal(err)
	}
	if c.Rank() == 0 {
		for i := range 100 {
			if err := tasks.Put(ctx, task{1000 * i, 1000*i + 999}); err != nil {
				log.Fatal(err)
			}
		}
		if err := tasks.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
	for {
		t, err := tasks.Take(ctx)
		if errors.Is(err, collections.ErrQueueClosed) {
			break
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Println("rank", c.Rank(), "does", t)
	}
}

// Each page is looked at by the rank that finds it first.
func ExampleSet() {
	seen, err := collections.NewSet[string](ctx, c, "seen", 1e5)
	if err != nil {
		log.Fatal(err)
	}
	if added, err := seen.Add(ctx, "index.html"); err == nil && added {
		fmt.Println("rank", c.Rank(), "looks at it")
	}
}
