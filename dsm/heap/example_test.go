package heap_test

import (
	"context"
	"fmt"
	"log"

	"dsmd/dsm"
	"dsmd/dsm/heap"
)

// These examples are compiled, not run: they need a daemon. Package examples/bfs is a program that
// tests run.

var (
	ctx = context.Background()
	c   *dsm.Cluster // from dsm.Join
)

// Rank 0 builds a list that all ranks read.
func ExampleNew() {
	type item struct {
		Word heap.String
		Next heap.Ref[item]
	}
	h, err := heap.Open(ctx, c, "words", 1<<30)
	if err != nil {
		log.Fatal(err)
	}
	first, err := dsm.Isolate[heap.Ref[item]](ctx, c, "first")
	if err != nil {
		log.Fatal(err)
	}
	for _, word := range []string{"sea", "the", "and", "man", "old", "the"} {
		if c.Rank() != 0 {
			break
		}
		p, err := heap.New[item](h)
		if err != nil {
			log.Fatal(err)
		}
		if p.Get().Word, err = heap.NewString(h, word); err != nil {
			log.Fatal(err)
		}
		p.Get().Next, *first = *first, p
	}
	if err := c.Barrier(ctx); err != nil {
		log.Fatal(err)
	}
	for p := *first; !p.IsNil(); p = p.Get().Next {
		fmt.Println(p.Get().Word.Get())
	}
}

// A test checks that nothing is left.
func ExampleHeap_Leaks() {
	var h *heap.Heap // from Open
	h.Track()
	// What is tested, and then:
	leaks, err := h.Leaks(ctx, c)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range leaks {
		fmt.Println("leaked:", l) // 3 values of type main.item from list.go:17 (144 bytes)
	}
}
