package collections_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/internal/kittest"
)

// TestErrorsAreInTheCallersWords: an error tells what was asked for, and by which call, not how
// that is laid out in memory.
func TestErrorsAreInTheCallersWords(t *testing.T) {
	type own struct{ A, B int32 }
	kittest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		first := func(make func(name string, opts ...dsm.AllocOption) error) func(string) error {
			return func(name string) error { return make(name) }
		}
		newMap := func(name string, opts ...dsm.AllocOption) error {
			return second(collections.NewMap[string, own](ctx, c, name, 100, opts...))
		}
		newSet := func(name string, opts ...dsm.AllocOption) error {
			return second(collections.NewSet[own](ctx, c, name, 100, opts...))
		}
		newQueue := func(name string, opts ...dsm.AllocOption) error {
			return second(collections.NewQueue[own](ctx, c, name, 1000, opts...))
		}
		for _, tt := range []struct {
			name, says string
			is         error
			first      func(name string) error // on rank 0, and then
			then       func(name string) error // on rank 1
		}{
			{"a map of others", `NewMap "a map of others": ranks disagree: this rank wants a Map of string to int for 100 entries`, dsm.ErrMismatch, first(newMap),
				func(name string) error { return second(collections.NewMap[string, int](ctx, c, name, 100)) }},
			{"a map for more", `NewMap "a map for more": ranks disagree: another rank has made it for 100 entries, this one for 101`, dsm.ErrMismatch, first(newMap),
				func(name string) error { return second(collections.NewMap[string, own](ctx, c, name, 101)) }},
			{"a replicated map", `NewMap "a replicated map": ranks disagree: this rank wants a Map of string to collections_test.own for 100 entries`, dsm.ErrMismatch, first(newMap),
				func(name string) error { return newMap(name, dsm.Replicated(1)) }},
			{"a set of others", `NewSet "a set of others": ranks disagree: this rank wants a Set of int for 100 entries`, dsm.ErrMismatch, first(newSet),
				func(name string) error { return second(collections.NewSet[int](ctx, c, name, 100)) }},
			{"a queue of others", `NewQueue "a queue of others": ranks disagree: this rank wants a queue of int for 1000 items`, dsm.ErrMismatch, first(newQueue),
				func(name string) error { return second(collections.NewQueue[int](ctx, c, name, 1000)) }},
			{"a longer queue", `NewQueue "a longer queue": ranks disagree: this rank wants a queue of collections_test.own for 2000 items`, dsm.ErrMismatch, first(newQueue),
				func(name string) error { return second(collections.NewQueue[own](ctx, c, name, 2000)) }},
			{"a map's name", `NewQueue "a map's name": ranks disagree: this rank wants a queue of collections_test.own for 1000 items`, dsm.ErrMismatch, first(newMap), first(newQueue)},
			{"more values", `NewPadded "more values": ranks disagree: this rank wants 11 values of collections_test.own`, dsm.ErrMismatch,
				func(name string) error { return second(collections.NewPadded[own](ctx, c, name, 10)) },
				func(name string) error { return second(collections.NewPadded[own](ctx, c, name, 11)) }},
			{"a sum", `NewAccumulator "a sum": ranks disagree: this rank wants an accumulator of float64`, dsm.ErrMismatch,
				func(name string) error { return second(collections.NewAccumulator[int64](ctx, c, name)) },
				func(name string) error { return second(collections.NewAccumulator[float64](ctx, c, name)) }},
			{"a number", `NewCounter "a number": ranks disagree: this rank wants a counter`, dsm.ErrMismatch,
				func(name string) error { return second(collections.NewAccumulator[int64](ctx, c, name)) },
				func(name string) error { return second(collections.NewCounter(ctx, c, name)) }},
			{"keys", `NewMap "keys": the type cannot be shared: *int: it is a pointer`, dsm.ErrType, first(newQueue),
				func(name string) error { return second(collections.NewMap[*int, int](ctx, c, name, 1)) }},
			{"values", `NewMap "values": the type cannot be shared: string: it is a string`, dsm.ErrType, first(newQueue),
				func(name string) error { return second(collections.NewMap[int, string](ctx, c, name, 1)) }},
			{"no entries", `NewMap "no entries": it does not fit: it is to be for 0 entries`, dsm.ErrNoSpace, first(newQueue),
				func(name string) error { return second(collections.NewMap[int, int](ctx, c, name, 0)) }},
			{"no items", `NewQueue "no items": it does not fit: it is to be for 0 items of 8 bytes`, dsm.ErrNoSpace, first(newMap),
				func(name string) error { return second(collections.NewQueue[int](ctx, c, name, 0)) }},
			{"large items", `NewQueue "large items": it does not fit: an item takes 65536 bytes, at most `, dsm.ErrNoSpace, first(newMap),
				func(name string) error { return second(collections.NewQueue[[1 << 16]byte](ctx, c, name, 1)) }},
			{"items", `NewQueue "items": the type cannot be shared: *int: it is a pointer`, dsm.ErrType, first(newMap),
				func(name string) error { return second(collections.NewQueue[*int](ctx, c, name, 1)) }},
		} {
			if c.Rank() == 0 {
				if err := tt.first(tt.name); err != nil {
					t.Error(err)
				}
			}
			kittest.Barrier(t, ctx, c)
			if c.Rank() == 1 {
				if err := tt.then(tt.name); !errors.Is(err, tt.is) || !strings.HasPrefix(err.Error(), "collections: "+tt.says) {
					t.Errorf("%s: %v\nwant %s", tt.name, err, tt.says)
				}
			}
			kittest.Barrier(t, ctx, c)
		}
		// A set that is full says that it is one.
		if s := kittest.Must[*collections.Set[int]](t)(collections.NewSet[int](ctx, c, "full", 1)); c.Rank() == 0 {
			var err error
			for k := 0; err == nil; k++ {
				_, err = s.Add(ctx, k)
			}
			if !errors.Is(err, dsm.ErrNoSpace) || !strings.HasPrefix(err.Error(), `collections: Set "full": `) {
				t.Errorf("a full set: %v", err)
			}
		}
		kittest.Barrier(t, ctx, c)
	})
}
