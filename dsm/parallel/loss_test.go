package parallel_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/parallel"
	"dsmd/internal/kittest"
)

// TestThiefLost: a node is lost that has looked last at what the others have left, and their slots
// with it. They are told that a node is lost, in that loop and later.
func TestThiefLost(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		team := kittest.Must[*parallel.Team](t)(parallel.New(ctx, c, "team", parallel.Threads(1)))
		busy := kittest.Must[*atomic.Int64](t)(dsm.Isolate[atomic.Int64](ctx, c, "busy"))
		err := team.For(ctx, 6, func(i int) error {
			switch {
			case c.Rank() < 2: // in its first item: the other one is taken
				busy.Add(1)
				for len(kittest.Must[[]int](t)(c.Lost(ctx))) == 0 {
					time.Sleep(time.Millisecond)
				}
			case i < 2: // rank 0 is farther away than rank 1, and is robbed later
				dsmtest.LoseNode(t, c)
			}
			for busy.Load() < 2 && c.Rank() == 2 {
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		none := func(*parallel.Task[int]) error { return nil }
		_, again := parallel.New(ctx, c, "team")
		for what, err := range map[string]error{"the loop": err, "a later loop": team.For(ctx, 6, func(int) error { return nil }),
			"tasks": parallel.Tasks(ctx, team, []int{1}, none), "New": again} {
			if failed := (*parallel.Error)(nil); !errors.Is(err, dsm.ErrNodeLost) || errors.As(err, &failed) {
				t.Errorf("%s returned %v, want ErrNodeLost", what, err)
			}
		}
	}, "--survive")
}

// TestSlotLost: a rank whose slot is lost when a team is made does not leave the others waiting.
func TestSlotLost(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		kittest.Must[any](t)(nil, parallel.Spoil(ctx, c, "team", 2))
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		if err := c.Barrier(ctx); !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatal("the node is not lost: ", err)
		}
		left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		if _, err := parallel.New(ctx, left, "team"); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("New returned %v, want ErrPageLost", err)
		}
		// Nobody ends before all have been told.
		if err := left.Barrier(ctx); err != nil {
			t.Error(err)
		}
	}, "--survive")
}

// TestOtherNodeLost: a node is lost that has no rank any more. Teams go on, and items may fail.
func TestOtherNodeLost(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		left, lose := kittest.NodeWithoutRank(t, ctx, c)
		var teams []*parallel.Team
		for name := range 16 { // some lie where that node is the home
			teams = append(teams, kittest.Must[*parallel.Team](t)(parallel.New(ctx, left, string(rune('a'+name)))))
		}
		lose()
		for i, team := range teams {
			err := team.For(ctx, 2, func(int) error { return errItem })
			if failed := (*parallel.Error)(nil); !errors.As(err, &failed) || failed.Text != errItem.Error() {
				t.Fatalf("the loop of team %d returned %v", i, err)
			}
		}
	}, "--survive")
}

// TestSuccessor: where a program has died in a loop, and another comes as its rank, they loop
// again, over the items of their own loop.
func TestSuccessor(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		first := newTeam(t, ctx, c)
		if c.Rank() == 0 {
			parallel.Die(first)
		}
		team := newTeam(t, ctx, c)
		// The one item is rank 2's, and rank 1 looks for others meanwhile.
		err := team.For(ctx, 1, func(i int) error {
			if i > 0 {
				t.Errorf("item %d of 1 was run", i)
				return errItem // ends the others
			}
			time.Sleep(200 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
