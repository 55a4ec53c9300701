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

// NewCond returns the condition variable of that name, whose lock is l. All ranks must mean the
// same lock. It does not wait for other ranks. Errors are those of dsm.Alloc, of dsm.Mutex.Lock and
// of the package comment.
func NewCond(ctx context.Context, among dsm.Group, name string, l Locker) (*Cond, error) {
	m, err := newMonitor[baton, listeners](ctx, among, "cond", name)
	if err != nil {
		return nil, fmt.Errorf("dsync: NewCond %q: %w", name, err)
	}
	m.what = "for a signal of condition variable"
	listen(m)
	return &Cond{L: l, m: m}, nil
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (c *Cond) Free(ctx context.Context) error { return c.m.free(ctx) }

// Wait gives L back, waits until it is signalled, and locks L again. The caller holds L before, and
// also after: so it looks again at what it waits for. That is so with an error as without, unless
// the error wraps dsm.ErrNotHeld: the caller did not hold L before, or L could not be locked again,
// and then the error wraps why, too, such as dsm.ErrOwnerDied.
//
// When ctx ends Wait still locks L, for which it may have to wait. Errors: ctx's, then no signal
// was taken; those of the package comment; those of L.
func (c *Cond) Wait(ctx context.Context) error {
	w, err := c.m.enlist(ctx, func() (waits bool, err error) {
		c.m.own().Waiting++
		return true, nil
	})
	if err != nil {
		return c.m.failed("Cond.Wait", err)
	}
	if err := c.L.Unlock(); err != nil {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_ = c.m.wait(ended, w)
		return c.m.failed("Cond.Wait", err)
	}
	err = c.m.wait(ctx, w)
	if why := c.L.Lock(context.WithoutCancel(ctx)); why != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", dsm.ErrNotHeld, why))
	}
	return c.m.failed("Cond.Wait", err)
}

// Signal lets one goroutine go on that waits, if there is one, on any rank; ranks take turns. The
// caller may hold L, but need not. It returns when that goroutine's program knows. Errors are those
// of the package comment but dsm.ErrNodeLost.
func (c *Cond) Signal() error {
	return c.m.failed("Cond.Signal", c.m.inside(context.Background(), func() error {
		next := &c.m.all().Next
		for i := range c.m.places {
			if index := (*next + i) % len(c.m.places); signal(c.m, index, 1) {
				*next = index + 1
				break
			}
		}
		return nil
	}))
}

// Broadcast lets all goroutines go on that wait. It is otherwise like Signal.
func (c *Cond) Broadcast() error {
	return c.m.failed("Cond.Broadcast", c.m.inside(context.Background(), func() error {
		signalAll(c.m)
		return nil
	}))
}
