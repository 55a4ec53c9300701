// Command pagerank ranks the vertices of a random graph by how often a surfer meets them who
// follows links at random (Page and Brin). Run it with `dsmd run -n 4 -- ./pagerank`.
//
// The graph and the vectors are shared. Every rank reads the whole vector of the round before, and
// writes a part of the next. package parallel divides the vertices, whose links differ in number.
package main

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"dsmd/dsm"
	"dsmd/dsm/parallel"
)

const (
	vertices = 1 << 18
	damping  = 0.85
)

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	g, err := share(ctx, c, vertices)
	if err != nil {
		log.Fatal(err)
	}
	ranks, rounds, err := pagerank(ctx, c, g, 1e-9)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d: after %d rounds vertex 0 has rank %.3g\n", c.Rank(), rounds, ranks[0])
}

// graph is the links to each vertex v: from sources[offsets[v]] and those that follow, up to
// offsets[v+1]. links is how many lead away from a vertex, at least one.
type graph struct {
	offsets, sources, links []int32
}

// pagerank returns the ranks, and after how many rounds they move by less than limit together.
func pagerank(ctx context.Context, c *dsm.Cluster, g graph, limit float64) (ranks []float64, rounds int, err error) {
	n := len(g.links)
	all, err := dsm.Alloc[float64](ctx, c, "vectors", 3*n)
	if err != nil {
		return nil, 0, err
	}
	ranks, given, next := all[:n], all[n:2*n], all[2*n:]
	team, err := parallel.New(ctx, c, "team")
	if err != nil {
		return nil, 0, err
	}
	err = team.For(ctx, n, func(v int) error {
		ranks[v] = 1 / float64(n)
		given[v] = ranks[v] / float64(g.links[v])
		return nil
	})
	sweep := team.Touching(
		parallel.Reads(func(lo, hi int) []int32 { return g.sources[g.offsets[lo]:g.offsets[hi]] }),
		parallel.Reads(func(int, int) []float64 { return given }),
		parallel.Writes(func(lo, hi int) []float64 { return ranks[lo:hi] }),
		parallel.Writes(func(lo, hi int) []float64 { return next[lo:hi] }))
	for moved := math.Inf(1); err == nil && moved > limit; rounds++ {
		moved, err = parallel.Reduce(ctx, sweep, n, func(v int) (float64, error) {
			sum := 0.0
			for _, u := range g.sources[g.offsets[v]:g.offsets[v+1]] {
				sum += given[u]
			}
			rank := (1-damping)/float64(n) + damping*sum
			moved := math.Abs(rank - ranks[v])
			ranks[v], next[v] = rank, rank/float64(g.links[v])
			return moved, nil
		}, dsm.Sum)
		given, next = next, given
	}
	return ranks, rounds, err
}

// share makes the graph in shared memory. Rank 0 does.
func share(ctx context.Context, c *dsm.Cluster, n int) (g graph, err error) {
	all, err := dsm.Alloc[int32](ctx, c, "graph", 19*n+1)
	if err != nil {
		return g, err
	}
	g = graph{offsets: all[:n+1], links: all[n+1 : 2*n+1], sources: all[2*n+1:]}
	if c.Rank() == 0 {
		made := random(n)
		copy(g.offsets, made.offsets)
		copy(g.links, made.links)
		copy(g.sources, made.sources)
	}
	return g, c.Barrier(ctx)
}

// random makes a graph: vertices with high numbers have many links to them, low ones from them.
func random(n int) (g graph) {
	g.offsets, g.links = make([]int32, n+1), make([]int32, n)
	chance := rand.New(rand.NewPCG(1, 2))
	for v := range n {
		for e := range 1 + 16*v/n {
			u := (v + n - 1) % n // so that a link leads away from each vertex
			if e > 0 {
				f := chance.Float64()
				u = int(f * f * float64(n))
			}
			g.sources = append(g.sources, int32(u))
			g.links[u]++
		}
		g.offsets[v+1] = int32(len(g.sources))
	}
	return g
}
