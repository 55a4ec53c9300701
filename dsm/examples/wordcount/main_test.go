package main

import (
	"context"
	"maps"
	"slices"
	"testing"

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

// TestCost: what the map costs beside what an expert writes by hand.
func TestCost(t *testing.T) {
	if testing.Short() {
		t.Skip("costs are those of builds that users have")
	}
	kittest.RunEach(t, []int{4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		all := text(words)
		onKit := func() error {
			counts, err := count(ctx, c, all)
			if err != nil {
				return err
			}
			return counts.Free(ctx)
		}
		kittest.Versions{Kit: onKit, Hand: func() error { return byHand(ctx, c, all) }, Faults: 2}.Compare(t, ctx, c)
		some := all[:kittest.Size(2000, words)]
		kittest.Took(t, ctx, c, "the obvious version", func() error { return obvious(ctx, c, some) })
	})
}
