package collections_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/kittest"
)

// die ends this program, and not its node.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// lastBarrier is a barrier after which a node is lost. Some may learn of that in the barrier.
func lastBarrier(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	t.Helper()
	if err := c.Barrier(ctx); err != nil && !errors.Is(err, dsm.ErrNodeLost) {
		t.Fatal(err)
	}
}

// bereaved waits until so many other ranks are lost.
func bereaved(t *testing.T, ctx context.Context, c *dsm.Cluster, lost int) {
	t.Helper()
	for kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx)).Size() > c.Size()-lost {
		time.Sleep(time.Millisecond)
	}
}

// meetLeft is a barrier of those that are left. Who comes while another's node does not know of the
// loss yet comes again.
func meetLeft(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	t.Helper()
	for {
		err := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx)).Barrier(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, dsm.ErrNodeLost) {
			t.Fatal(err)
		}
	}
}

// TestMapGrowsAfterLoss: a node is lost while a map that survives that is empty. All keys find room
// that come then, also those for which pages are divided into ones that nobody had touched.
func TestMapGrowsAfterLoss(t *testing.T) {
	const keys = 2500
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "map", keys, dsm.Replicated(1)))
		lastBarrier(t, ctx, c)
		if c.Rank() == 0 {
			dsmtest.LoseNode(t, c)
		}
		bereaved(t, ctx, c, 1)
		for key := c.Rank() - 1; key < keys; key += c.Size() - 1 {
			if err := m.Store(ctx, key, key); err != nil {
				t.Fatalf("key %d: %v", key, err)
			}
		}
		meetLeft(t, ctx, c)
		for key := range keys {
			if v, there, err := m.Load(ctx, key); v != key || !there || err != nil {
				t.Fatalf("key %d is %d, %t, %v", key, v, there, err)
			}
		}
		meetLeft(t, ctx, c)
	}, "--survive")
}

// TestMapDeath: a program that dies while it changes a key has changed it or not, what it had
// changed before stays, and others go on.
func TestMapDeath(t *testing.T) {
	const threads, keys = 2, 300
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		type id struct{ Rank, Thread, I int }
		m := kittest.Must[*collections.Map[id, wide]](t)(collections.NewMap[id, wide](ctx, c, "map", threads*keys*c.Size()))
		// How many keys each thread has stored, and then for how often it has updated all.
		stored := kittest.Must[*collections.Padded[[threads]atomic.Int64]](t)(collections.NewPadded[[threads]atomic.Int64](ctx, c, "stored", c.Size()))
		kittest.Barrier(t, ctx, c)
		if c.Rank() > 0 {
			for thread := range threads {
				go func() {
					for i := 0; ; i++ {
						round, k := int64(i/keys+1), id{c.Rank(), thread, i % keys}
						if _, err := m.Update(ctx, k, func(old wide, _ bool) wide {
							if i == keys*c.Rank()+17 && thread == 1 { // holding the lock
								die()
							}
							return wideOf(round)
						}); err != nil {
							t.Error(err)
						}
						stored.At(c.Rank())[thread].Add(1)
						if i%7 == 0 { // what is small is changed where it is
							if _, err := m.Delete(ctx, id{c.Rank(), thread, -i - 1}); err != nil {
								t.Error(err)
							}
						}
					}
				}()
			}
			select {}
		}
		// Meanwhile this rank wants the same pages.
		for lost := 0; lost < c.Size()-1; lost = c.Size() - kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx)).Size() {
			for e, err := range m.All(ctx) {
				if err != nil || !e.Value.whole() {
					t.Fatalf("%v, %v", e, err)
				}
			}
		}
		for rank := 1; rank < c.Size(); rank++ {
			for thread := range threads {
				n := int(stored.At(rank)[thread].Load())
				for i := range keys {
					v, there, err := m.Load(ctx, id{rank, thread, i})
					least := int64(n / keys) // rounds
					if i < n%keys {
						least++
					}
					atMost := least
					if i == n%keys {
						atMost++
					}
					if err != nil || !v.whole() || v[0] < least || v[0] > atMost || there != (v[0] > 0) {
						t.Fatalf("rank %d, which died, had stored %d times, and key %d is %v, %t, %v", rank, n, i, v, there, err)
					}
				}
			}
		}
		var team sync.WaitGroup
		for thread := range threads { // pages that they had locked, too
			team.Go(func() {
				for rank := 1; rank < c.Size(); rank++ {
					for i := range keys {
						if _, err := m.Update(ctx, id{rank, thread, i}, func(wide, bool) wide { return wideOf(-1) }); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		team.Wait()
		n := 0
		for e, err := range m.All(ctx) {
			if n++; err != nil || e.Value != wideOf(-1) {
				t.Fatalf("%v, %v", e, err)
			}
		}
		if want := (c.Size() - 1) * threads * keys; n != want {
			t.Errorf("%d keys, want %d", n, want)
		}
	}, "--survive")
}

// TestMapLoss: with a node pages are lost, whose keys are errors. Those on others are there, and in
// replicated memory all are, also those on a page that was just being changed.
func TestMapLoss(t *testing.T) {
	const keys = 900
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		plain := kittest.Must[*collections.Map[int, wide]](t)(collections.NewMap[int, wide](ctx, c, "plain", keys))
		kept := kittest.Must[*collections.Map[int, wide]](t)(collections.NewMap[int, wide](ctx, c, "kept", keys, dsm.Replicated(1)))
		for i := c.Rank(); i < keys; i += c.Size() {
			if err := errors.Join(plain.Store(ctx, i, wideOf(1)), kept.Store(ctx, i, wideOf(1))); err != nil {
				t.Fatal(err)
			}
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 0 { // what it loads it keeps
			for i := range keys {
				if _, there, err := plain.Load(ctx, i); !there || err != nil {
					t.Fatal(err)
				}
			}
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			for i := range keys / 100 {
				if err := errors.Join(plain.Store(ctx, i, wideOf(2)), kept.Store(ctx, i, wideOf(2))); err != nil {
					t.Fatal(err)
				}
			}
		}
		lastBarrier(t, ctx, c)
		if c.Rank() == 2 {
			_, err := plain.Update(ctx, 0, func(wide, bool) wide {
				_, err := kept.Update(ctx, 0, func(wide, bool) wide {
					dsmtest.LoseNode(t, c)
					return wide{}
				})
				t.Error(err)
				return wide{}
			})
			t.Error(err)
		}
		bereaved(t, ctx, c, 1)
		lost := 0
		for i := range keys {
			want := wideOf(1)
			if i < keys/100 {
				want = wideOf(2)
			}
			v, there, err := plain.Load(ctx, i)
			if errors.Is(err, dsm.ErrPageLost) {
				lost++
			} else if err != nil || !there || v != want {
				t.Fatalf("key %d is %v, %t, %v, or it should be lost", i, v, there, err)
			}
			if v, there, err := kept.Load(ctx, i); err != nil || !there || v != want {
				t.Fatalf("key %d, which is kept, is %v, %t, %v", i, v, there, err)
			}
		}
		if lost == 0 || lost == keys {
			t.Errorf("%d keys of %d are lost", lost, keys)
		}
		if _, err := plain.Update(ctx, 0, func(old wide, _ bool) wide { return old }); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("updating what is lost: %v", err)
		}
		all := 0
		for e, err := range kept.All(ctx) {
			if all++; err != nil || !e.Value.whole() {
				t.Fatalf("%v, %v", e, err)
			}
		}
		if all != keys {
			t.Errorf("%d keys are kept, want %d", all, keys)
		}
		var failed error
		for _, err := range plain.All(ctx) {
			failed = errors.Join(failed, err)
		}
		if !errors.Is(failed, dsm.ErrPageLost) {
			t.Errorf("going over a map of which pages are lost: %v", failed)
		}
		meetLeft(t, ctx, c)
		x := plain.Combine(func(_, v wide) wide { return v })
		for i := range keys {
			if err := x.Add(ctx, i, wideOf(3)); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.Flush(ctx); !errors.Is(err, dsm.ErrPageLost) {
			t.Errorf("combining what is lost: %v", err)
		}
		meetLeft(t, ctx, c)
		for i := range keys {
			if v, there, err := plain.Load(ctx, i); !errors.Is(err, dsm.ErrPageLost) && (err != nil || !there || v != wideOf(3)) {
				t.Fatalf("key %d is %v, %t, %v, or it should be lost", i, v, there, err)
			}
		}
	}, "--survive")
}

// TestMapLossOfEmpty: a replicated map loses nothing with a node, also no page without a key.
func TestMapLossOfEmpty(t *testing.T) {
	const keys = 3000
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		m := kittest.Must[*collections.Map[int, wide]](t)(collections.NewMap[int, wide](ctx, c, "map", keys, dsm.Replicated(1)))
		lastBarrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		bereaved(t, ctx, c, 1)
		for i := range keys {
			if _, there, err := m.Load(ctx, i); there || err != nil {
				t.Fatalf("of an empty map of which a node is lost key %d is there: %t, %v", i, there, err)
			}
		}
		meetLeft(t, ctx, c) // before one of them stores
		for i := range keys / 10 {
			if err := m.Store(ctx, i, wideOf(1)); err != nil {
				t.Fatal(err)
			}
		}
		meetLeft(t, ctx, c)
	}, "--survive")
}

// TestMapMadeAfterLoss: the locks of numbers that nobody has drawn may have had their home at a
// lost node. They can be used at once: where all homes were lost at some time there are no others.
func TestMapMadeAfterLoss(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		lastBarrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		bereaved(t, ctx, c, 1)
		for i := range 20 {
			m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, fmt.Sprintf("of rank %d, %d", c.Rank(), i), 10))
			if m.ID() != 1 {
				t.Errorf("the first handle of a map has number %d", m.ID())
			}
		}
	}, "--survive")
}
