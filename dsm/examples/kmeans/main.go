// Command kmeans divides points in the plane into groups that lie together (Lloyd's algorithm). Run
// it with `dsmd run -n 4 -- ./kmeans`.
//
// The points are shared, and stay where they are: each rank fills a part, and looks at the same
// part in each round. What travels in a round is what each rank has added up for each group, a few
// hundred bytes, from which all compute the same new centres.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"sync"

	"dsmd/dsm"
	"dsmd/dsm/collective"
	"dsmd/dsm/parallel"
)

const (
	blocks = 250
	block  = 4096 // points, whose groups are a page
	groups = 8
)

type point struct{ X, Y float64 }
type sum struct{ X, Y, N float64 } // of N points

func (s *sum) add(t sum) { s.X, s.Y, s.N = s.X+t.X, s.Y+t.Y, s.N+t.N }

func main() {
	ctx := context.Background()
	c, err := dsm.Join(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	centres, _, rounds, err := kmeans(ctx, c, blocks)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rank %d: after %d rounds the centres are %.2f\n", c.Rank(), rounds, centres)
}

// kmeans returns the centres of the groups, the group of each point, from 1, and after how many
// rounds no point goes to another.
func kmeans(ctx context.Context, c *dsm.Cluster, blocks int) (centres []point, group []int8, rounds int, err error) {
	all, err1 := dsm.Alloc[point](ctx, c, "points", blocks*block)
	group, err2 := dsm.Alloc[int8](ctx, c, "groups", blocks*block)
	team, err := parallel.New(ctx, c, "team")
	if err := errors.Join(err1, err2, err); err != nil {
		return nil, nil, 0, err
	}
	err = team.For(ctx, blocks, func(b int) error {
		fill(all[b*block:][:block], b)
		return nil
	})
	centres = make([]point, groups)
	fill(centres, 0) // to begin with
	for moved := 1; moved > 0 && err == nil; rounds++ {
		own, mu := [groups]sum{}, sync.Mutex{} // what this rank adds up
		if moved, err = parallel.Reduce(ctx, team, blocks, func(b int) (int, error) {
			sums, moved := assign(all[b*block:][:block], group[b*block:][:block], centres)
			mu.Lock()
			defer mu.Unlock()
			for g := range own {
				own[g].add(sums[g])
			}
			return moved, nil
		}, dsm.Sum); err == nil {
			var ranks [][]sum
			ranks, err = collective.AllGather(ctx, c, "sums", own[:])
			move(centres, ranks)
		}
	}
	return centres, group, rounds, err
}

// assign adds up the points of each centre, the nearest one, and counts those that go to another.
func assign(part []point, group []int8, centres []point) (sums [groups]sum, moved int) {
	for i, p := range part {
		nearest, least := 0, math.Inf(1)
		for g, q := range centres {
			if d := (p.X-q.X)*(p.X-q.X) + (p.Y-q.Y)*(p.Y-q.Y); d < least {
				nearest, least = g, d
			}
		}
		sums[nearest].add(sum{p.X, p.Y, 1})
		if g := int8(nearest + 1); g != group[i] {
			group[i], moved = g, moved+1
		}
	}
	return sums, moved
}

// move moves centres to the middle of their points, of which each rank has added up some.
func move(centres []point, ranks [][]sum) {
	for g := range centres {
		var all sum
		for _, sums := range ranks {
			all.add(sums[g])
		}
		if all.N > 0 {
			centres[g] = point{all.X / all.N, all.Y / all.N}
		}
	}
}

// fill makes the points of a block, around the corners of an octagon.
func fill(part []point, b int) {
	chance := rand.New(rand.NewPCG(1, uint64(b)))
	for i := range part {
		y, x := math.Sincos(2 * math.Pi * float64(chance.IntN(groups)) / groups)
		part[i] = point{x + chance.NormFloat64()/4, y + chance.NormFloat64()/4}
	}
}
