package dsync

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// Semaphore is a number of permits that goroutines of all ranks hold. Who wants more than there are
// waits, and all that come later wait behind it, so that those who want many get them, too. Ranks
// wait in that order, each with one goroutine at a time. When that has come to its end the next of
// the rank takes its place, behind all ranks that wait by then.
//
// What travels: one rank that acquires and releases alone needs no message. Else the state comes to
// who calls, and a permit for which a rank waits is a meeting with that rank.
//
// Permits belong to nobody in particular: any rank may release what another has acquired. So those
// of a program that has died stay away, and who waits for them gets dsm.ErrNodeLost or
// dsm.ErrOwnerDied, as the package comment says. The others can be acquired, also those that
// a lost rank was waiting for.
type Semaphore struct {
	m    *monitor[permits, claim]
	size int64
	line chan struct{} // one goroutine of a rank claims at a time
}

type permits struct {
	Size, Held int64
	Claims     uint64 // so many were made
}

// claim is what a rank waits for.
type claim struct {
	Wants  int64
	Number uint64 // 0: it waits for nothing
}

// NewSemaphore returns the semaphore of that name, with n permits if it is new. It does not wait
// for other ranks.
//
// Errors: dsm.ErrMismatch (another rank gave another n), dsm.ErrNoSpace (n is negative), those of
// dsm.Alloc, of dsm.Mutex.Lock and of the package comment.
func NewSemaphore(ctx context.Context, among dsm.Group, name string, n int64) (*Semaphore, error) {
	s := &Semaphore{size: n, line: make(chan struct{}, 1)}
	err := s.open(ctx, among, name)
	if err != nil {
		return nil, fmt.Errorf("dsync: NewSemaphore %q: %w", name, err)
	}
	return s, nil
}

func (s *Semaphore) open(ctx context.Context, among dsm.Group, name string) (err error) {
	if s.size < 0 {
		return fmt.Errorf("%w: it is to have %d permits; 0 is the least", dsm.ErrNoSpace, s.size)
	}
	if s.m, err = newMonitor[permits, claim](ctx, among, "semaphore", name); err != nil {
		return err
	}
	s.m.what = "for permits of semaphore"
	s.m.ready = func() bool { return s.m.own().Number == 0 }
	s.m.left = func(int) {
		*s.m.own() = claim{}
		s.grant()
	}
	err = s.m.inside(ctx, func() error {
		all := s.m.all()
		if all.Claims == 0 {
			all.Size, all.Claims = s.size, 1
		}
		if all.Size != s.size {
			return fmt.Errorf("%w: this rank wants %d permits, others %d", dsm.ErrMismatch, s.size, all.Size)
		}
		s.grant() // to those behind what this rank had claimed before it died
		return nil
	})
	if err != nil {
		return errors.Join(err, s.m.free(context.WithoutCancel(ctx)))
	}
	return nil
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (s *Semaphore) Free(ctx context.Context) error { return s.m.free(ctx) }

// Acquire waits until the caller has n permits. It has them if and only if the error is nil: if ctx
// ends while they are granted it may be either.
//
// Errors: dsm.ErrNoSpace (n is negative, or more than there are in all), ctx's, and those of the
// package comment.
func (s *Semaphore) Acquire(ctx context.Context, n int64) error {
	return s.m.failed("Semaphore.Acquire", s.acquire(ctx, n))
}

func (s *Semaphore) acquire(ctx context.Context, n int64) error {
	if err := s.check(n); err != nil {
		return err
	}
	select {
	case s.line <- struct{}{}:
		defer func() { <-s.line }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.m.await(ctx, func() (waits bool, err error) {
		if s.take(n) {
			return false, nil
		}
		*s.m.own() = claim{Wants: n, Number: s.m.all().Claims}
		s.m.all().Claims++
		return true, nil
	})
}

// TryAcquire acquires n permits if nobody need wait for them, and reports whether it has. ctx is
// for the time that it takes to ask. Errors are those of Acquire, with which it has none.
func (s *Semaphore) TryAcquire(ctx context.Context, n int64) (has bool, err error) {
	if err = s.check(n); err == nil {
		err = s.m.inside(ctx, func() error {
			has = s.take(n)
			return nil
		})
	}
	return has, s.m.failed("Semaphore.TryAcquire", err)
}

// Release gives n permits back. It waits for those only for whom it grants them, until their
// programs know. Errors: dsm.ErrNotHeld (so many are not held, or n is negative), and those of the
// package comment but dsm.ErrNodeLost.
func (s *Semaphore) Release(n int64) error {
	return s.m.failed("Semaphore.Release", s.m.inside(context.Background(), func() error {
		all := s.m.all()
		if n < 0 || n > all.Held {
			return fmt.Errorf("%w: %d permits are given back, and %d are held", dsm.ErrNotHeld, n, all.Held)
		}
		all.Held -= n
		s.grant()
		return nil
	}))
}

func (s *Semaphore) check(n int64) error {
	if n < 0 || n > s.size {
		return fmt.Errorf("%w: %d permits are wanted, and it has %d in all", dsm.ErrNoSpace, n, s.size)
	}
	return nil
}

// take takes permits, inside, if they are there and nobody waits.
func (s *Semaphore) take(n int64) bool {
	all := s.m.all()
	s.grant() // to those behind a rank that is lost meanwhile
	if s.first() >= 0 || all.Size-all.Held < n {
		return false
	}
	all.Held += n
	return true
}

// grant gives permits, inside, to those that wait, in their order.
func (s *Semaphore) grant() {
	all := s.m.all()
	for {
		first := s.first()
		if first < 0 {
			return
		}
		own := &s.m.places[first].own
		if s.m.isLost(first) {
			*own = claim{}
			continue
		}
		if all.Size-all.Held < own.Wants {
			return
		}
		all.Held += own.Wants
		*own = claim{}
		s.m.wake(first)
	}
}

// first is the rank that has waited longest, by its index, or -1 if none waits.
func (s *Semaphore) first() int {
	first := -1
	for index := range s.m.places {
		number := s.m.places[index].own.Number
		if number != 0 && (first < 0 || number < s.m.places[first].own.Number) {
			first = index
		}
	}
	return first
}
