package collections_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/internal/kittest"
)

// TestSet: of all ranks that add a key one is told that it was new, and all see it.
func TestSet(t *testing.T) {
	const keys = 500
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		s := kittest.Must[*collections.Set[string]](t)(collections.NewSet[string](ctx, c, "set", keys))
		key := func(i int) string { return fmt.Sprint("key ", i) }
		added := 0
		for i := range keys {
			if kittest.Must[bool](t)(s.Add(ctx, key(i))) {
				added++
			}
		}
		if n := kittest.Must[int](t)(dsm.Reduce(ctx, c, "added", added, dsm.Sum)); n != keys {
			t.Errorf("%d keys of %d were new", n, keys)
		}
		var all, part []string
		for k, err := range s.All(ctx) {
			all = append(all, k)
			if err != nil {
				t.Fatal(err)
			}
		}
		for k, err := range s.Part(ctx, c.Rank(), c.Size()) {
			part = append(part, k)
			if err != nil || !kittest.Must[bool](t)(s.Contains(ctx, k)) {
				t.Fatal(k, err)
			}
		}
		slices.Sort(all)
		if n := kittest.Must[int](t)(dsm.Reduce(ctx, c, "parts", len(part), dsm.Sum)); n != keys || len(slices.Compact(all)) != keys {
			t.Errorf("%d keys, in parts %d, want %d", len(all), n, keys)
		}
		kittest.Barrier(t, ctx, c)
		for _, k := range part {
			if !kittest.Must[bool](t)(s.Delete(ctx, k)) {
				t.Errorf("%q was not there to be deleted", k)
			}
		}
		kittest.Barrier(t, ctx, c)
		if kittest.Must[bool](t)(s.Contains(ctx, key(0))) {
			t.Error("a key that was deleted is there")
		}
		kittest.Barrier(t, ctx, c)
		if err := s.AddAll(ctx, slices.Values(part)); err != nil {
			t.Error(err)
		}
		kittest.Barrier(t, ctx, c)
		for i := range keys {
			if !kittest.Must[bool](t)(s.Contains(ctx, key(i))) {
				t.Fatalf("%q is not there", key(i))
			}
		}
		kittest.Barrier(t, ctx, c)
		if err := s.Free(ctx); err != nil {
			t.Error(err)
		}
	})
}
