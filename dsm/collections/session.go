package collections

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"dsmd/dsm"
)

// hashOf is the hash of a key, the same in all programs.
func hashOf(b []byte) uint64 { return xxhash.Sum64(b) }

// action is what becomes of a key.
type action int

const (
	leave action = iota
	store
	remove
)

// change has decide say what becomes of a key, once, while nobody else changes it.
func (m *Map[K, V]) change(ctx context.Context, k K, decide func(old V, there bool) (V, action)) error {
	s := session[K, V]{m: m}
	return s.run(ctx, func() error { return s.change(ctx, &k, decide) })
}

// session is what a goroutine changes before it lets others go on: the keys of a page, and of those
// that are split from it. Their locks are held together, but the page was locked when the others
// could not be known to anybody. So nobody waits for a lock while it has another.
type session[K, V comparable] struct {
	m     *Map[K, V]
	held  bool // first is locked, and so are others, which were split from it
	first locked
	other []locked
}

// locked is a page of a session, and the depth that it had at least when it was new.
type locked struct{ n, born int }

// run has f change what it locks, and lets others go on then.
func (s *session[K, V]) run(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	lost := dsm.Guard(func() {
		defer s.release()
		err = f()
	})
	if err := errors.Join(lost, err); err != nil {
		return err
	}
	return s.m.c.Commit(ctx)
}

// release lets others go on: first with pages that are new, which nobody knows if they came to
// nothing.
func (s *session[K, V]) release() {
	for _, l := range slices.Backward(s.other) {
		s.unlock(l)
	}
	s.other = s.other[:0]
	if s.held {
		s.unlock(s.first)
		s.held = false
	}
}

// unlock unlocks a page. The lock of one that another node has taken and lost is lost with it.
func (s *session[K, V]) unlock(l locked) {
	_ = dsm.Guard(func() {
		p := s.m.page(l.n)
		if p[versionWord].Load()%2 == 1 {
			p.end()
		}
		p[lockWord].Store(0)
	})
}

// lock returns the page of a hash, which is locked then.
func (s *session[K, V]) lock(ctx context.Context, hash uint64) (locked, error) {
	m := s.m
	if s.held && m.covers(s.first.n, s.first.born, hash) {
		return s.first, nil
	}
	for _, l := range s.other {
		if m.covers(l.n, l.born, hash) {
			return l, nil
		}
	}
	s.release()
	for look := 0; ; {
		n, born := m.seek(hash)
		p := m.page(n)
		if !p[lockWord].CompareAndSwap(0, m.id) {
			if err := m.await(ctx, p, look, m.mend(n)); err != nil {
				return locked{}, err
			}
			look++
			continue
		}
		s.first, s.held = locked{n, born}, true
		if m.covers(n, born, hash) {
			return s.first, nil
		}
		s.release()
	}
}

// change has decide say what becomes of a key.
func (s *session[K, V]) change(ctx context.Context, k *K, decide func(old V, there bool) (V, action)) error {
	m := s.m
	var keyBuffer [8]uint64
	key := m.keyOf(k, keyBuffer[:0])
	l, err := s.lock(ctx, key.hash)
	if err != nil {
		return err
	}
	p := m.page(l.n)
	link, at := p.find(&key)
	var old V
	if at != 0 {
		old = m.valueAt(p, at)
	}
	v, what := decide(old, at != 0)
	switch {
	case what == store:
		if words, most := 1+m.valueWords+len(key.words), (m.pageWords-firstRecord(m.pageWords))/least; words > most {
			return fmt.Errorf("collections: Map %q: %w: a key of %d bytes with its value; at most %d are allowed",
				m.name, dsm.ErrNoSpace, key.bytes, (most-1-m.valueWords)*wordBytes)
		}
		return s.put(ctx, l, &key, bytesOf(&v))
	case what == remove && at != 0:
		p.begin()
		p.remove(link, at)
	}
	return nil
}

// put stores a key into its page, which it splits until there is room.
func (s *session[K, V]) put(ctx context.Context, l locked, k *key, value []byte) error {
	for {
		p := s.m.page(l.n)
		p.begin()
		if p.put(k, value) {
			return nil
		}
		if err := s.split(ctx, l); err != nil {
			return err
		}
		var err error
		if l, err = s.lock(ctx, k.hash); err != nil {
			return err
		}
	}
}

// split moves half of the hashes of a page to a new one, which is locked then, too. That takes
// effect when the depth of the page says so; until then nobody goes to the new one, also if this
// program dies.
func (s *session[K, V]) split(ctx context.Context, l locked) error {
	m, p := s.m, s.m.page(l.n)
	depth := m.depth(l.n, l.born) + 1
	if depth > m.lastDepth {
		return fmt.Errorf("collections: Map %q: %w: it is full; make it for more entries than %d", m.name, dsm.ErrNoSpace, m.control.planned.Load())
	}
	other := locked{l.n | 1<<(m.lastDepth-depth), depth}
	q := m.page(other.n)
	for i := range q { // who died here may have left something
		if i != lockWord && i != versionWord && q[i].Load() != 0 {
			q.set(i, 0)
		}
	}
	q[lockWord].Store(m.id)
	q.begin()
	q.set(depthWord, uint64(depth))
	s.other = append(s.other, other)
	p.records(func(_ link, at int) bool {
		var buffer [64]byte
		b := p.keyAt(at, buffer[:0])
		if h := hashOf(b); m.place(h, depth) == other.n {
			v := m.valueAt(p, at)
			q.put(&key{h, len(b), pack(nil, b)}, bytesOf(&v))
		}
		return true
	})
	if err := m.c.Commit(ctx); err != nil {
		return err
	}
	p.set(depthWord, uint64(depth))
	m.mend(l.n)(p)
	return nil
}
