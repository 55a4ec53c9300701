// Command bfs finds how far the vertices of a random graph are from the first one. Run it with
// `dsmd run -n 4 -- ./bfs`.
//
// Each vertex is a value of a heap, which has the vertices that its edges lead to as Refs. A rank
// allocates its part of them, so they lie together. It searches step by step: in each, a rank looks
// at those of its vertices that the step before has reached, and claims the vertices behind their
// edges, wherever these are, by an atomic instruction.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"sync/atomic"

	"dsmd/dsm"
	"dsmd/dsm/heap"
)

const (
	vertices = 1 << 17
	edges    = 8 // of each vertex: 2^20 together
)

// vertex is how far away it is, 0 if that is not known, or else 1 more, and where it leads to.
type vertex struct {
	depth atomic.Int32
	edges heap.Slice[heap.Ref[vertex]]
}

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	h, err := heap.Open(ctx, c, "graph", 1<<30)
	if err != nil {
		log.Fatal(err)
	}
	all, err := share(ctx, c, h, vertices)
	if err != nil {
		log.Fatal(err)
	}
	reached, err := search(ctx, c, all)
	if err != nil {
		log.Fatal(err)
	}
	if c.Rank() == 0 {
		fmt.Println("vertices that are 0, 1, 2 … edges away:", reached)
	}
}

// block is this rank's part of n.
func block(c *dsm.Cluster, n int) (lo, hi int) {
	return n * c.Rank() / c.Size(), n * (c.Rank() + 1) / c.Size()
}

// targets are where the edges of vertex v lead to: near it, mostly.
func targets(v, n int) (to [edges]int) {
	r := rand.New(rand.NewPCG(1, uint64(v)))
	for e := range to {
		to[e] = (v + 1 + r.IntN(64)) % n
		if e == 0 && v%64 == 0 {
			to[e] = r.IntN(n)
		}
	}
	return to
}

// share makes the graph.
func share(ctx context.Context, c *dsm.Cluster, h *heap.Heap, n int) ([]heap.Ref[vertex], error) {
	all, err := dsm.Alloc[heap.Ref[vertex]](ctx, c, "vertices", n)
	lo, hi := block(c, n)
	for v := lo; v < hi && err == nil; v++ {
		all[v], err = heap.New[vertex](h)
	}
	if err = errors.Join(err, c.Barrier(ctx)); err != nil {
		return nil, err
	}
	for v := lo; v < hi && err == nil; v++ {
		to := &all[v].Get().edges
		if *to, err = heap.NewSlice[heap.Ref[vertex]](h, edges); err == nil {
			for e, w := range targets(v, n) {
				to.Get()[e] = all[w]
			}
		}
	}
	return all, errors.Join(err, c.Barrier(ctx))
}

// search returns how many vertices are how far from the first one.
func search(ctx context.Context, c *dsm.Cluster, all []heap.Ref[vertex]) (reached []int, err error) {
	all[0].Get().depth.CompareAndSwap(0, 1)
	lo, hi := block(c, len(all))
	for depth := int32(1); ; depth++ {
		here := 0
		for _, v := range all[lo:hi] {
			if v.Get().depth.Load() != depth {
				continue
			}
			here++
			for _, w := range v.Get().edges.Get() {
				if w.Get().depth.Load() == 0 {
					w.Get().depth.CompareAndSwap(0, depth+1)
				}
			}
		}
		n, err := dsm.Reduce(ctx, c, "reached", here, dsm.Sum)
		if n == 0 || err != nil {
			return reached, err
		}
		reached = append(reached, n)
	}
}
