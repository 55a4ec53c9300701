package collections

import (
	"context"
	"fmt"
	"iter"
	"reflect"

	"dsmd/dsm"
)

// Set is keys that all ranks share: a Map without values, of which everything holds that is said
// there.
type Set[K comparable] struct{ m *Map[K, struct{}] }

// NewSet returns the set of that name, empty if it is new, for about n keys: see NewMap.
func NewSet[K comparable](ctx context.Context, c *dsm.Cluster, name string, n int, opts ...dsm.AllocOption) (*Set[K], error) {
	m := newMap[K, struct{}]("Set", fmt.Sprintf("a Set of %v for %d entries", reflect.TypeFor[K](), n))
	if err := m.open(ctx, c, name, n, opts); err != nil {
		return nil, err
	}
	return &Set[K]{m}, nil
}

// Add adds a key, and reports whether it was not there. Of all who add it at the same time, one is
// told so.
func (s *Set[K]) Add(ctx context.Context, k K) (added bool, err error) {
	_, there, err := s.m.LoadOrStore(ctx, k, struct{}{})
	return !there && err == nil, err
}

// AddAll adds keys, page by page, as Map.StoreAll does.
func (s *Set[K]) AddAll(ctx context.Context, keys iter.Seq[K]) error {
	return s.m.StoreAll(ctx, func(yield func(K, struct{}) bool) {
		for k := range keys {
			if !yield(k, struct{}{}) {
				return
			}
		}
	})
}

// Contains reports whether a key is there.
func (s *Set[K]) Contains(ctx context.Context, k K) (bool, error) {
	_, there, err := s.m.Load(ctx, k)
	return there, err
}

// Delete removes a key, and reports whether it was there.
func (s *Set[K]) Delete(ctx context.Context, k K) (was bool, err error) { return s.m.Delete(ctx, k) }

// All returns all keys, as Map.All does.
func (s *Set[K]) All(ctx context.Context) iter.Seq2[K, error] { return s.Part(ctx, 0, 1) }

// Part returns those of a part, as Map.Part does.
func (s *Set[K]) Part(ctx context.Context, part, parts int) iter.Seq2[K, error] {
	all := s.m.Part(ctx, part, parts)
	return func(yield func(K, error) bool) {
		for e, err := range all {
			if !yield(e.Key, err) {
				return
			}
		}
	}
}

// Free gives the memory back, as dsm.Free does, with its errors.
func (s *Set[K]) Free(ctx context.Context) error { return s.m.Free(ctx) }
