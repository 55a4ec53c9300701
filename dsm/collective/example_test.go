package collective_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"dsmd/dsm"
	"dsmd/dsm/collective"
)

// These examples are compiled, not run: they need a daemon.

var (
	ctx = context.Background()
	c   *dsm.Cluster // from dsm.Join
)

// Rank 0 reads a file that is on its machine only.
func ExampleBroadcast() {
	var text []byte
	var err error
	if c.Rank() == 0 {
		if text, err = os.ReadFile("settings.json"); err != nil {
			log.Fatal(err) // ends the job
		}
	}
	if text, err = collective.Broadcast(ctx, c, "settings", 0, text); err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(text), "bytes of settings")
}

// Rank 0 writes what all have found.
func ExampleGather() {
	type match struct{ File, Line int32 }
	var found []match // by this rank, however many
	all, err := collective.Gather(ctx, c, "found", 0, found)
	if err != nil {
		log.Fatal(err)
	}
	for rank, found := range all {
		fmt.Println("rank", rank, "has found", found)
	}
}

// A gradient of millions of numbers, of which every rank has computed its share.
func ExampleAllReduce() {
	gradient := make([]float32, 10_000_000)
	gradient, err := collective.AllReduce(ctx, c, "gradient", gradient, dsm.Sum)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(gradient), "sums")
}

// A folder that all use is made by one.
func ExampleOnce() {
	err := collective.Once(ctx, c, "folder", func() error { return os.MkdirAll("/shared/results", 0o755) })
	if err != nil {
		log.Fatal(err)
	}
}
