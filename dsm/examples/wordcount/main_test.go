package main

import (
	"context"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

// TestWordcount: the counts are those that threads of one process find.
func TestWordcount(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		some := text(kittest.Size(30000, words))
		var counts *collections.Map[string, int]
		kittest.Took(t, ctx, c, "with the map", func() (err error) {
			counts, err = count(ctx, c, some)
			return err
		})
		var want map[string]int
		kittest.ThreadsTook(t, ctx, c, func(threads int) { want = threaded(some, threads) })
		got := map[string]int{}
		for e, err := range counts.All(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			got[e.Key] = e.Value
		}
		if !maps.Equal(got, want) {
			t.Errorf("%d words are counted, want %d; or counts differ", len(got), len(want))
		}
		found, err := top(ctx, c, counts, 10)
		if err != nil {
			t.Fatal(err)
		}
		if c.Rank() != 0 {
			return
		}
		var all []collections.Entry[string, int]
		for k, v := range want {
			all = append(all, collections.Entry[string, int]{Key: k, Value: v})
		}
		if !slices.Equal(found, most(all, 10)) {
			t.Errorf("the most frequent words are %v", found)
		}
	})
}

// counted is a word with its number, in shared memory.
type counted struct {
	text [longest - 8]byte
	n    int
}

func (w counted) compare(v counted) int { return slices.Compare(w.text[:], v.text[:]) }

// byHand is what an expert writes, combined first: each rank puts its counts in the order of the
// ranks that are to add them up, which fetch what is for them at once. The result is in shared
// memory.
func byHand(ctx context.Context, c *dsm.Cluster, text []string) error {
	own := threaded(text[len(text)*c.Rank()/c.Size():len(text)*(c.Rank()+1)/c.Size()], 1)
	sorted := make([][]counted, c.Size())
	for word, n := range own {
		h := fnv.New32()
		h.Write([]byte(word))
		to := int(h.Sum32()>>8) % c.Size()
		w := counted{n: n}
		copy(w.text[:], word)
		sorted[to] = append(sorted[to], w)
	}
	var lengths [4]int
	for to := range sorted {
		lengths[to] = len(sorted[to])
	}
	ends, err := dsm.AllGather(ctx, c, "by hand", lengths)
	if err != nil {
		return err
	}
	const room = vocabulary
	shared, err := dsm.Alloc[counted](ctx, c, "by hand", c.Size()*room)
	if err != nil {
		return err
	}
	copy(shared[c.Rank()*room:], slices.Concat(sorted...))
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	var all []counted
	for rank := range c.Size() {
		lo := rank * room
		for to := range c.Rank() {
			lo += ends[rank][to]
		}
		part := shared[lo:][:ends[rank][c.Rank()]]
		if err := dsm.Prefetch(ctx, c, part, dsm.Read); err != nil {
			return err
		}
		all = append(all, part...)
	}
	slices.SortFunc(all, counted.compare)
	result, err := dsm.Alloc[counted](ctx, c, "result", c.Size()*room)
	if err != nil {
		return err
	}
	mine := result[c.Rank()*room:][:0]
	for _, w := range all {
		if last := len(mine) - 1; last >= 0 && mine[last].text == w.text {
			mine[last].n += w.n
		} else {
			mine = append(mine, w)
		}
	}
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	return errors.Join(dsm.Free(ctx, c, shared), dsm.Free(ctx, c, result))
}

// cost is the faults of all nodes that had to do with others, what they have sent, and how long it
// took all ranks together, in ns.
type cost struct{ Faults, Messages, Bytes, Time uint64 }

// cost returns what f costs, all ranks together.
func costOf(t *testing.T, ctx context.Context, c *dsm.Cluster, f func() error) (total cost) {
	t.Helper()
	var s [2]dsm.Stats
	began := time.Now()
	for i := range s {
		var err error
		if i > 0 {
			err = f()
		}
		if err == nil {
			s[i], err = c.Stats(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	own := cost{s[1].Faults.Remote() - s[0].Faults.Remote(), s[1].Traffic.MessagesSent - s[0].Traffic.MessagesSent, s[1].Traffic.BytesSent - s[0].Traffic.BytesSent, uint64(time.Since(began))}
	total, err := dsm.Reduce(ctx, c, "cost", own, func(a, b cost) cost {
		return cost{a.Faults + b.Faults, a.Messages + b.Messages, a.Bytes + b.Bytes, a.Time + b.Time}
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

// TestCost: with the map no more than half as much again is sent as by hand, and it takes at most
// some times as long. The machine is shared with others, so that ranks may meet where they would
// not: one of some times has to show it.
func TestCost(t *testing.T) {
	dsmtest.RunEach(t, []int{4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		all := text(words)
		for range 5 {
			byMap := costOf(t, ctx, c, func() error {
				counts, err := count(ctx, c, all)
				if err != nil {
					return err
				}
				return counts.Free(ctx)
			})
			hand := costOf(t, ctx, c, func() error { return byHand(ctx, c, all) })
			t.Logf("with the map %+v, by hand %+v", byMap, hand)
			if 2*byMap.Messages <= 3*hand.Messages && 2*byMap.Bytes <= 3*hand.Bytes && byMap.Faults <= 2*hand.Faults && byMap.Time <= 4*hand.Time {
				return
			}
		}
		t.Error("the map costs more")
	})
}
