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

// session is what a goroutine changes before it lets others go on: the keys of a page, and of those
// that are split from it. Their locks are held together, but the page was locked when the others
// could not be known to anybody. So nobody waits for a lock while it has another.
type session struct {
	table *table
	held  bool // first is locked, and so are others, which were split from it
	first locked
	other []locked
}

// locked is a page of a session, and the depth that it had at least when it was new.
type locked struct{ n, born int }

// run has f change what it locks, and lets others go on then.
func (s *session) run(ctx context.Context, f func() error) error {
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
	return s.table.c.Commit(ctx)
}

// release lets others go on: first with pages that are new, which nobody knows if they came to
// nothing.
func (s *session) release() {
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
func (s *session) unlock(l locked) { _ = dsm.Guard(s.table.page(l.n).unlock) }

// lock returns the page of a hash, which is locked then.
func (s *session) lock(ctx context.Context, hash uint64) (locked, error) {
	t := s.table
	if s.held && t.covers(s.first.n, s.first.born, hash) {
		return s.first, nil
	}
	for _, l := range s.other {
		if t.covers(l.n, l.born, hash) {
			return l, nil
		}
	}
	s.release()
	for look := 0; ; {
		n, born := t.seek(hash)
		p := t.page(n)
		if !p[lockWord].CompareAndSwap(0, t.id) {
			if err := t.await(ctx, p, look, t.mend(n)); err != nil {
				return locked{}, err
			}
			look++
			continue
		}
		s.first, s.held = locked{n, born}, true
		if t.covers(n, born, hash) {
			return s.first, nil
		}
		s.release()
	}
}

// put stores a key into its page, which it splits until there is room. at is where the key is in
// the page.
func (s *session) put(ctx context.Context, l locked, at spot, k *key, value []byte) error {
	for {
		p := s.table.page(l.n)
		p.begin()
		if p.put(at, k, value) {
			return nil
		}
		if err := s.split(ctx, l); err != nil {
			return err
		}
		var err error
		if l, err = s.lock(ctx, k.hash); err != nil {
			return err
		}
		at = s.table.page(l.n).find(k)
	}
}

// split moves half of the hashes of a page to a new one, which is locked then, too. That takes
// effect when the depth of the page says so; until then nobody goes to the new one, also if this
// program dies.
func (s *session) split(ctx context.Context, l locked) error {
	t, p := s.table, s.table.page(l.n)
	depth := t.depth(l.n, l.born) + 1
	if depth > t.lastDepth {
		return fmt.Errorf("collections: %s %q: %w: it is full; make it for more entries than %d", t.kind, t.name, dsm.ErrNoSpace, t.control.planned.Load())
	}
	other := locked{l.n | 1<<(t.lastDepth-depth), depth}
	q := t.page(other.n)
	for i := range q { // who died here may have left something
		if i != lockWord && i != versionWord && q[i].Load() != 0 {
			q.set(i, 0)
		}
	}
	q[lockWord].Store(t.id)
	q.begin()
	q.set(depthWord, uint64(depth))
	s.other = append(s.other, other)
	value := make([]byte, t.valueWords*wordBytes)
	p.records(func(_ link, at int) bool {
		var buffer [64]byte
		b := p.keyAt(at, buffer[:0])
		if h := hashOf(b); t.place(h, depth) == other.n {
			p.unpack(at+1, value)
			k := key{h, len(b), pack(nil, b)}
			q.put(q.find(&k), &k, value)
		}
		return true
	})
	if err := t.c.Commit(ctx); err != nil {
		return err
	}
	p.set(depthWord, uint64(depth))
	t.mend(l.n)(p)
	return nil
}
