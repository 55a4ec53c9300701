package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/dsync"
)

// The examples need a daemon, so TestExamples runs them.

var (
	ctx context.Context
	c   *dsm.Cluster // from dsm.Join
)

// TestExamples: all ranks come through the examples.
func TestExamples(t *testing.T) {
	dsmtest.Run(t, 2, func(within context.Context, of *dsm.Cluster) {
		ctx, c = within, of
		ExampleSemaphore()
		ExampleWaitGroup()
		ExampleCond()
		ExampleErrGroup()
	})
}

// At most two goroutines of all ranks read from the disk that they share.
func ExampleSemaphore() {
	disk, err := dsync.NewSemaphore(ctx, c, "disk", 2)
	if err != nil {
		log.Fatal(err)
	}
	if err := disk.Acquire(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rank", c.Rank(), "reads")
	if err := disk.Release(1); err != nil {
		log.Fatal(err)
	}
}

// Rank 0 goes on when every rank has done its part, and those need not wait for it.
func ExampleWaitGroup() {
	parts, err := dsync.NewWaitGroup(ctx, c, "parts")
	if err != nil {
		log.Fatal(err)
	}
	if err := parts.Add(1); err != nil {
		log.Fatal(err)
	}
	if err := c.Barrier(ctx); err != nil { // all have called Add
		log.Fatal(err)
	}
	if err := parts.Done(); err != nil {
		log.Fatal(err)
	}
	if c.Rank() == 0 {
		if err := parts.Wait(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Println("all parts are done")
	}
}

// The last rank says what all wait for.
func ExampleCond() {
	threshold, err := dsm.Isolate[float64](ctx, c, "threshold")
	if err != nil {
		log.Fatal(err)
	}
	found, err := dsync.NewCond(ctx, c, "found", dsm.NewMutex(c, "threshold"))
	if err != nil {
		log.Fatal(err)
	}
	if err := found.L.Lock(ctx); err != nil {
		log.Fatal(err)
	}
	defer found.L.Unlock()
	if c.Rank() == c.Size()-1 {
		*threshold = 0.5
		if err := found.Broadcast(); err != nil {
			log.Fatal(err)
		}
	}
	for *threshold == 0 {
		if err := found.Wait(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("rank", c.Rank(), "sees", *threshold)
}

// Each rank looks for what one of them finds, and then all end.
func ExampleErrGroup() {
	errFound := errors.New("found")
	g, within, err := dsync.NewErrGroup(ctx, c, "search")
	if err != nil {
		log.Fatal(err)
	}
	g.Go(func() error {
		for i := c.Rank(); ; i += c.Size() {
			if within.Err() != nil {
				return nil
			}
			if i == 4711 {
				return fmt.Errorf("%w: %d", errFound, i)
			}
		}
	})
	fmt.Println(g.Wait(ctx)) // on all ranks: … on rank 1: found: 4711
}
