package collections_test

import (
	"context"
	"errors"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/internal/kittest"
)

// TestBesideReplicated: a map and a queue that are not replicated commit nothing in a program that
// has other memory which is. So they do what they have to, also when a context ends meanwhile.
func TestBesideReplicated(t *testing.T) {
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		other := kittest.Must[[]int](t)(dsm.Alloc[int](ctx, c, "other", c.Size()*c.PageBytes(), dsm.Replicated(1)))
		commits := func(name string, opts ...dsm.AllocOption) uint64 {
			q := kittest.Must[*collections.Queue[int]](t)(collections.NewQueue[int](ctx, c, name+" queue", 10, opts...))
			m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, name+" map", 100, opts...))
			if err := q.Put(ctx, 1); err != nil { // which takes a lock
				t.Fatal(err)
			}
			kittest.Barrier(t, ctx, c)
			other[c.Rank()*c.PageBytes()]++
			before := kittest.Must[dsm.Stats](t)(c.Stats(ctx))
			x := m.Combine(dsm.Sum[int])
			_, take := q.Take(ctx)
			if err := errors.Join(q.Put(ctx, 2), take, m.Store(ctx, c.Rank(), 1), x.Add(ctx, c.Rank(), 1), x.Flush(ctx)); err != nil {
				t.Error(err)
			}
			n := kittest.Must[dsm.Stats](t)(c.Stats(ctx)).Sync.Commits - before.Sync.Commits
			kittest.Barrier(t, ctx, c)
			return n
		}
		if n := commits("plain"); n != 0 {
			t.Errorf("a map and a queue that are not replicated commit %d times", n)
		}
		if n := commits("kept", dsm.Replicated(1)); n != 4 {
			t.Errorf("of a map and a queue that are replicated, four changes commit %d times", n)
		}
		m := kittest.Must[*collections.Map[int, int]](t)(collections.NewMap[int, int](ctx, c, "ending", 100))
		soon, end := context.WithCancel(ctx)
		if _, err := m.Update(soon, c.Rank(), func(int, bool) int { end(); return 1 }); err != nil {
			t.Errorf("the context ended when the key was changed: %v", err)
		}
		kittest.Barrier(t, ctx, c)
	}, "--survive")
}
