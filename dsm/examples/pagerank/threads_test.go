package main

import (
	"math"
	"sync"
	"testing"
)

// threaded is the program as it was before, with threads that share the graph and the vectors.
func threaded(g graph, n int, limit float64, threads int) (ranks []float64, rounds int) {
	ranks, given, next := make([]float64, n), make([]float64, n), make([]float64, n)
	for v := range ranks {
		ranks[v] = 1 / float64(n)
		given[v] = ranks[v] / float64(g.links[v])
	}
	moves := make([]float64, threads)
	for moved := math.Inf(1); moved > limit; rounds++ {
		var team sync.WaitGroup
		for i := range threads {
			team.Go(func() {
				moved := 0.0
				for v := n * i / threads; v < n*(i+1)/threads; v++ {
					sum := 0.0
					for _, u := range g.sources[g.offsets[v]:g.offsets[v+1]] {
						sum += given[u]
					}
					rank := (1-damping)/float64(n) + damping*sum
					moved += math.Abs(rank - ranks[v])
					ranks[v], next[v] = rank, rank/float64(g.links[v])
				}
				moves[i] = moved
			})
		}
		team.Wait()
		moved = 0
		for _, m := range moves {
			moved += m
		}
		given, next = next, given
	}
	return ranks, rounds
}

// TestThreads: threads find what the definition says: a rank is what those of the links to it give.
func TestThreads(t *testing.T) {
	const n = 500
	g := random(n)
	for _, threads := range []int{1, 3} {
		ranks, _ := threaded(g, n, 1e-12, threads)
		for v := range ranks {
			want := (1 - damping) / n
			for _, u := range g.sources[g.offsets[v]:g.offsets[v+1]] {
				want += damping * ranks[u] / float64(g.links[u])
			}
			if math.Abs(ranks[v]-want) > 1e-11 {
				t.Fatalf("%d threads: vertex %d has rank %g, and is given %g", threads, v, ranks[v], want)
			}
		}
	}
}
