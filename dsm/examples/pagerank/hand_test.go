package main

import (
	"context"
	"math"
	"sort"
	"sync/atomic"

	"dsmd/dsm"
)

// vectors are what the rounds change.
type vectors struct{ ranks, given, next []float64 }

func newVectors(ctx context.Context, c *dsm.Cluster, name string, n int) (v vectors, err error) {
	all, err := dsm.Alloc[float64](ctx, c, name, 3*n)
	if err != nil {
		return v, err
	}
	return vectors{all[:n], all[n : 2*n], all[2*n:]}, nil
}

// start sets vertices from lo to hi to what they are before the first round.
func (x *vectors) start(g graph, lo, hi int) {
	for v := lo; v < hi; v++ {
		x.ranks[v] = 1 / float64(len(g.links))
		x.given[v] = x.ranks[v] / float64(g.links[v])
	}
}

// round is a round for vertices from lo to hi, and returns how much they have moved.
func (x *vectors) round(g graph, lo, hi int) (moved float64) {
	for v := lo; v < hi; v++ {
		sum := 0.0
		for _, u := range g.sources[g.offsets[v]:g.offsets[v+1]] {
			sum += x.given[u]
		}
		rank := (1-damping)/float64(len(g.links)) + damping*sum
		moved += math.Abs(rank - x.ranks[v])
		x.ranks[v], x.next[v] = rank, rank/float64(g.links[v])
	}
	return moved
}

// byHand is what an expert writes: each rank has vertices with as many links as those of any other,
// and fetches at once what all others have written, and what it is going to write.
func byHand(ctx context.Context, c *dsm.Cluster, g graph, limit float64) (rounds int, err error) {
	n := len(g.links)
	bound := func(rank int) int {
		return sort.Search(n, func(v int) bool { return int(g.offsets[v]) >= len(g.sources)*rank/c.Size() })
	}
	lo, hi := bound(c.Rank()), bound(c.Rank()+1)
	x, err := newVectors(ctx, c, "by hand", n)
	if err != nil {
		return 0, err
	}
	if err = dsm.Prefetch(ctx, c, g.sources[g.offsets[lo]:g.offsets[hi]], dsm.Read); err != nil {
		return 0, err
	}
	x.start(g, lo, hi)
	if err = c.Barrier(ctx); err != nil {
		return 0, err
	}
	for moved := math.Inf(1); moved > limit; rounds++ {
		if err = dsm.Prefetch(ctx, c, x.given, dsm.Read); err != nil {
			return 0, err
		}
		if err = dsm.Prefetch(ctx, c, x.next[lo:hi], dsm.Write); err != nil {
			return 0, err
		}
		if moved, err = dsm.Reduce(ctx, c, "moved", x.round(g, lo, hi), dsm.Sum); err != nil {
			return 0, err
		}
		x.given, x.next = x.next, x.given
	}
	return rounds, nil
}

// obvious is what one writes who comes from threads: vertices are dealt by a counter that all
// share, and pages come as they are touched.
func obvious(ctx context.Context, c *dsm.Cluster, g graph, limit float64) (rounds int, err error) {
	const some = 256
	n := len(g.links)
	x, err := newVectors(ctx, c, "obvious", n)
	if err != nil {
		return 0, err
	}
	dealt, err := dsm.Alloc[atomic.Int64](ctx, c, "dealt", 1)
	if err != nil {
		return 0, err
	}
	x.start(g, n*c.Rank()/c.Size(), n*(c.Rank()+1)/c.Size())
	if err = c.Barrier(ctx); err != nil {
		return 0, err
	}
	for moved := math.Inf(1); moved > limit; rounds++ {
		moved = 0
		for lo := int(dealt[0].Add(some)) - some; lo < n; lo = int(dealt[0].Add(some)) - some {
			moved += x.round(g, lo, min(lo+some, n))
		}
		if moved, err = dsm.Reduce(ctx, c, "moved", moved, dsm.Sum); err != nil {
			return 0, err
		}
		x.given, x.next = x.next, x.given
		if c.Rank() == 0 {
			dealt[0].Store(0)
		}
		if err = c.Barrier(ctx); err != nil {
			return 0, err
		}
	}
	return rounds, nil
}
