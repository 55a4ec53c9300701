package kernel

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"

	"dsmd/dsm/collections"
)

// Map is a map that all threads share. Load and Update are as collections.Map has them.
type Map[K, V comparable] interface {
	Load(ctx context.Context, k K) (v V, there bool, err error)
	Update(ctx context.Context, k K, f func(old V, there bool) V) (v V, err error)
}

// ShareMap makes a map of n entries, of which entry is the i-th. As Share it is collective, and
// what fails is the run's error. On a cluster each rank brings a part of the entries. On ordinary
// memory it is Go's map, in shards that have a lock each.
func ShareMap[K, V comparable](t *Team, name string, n int, entry func(i int) (K, V)) Map[K, V] {
	if t.cluster == nil {
		s := &shards[K, V]{seed: maphash.MakeSeed()}
		for i := range s.all {
			s.all[i].entries = map[K]V{}
		}
		for i := range n {
			k, v := entry(i)
			s.of(k).entries[k] = v
		}
		return s
	}
	m, err := collections.NewMap[K, V](t.ctx, t.cluster, name, n)
	t.allocated(name, err, func() error { return m.Free(context.Background()) })
	if err != nil {
		return m
	}
	own := m.Combine(func(v, _ V) V { return v })
	lo, hi := Block(n, t.cluster.Size(), t.cluster.Rank())
	for i := lo; i < hi && err == nil; i++ {
		k, v := entry(i)
		err = own.Add(t.ctx, k, v)
	}
	// All ranks come, whatever has failed on one.
	if err = errors.Join(err, own.FlushAll(t.ctx, t.cluster)); err != nil {
		t.allocated(name, err, nil)
	}
	return m
}

// shardCount is many more than threads that run at the same time.
const shardCount = 256

type shards[K, V comparable] struct {
	seed maphash.Seed
	all  [shardCount]shard[K, V]
}

type shard[K, V comparable] struct {
	mu      sync.RWMutex
	entries map[K]V  // guarded by mu
	_       [32]byte // so that each lock has a cache line of its own
}

func (s *shards[K, V]) of(k K) *shard[K, V] {
	return &s.all[maphash.Comparable(s.seed, k)%shardCount]
}

// Load returns the value of a key, and whether there is one.
func (s *shards[K, V]) Load(_ context.Context, k K) (v V, there bool, err error) {
	at := s.of(k)
	at.mu.RLock()
	defer at.mu.RUnlock()
	v, there = at.entries[k]
	return v, there, nil
}

// Update sets the value of a key to what f makes of it.
func (s *shards[K, V]) Update(_ context.Context, k K, f func(old V, there bool) V) (V, error) {
	at := s.of(k)
	at.mu.Lock()
	defer at.mu.Unlock()
	v, there := at.entries[k]
	v = f(v, there)
	at.entries[k] = v
	return v, nil
}
