package dsync

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// Locker is the lock of a Cond: a *dsm.Mutex, or a *dsm.RWMutex held for writing.
type Locker interface {
	Lock(ctx context.Context) error
	Unlock() error
}

// Cond lets goroutines wait until others say that something has changed, as sync.Cond does. What it
// is about lies in shared memory, under the lock L.
//
//	if err := c.L.Lock(ctx); err != nil {
//		return err
//	}
//	defer c.L.Unlock()
//	for !condition() {
//		if err := c.Wait(ctx); err != nil {
//			return err
//		}
//	}
//
// What travels: beside the lock and what it protects, the state of the Cond comes to who calls
// Wait, Signal or Broadcast. Signal meets one rank, and Broadcast all those that wait.
//
// If a rank is lost, who waits gets dsm.ErrNodeLost: the signal may have been that rank's to give.
type Cond struct {
	// L is held by who calls Wait, and by who changes what the Cond is about.
	L Locker
	m *monitor[baton, listeners]
}

// baton is where Signal begins to look for a rank.
type baton struct{ Next int }

// listeners are the goroutines of a rank that wait: those that were not signalled, and those that
// were and do not know it yet.
type listeners struct{ Waiting, Signalled int }

// NewCond returns the condition variable of that name, whose lock is l. All ranks must mean the
// same lock. It does not wait for other ranks. Errors are those of dsm.Alloc, of dsm.Mutex.Lock and
// of the package comment.
func NewCond(ctx context.Context, among dsm.Group, name string, l Locker) (*Cond, error) {
	m, err := newMonitor[baton, listeners](ctx, among, "cond", name)
	if err != nil {
		return nil, fmt.Errorf("dsync: NewCond %q: %w", name, err)
	}
	m.ready = func() bool {
		is := m.own().Signalled > 0
		if is {
			m.own().Signalled--
		}
		return is
	}
	m.left = func(n int) { m.own().Waiting -= n }
	return &Cond{L: l, m: m}, nil
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (c *Cond) Free(ctx context.Context) error { return c.m.free(ctx) }

// Wait gives L back, waits until it is signalled, and locks L again. The caller holds L before, and
// also after, with an error as without: so it looks again at what it waits for. It does not hold L
// if the error wraps one with which Lock fails, such as dsm.ErrOwnerDied, dsm.ErrClosed or
// dsm.ErrLost; Unlock then returns dsm.ErrNotHeld.
//
// When ctx ends Wait still locks L, for which it may have to wait. Errors: ctx's, then no signal
// was taken; those of the package comment; those of L.
func (c *Cond) Wait(ctx context.Context) error {
	w, err := c.m.enlist(ctx, func() (waits bool, err error) {
		c.m.own().Waiting++
		return true, nil
	})
	if err != nil {
		return c.failed("Wait", err)
	}
	if err := c.L.Unlock(); err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = c.m.wait(ended, w)
		return c.failed("Wait", err)
	}
	err = c.m.wait(ctx, w)
	return c.failed("Wait", errors.Join(err, c.L.Lock(context.WithoutCancel(ctx))))
}

// Signal lets one goroutine go on that waits, if there is one, on any rank; ranks take turns. The
// caller may hold L, but need not. It returns when that goroutine's program knows. Errors are those
// of the package comment but dsm.ErrNodeLost.
func (c *Cond) Signal() error {
	return c.failed("Signal", c.m.inside(context.Background(), func() error {
		next := &c.m.all().Next
		for i := range c.m.places {
			if index := (*next + i) % len(c.m.places); c.signal(index, 1) {
				*next = index + 1
				break
			}
		}
		return nil
	}))
}

// Broadcast lets all goroutines go on that wait. It is otherwise like Signal.
func (c *Cond) Broadcast() error {
	return c.failed("Broadcast", c.m.inside(context.Background(), func() error {
		for index := range c.m.places {
			c.signal(index, c.m.places[index].own.Waiting)
		}
		return nil
	}))
}

// signal lets n goroutines of a rank go on, if so many wait there, inside.
func (c *Cond) signal(index, n int) bool {
	own := &c.m.places[index].own
	if own.Waiting == 0 {
		return false
	}
	own.Waiting -= n
	own.Signalled += n
	c.m.wake(index)
	return true
}

func (c *Cond) failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("dsync: %s of condition variable %q: %w", what, c.m.called, err)
	}
	return nil
}
