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
	return m.session(ctx, func(s *session[K, V]) error { return s.change(ctx, &k, decide) })
}

// session is what a goroutine changes before it lets others go on: the keys of a page, and of those
// that are split from it. Their locks are held together, but the page was locked when the others
// could not be known to anybody. So nobody waits for a lock while it has another.
type session[K, V comparable] struct {
	m     *Map[K, V]
	pages []locked
}

// locked is a page of a session, and the depth that it had at least when it was new.
type locked struct{ n, born int }

func (m *Map[K, V]) session(ctx context.Context, f func(*session[K, V]) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var err error
	lost := dsm.Guard(func() {
		s := &session[K, V]{m: m}
		defer s.release()
		err = f(s)
	})
	if err := errors.Join(lost, err); err != nil {
		return err
	}
	return m.c.Commit(ctx)
}

// release lets others go on: first with pages that are new, which nobody knows if they came to
// nothing.
func (s *session[K, V]) release() {
	for _, l := range slices.Backward(s.pages) {
		// The lock of a page that another node has taken and lost is lost with it.
		_ = dsm.Guard(func() {
			p := s.m.page(l.n)
			if p[versionWord].Load()%2 == 1 {
				p.end()
			}
			p[lockWord].Store(0)
		})
	}
	s.pages = s.pages[:0]
}

// lock returns the page of a hash, which is locked then.
func (s *session[K, V]) lock(ctx context.Context, hash uint64) (locked, error) {
	m := s.m
	for _, l := range s.pages {
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
		l := locked{n, born}
		s.pages = append(s.pages, l)
		if m.covers(n, born, hash) {
			return l, nil
		}
		s.release()
	}
}

// change has decide say what becomes of a key.
func (s *session[K, V]) change(ctx context.Context, k *K, decide func(old V, there bool) (V, action)) error {
	m := s.m
	var keyBuffer, valueBuffer [8]uint64
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
		value := pack(valueBuffer[:0], bytesOf(&v))
		if words, most := 1+len(value)+len(key.words), (m.pageWords-firstRecord(m.pageWords))/least; words > most {
			return fmt.Errorf("collections: Map %q: %w: a key of %d bytes with its value; at most %d are allowed",
				m.name, dsm.ErrNoSpace, key.bytes, (most-1-len(value))*wordBytes)
		}
		return s.put(ctx, l, &key, value)
	case what == remove && at != 0:
		p.begin()
		p.remove(link, at)
	}
	return nil
}

// put stores a key into its page, which it splits until there is room.
func (s *session[K, V]) put(ctx context.Context, l locked, k *key, value []uint64) error {
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
			q[i].Store(0)
		}
	}
	q[lockWord].Store(m.id)
	q.begin()
	q[depthWord].Store(uint64(depth))
	s.pages = append(s.pages, other)
	p.records(func(_ link, at int) bool {
		var buffer [64]byte
		b := p.keyAt(at, buffer[:0])
		if h := hashOf(b); m.place(h, depth) == other.n {
			v := m.valueAt(p, at)
			q.put(&key{h, len(b), pack(nil, b)}, pack(nil, bytesOf(&v)))
		}
		return true
	})
	if err := m.c.Commit(ctx); err != nil {
		return err
	}
	p[depthWord].Store(uint64(depth))
	m.mend(l.n)(p)
	return nil
}
