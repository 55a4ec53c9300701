package collections

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	wide "math/bits"
	"slices"
	"sync"

	"dsmd/dsm"
	"dsmd/dsm/collective"
)

// Combiner changes a map by what is combined in this program first. So a page of the map comes once
// for all that this program has to say about its keys, instead of once for each. It may be used by
// any number of goroutines, which do best to use one together.
type Combiner[K, V comparable] struct {
	m       *Map[K, V]
	merge   func(a, b V) V
	stripes [stripes]stripe[K, V]
}

const (
	// stripeBits are first bits of hashes. So a stripe has keys of pages that follow each other.
	stripeBits = 6
	stripes    = 1 << stripeBits
	// stripeMost is how many keys of a stripe are combined before they go to the map.
	stripeMost = 1 << 12
)

// stripe is what is combined of some keys.
type stripe[K, V comparable] struct {
	mu   sync.Mutex
	keys map[K]V    // guarded by mu
	out  sync.Mutex // held while keys go to the map; taken before mu
}

// Combine returns a Combiner that merges values of the same key. merge must be associative and
// commutative, as dsm.Sum is, because nobody says in which order it merges what goroutines and
// ranks add. It must not use the map.
func (m *Map[K, V]) Combine(merge func(a, b V) V) *Combiner[K, V] {
	return &Combiner[K, V]{m: m, merge: merge}
}

// Add merges a value into that of a key, or stores it if there is none. The map has it after
// Flush, or earlier: Add brings some 4000 keys to the map when there are so many in a 64th of all
// hashes. It waits for others only then. When it returns an error what it was given is kept
// nevertheless, for the next Add or Flush.
func (x *Combiner[K, V]) Add(ctx context.Context, k K, v V) error {
	s := &x.stripes[hashOf(x.m.keys.bytesOf(&k))>>(64-stripeBits)]
	if x.add(s, k, v) <= stripeMost {
		return nil
	}
	return x.flush(ctx, s)
}

// add returns how many keys there are.
func (x *Combiner[K, V]) add(s *stripe[K, V], k K, v V) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys == nil {
		s.keys = map[K]V{}
	}
	if old, there := s.keys[k]; there {
		v = x.merge(old, v)
	}
	s.keys[k] = v
	return len(s.keys)
}

// Flush returns when the map has all that was added by calls of Add that have returned. Each key
// is changed at one moment, and keys at different ones. If it returns an error, or merge panics,
// what the map has not got is kept for the next Flush. If merge panics for a key that was added
// again meanwhile, only what was added last is kept. A key for which there is no room, or whose
// page is lost, keeps no others back, and of many such keys it returns the error of one. If the
// program dies, what is kept is lost.
func (x *Combiner[K, V]) Flush(ctx context.Context) error {
	// Ranks begin at different pages.
	first := stripes * x.m.c.Rank() / max(x.m.c.Size(), 1)
	var failed error
	for i := range stripes {
		err := x.flush(ctx, &x.stripes[(first+i)%stripes])
		if err != nil && !isOfKey(err) {
			return errors.Join(failed, err)
		}
		failed = cmp.Or(failed, err)
	}
	return failed
}

// isOfKey reports whether an error is about a key, and others may go to the map nevertheless.
func isOfKey(err error) bool {
	return errors.Is(err, dsm.ErrPageLost) || errors.Is(err, dsm.ErrNoSpace)
}

func (x *Combiner[K, V]) flush(ctx context.Context, s *stripe[K, V]) error {
	s.out.Lock()
	defer s.out.Unlock()
	todo := x.m.entriesOf(s.take())
	defer func() { x.keep(s, todo) }()
	return x.m.merge(ctx, &todo, x.merge)
}

// keep puts back what the map has not got. A key for which merge panics keeps what was added
// meanwhile, and the others are put back nevertheless.
func (x *Combiner[K, V]) keep(s *stripe[K, V], todo []entry[K, V]) {
	next := 0
	defer func() {
		if next < len(todo) {
			x.keep(s, todo[next+1:])
		}
	}()
	for ; next < len(todo); next++ {
		x.add(s, todo[next].k, todo[next].v)
	}
}

func (s *stripe[K, V]) take() map[K]V {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := s.keys
	s.keys = nil
	return keys
}

// FlushAll is Flush and a barrier, for all ranks together: when it returns, the map has what all of
// them have added. Each rank is sent what the others have for a part of the map, that of
// Map.Part for its index among them, and changes only this. So what travels is what was added, and
// pages of a new map stay where they are. Each of the ranks calls it, by one goroutine.
//
// When it returns an error on one rank, it does on all, but for a context that ends on one: the
// others wait for it until theirs do. The map may have some of what was added, and the rest is
// lost: where keys have no room, or their pages are lost, those only. A panic of merge is that
// rank's caller's, and the others get an error. Errors are those of Map and dsm.Reduce.
func (x *Combiner[K, V]) FlushAll(ctx context.Context, among dsm.Group) error {
	m := x.m
	v := make([][]uint64, among.Size())
	for i := range x.stripes {
		s := &x.stripes[i]
		s.out.Lock()
		for _, e := range m.entriesOf(s.take()) {
			to, _ := wide.Mul64(e.hash, uint64(len(v)))
			b := m.keys.bytesOf(&e.k)
			v[to] = pack(pack(append(v[to], uint64(len(b))), bytesOf(&e.v)), b)
		}
		s.out.Unlock()
	}
	all, err := collective.Exchange(ctx, among, m.name+"/flush", v)
	if err != nil {
		return fmt.Errorf("collections: Map %q: %w", m.name, err)
	}
	merged := false
	defer func() {
		if !merged { // merge panics, or ends its goroutine, and the others wait
			_ = m.conclude(ctx, among, errUnmerged)
		}
	}()
	err = x.mergeAll(ctx, all)
	merged = true
	return m.conclude(ctx, among, err)
}

// errUnmerged tells the other ranks of an end that is no error here.
var errUnmerged = errors.New("merge has not returned")

// mergeAll merges what the ranks have sent to this one.
func (x *Combiner[K, V]) mergeAll(ctx context.Context, all [][]uint64) error {
	m := x.m
	var sums stripe[K, V]
	for _, words := range all {
		for len(words) > 0 {
			var val V
			p, n := words[1:], int(words[0])
			unpack(p, bytesOf(&val))
			b := make([]byte, n)
			unpack(p[m.valueWords:], b)
			x.add(&sums, m.keys.value(b), val)
			words = p[m.valueWords+wordsFor(n):]
		}
	}
	todo := m.entriesOf(sums.keys)
	return m.merge(ctx, &todo, x.merge)
}

// conclude waits for all ranks, and returns an error to all of them if any has one.
func (m *Map[K, V]) conclude(ctx context.Context, among dsm.Group, err error) error {
	failed, meeting := dsm.Reduce(ctx, among, m.name+"/flush", err != nil, func(a, b bool) bool { return a || b })
	if err == nil && meeting == nil && failed {
		err = errors.New("another rank has failed")
	}
	if err := errors.Join(err, meeting); err != nil {
		return fmt.Errorf("collections: Map %q: %w", m.name, err)
	}
	return nil
}

// entry is an entry with its hash.
type entry[K, V comparable] struct {
	hash uint64
	k    K
	v    V
}

func (m *Map[K, V]) entriesOf(keys map[K]V) []entry[K, V] {
	all := make([]entry[K, V], 0, len(keys))
	for k, v := range keys {
		all = append(all, entry[K, V]{hashOf(m.keys.bytesOf(&k)), k, v})
	}
	slices.SortFunc(all, func(a, b entry[K, V]) int { return cmp.Compare(a.hash, b.hash) })
	return all
}

// merge merges entries into the map, in the order of pages, in which they are. It leaves those in
// todo that it could not, if any, also if merge panics, and returns the first error. A page that is
// lost, or a key for which there is no room, is in nobody else's way.
func (m *Map[K, V]) merge(ctx context.Context, todo *[]entry[K, V], merge func(a, b V) V) (failed error) {
	all := *todo
	left, done := all[:0], 0
	defer func() { *todo = append(left, all[min(done, len(all)):]...) }()
	for ; done < len(all); done++ {
		s := session{table: &m.table}
		err := s.run(ctx, func() error {
			for ; done < len(all); done++ {
				e := &all[done]
				var v V
				if err := m.changeIn(ctx, &s, &e.k, &v, func(there bool) action {
					if there {
						v = merge(v, e.v)
					} else {
						v = e.v
					}
					return store
				}); err != nil {
					return err
				}
			}
			return nil
		})
		switch {
		case err == nil:
			return failed
		case done < len(all) && isOfKey(err):
			left = append(left, all[done])
			failed = cmp.Or(failed, err)
		default:
			return errors.Join(failed, err)
		}
	}
	if failed != nil { // by the last one, and nobody has committed those before it
		failed = errors.Join(failed, m.c.Commit(ctx))
	}
	return failed
}

// bulk is how many entries StoreAll brings to the map at once.
const bulk = 1 << 16

// StoreAll stores entries, page by page, which is cheaper than to store each. It is not one change:
// others see some of them before others. Of two with the same key the later counts.
func (m *Map[K, V]) StoreAll(ctx context.Context, entries iter.Seq2[K, V]) error {
	some := map[K]V{}
	out := func() error {
		todo := m.entriesOf(some)
		clear(some)
		return m.merge(ctx, &todo, func(_, v V) V { return v })
	}
	for k, v := range entries {
		if some[k] = v; len(some) >= bulk {
			if err := out(); err != nil {
				return err
			}
		}
	}
	return out()
}
