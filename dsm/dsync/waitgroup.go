package dsync

import (
	"context"
	"errors"
	"fmt"

	"dsmd/dsm"
)

// ErrNegative: there were more calls of Done than were announced by Add.
var ErrNegative = errors.New("the counter would be negative")

var errTooMany = errors.New("the counter would be more than a number of 64 bits can be")

// WaitGroup counts what is under way on all ranks, and lets goroutines wait until nothing is.
//
// What travels: the counter comes to who changes it. Add many at once, and say Done for many by
// Add(-n), where that is possible. The last Done meets all ranks that wait.
//
// The counter knows nobody: any rank may say Done for what another has announced. So if a rank is
// lost, its Done can not come, or may have come, and who waits gets dsm.ErrNodeLost unless the
// counter has become 0.
type WaitGroup struct{ m *monitor[pending, listeners] }

type pending struct{ Count int64 }

// NewWaitGroup returns the wait group of that name; its counter is 0 if it is new. It does not wait
// for other ranks. Errors are those of dsm.Alloc, of dsm.Mutex.Lock and of the package comment.
func NewWaitGroup(ctx context.Context, among dsm.Group, name string) (*WaitGroup, error) {
	m, err := newMonitor[pending, listeners](ctx, among, "waitgroup", name)
	if err != nil {
		return nil, fmt.Errorf("dsync: NewWaitGroup %q: %w", name, err)
	}
	m.what = "for wait group"
	listen(m)
	return &WaitGroup{m}, nil
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (g *WaitGroup) Free(ctx context.Context) error { return g.m.free(ctx) }

// Add adds delta, which may be negative, to the counter. When it becomes 0 those that wait go on,
// whatever is added then; it returns when their programs know.
//
// As with sync.WaitGroup, what takes the counter from 0 comes before the Wait that is to wait for
// it: on other ranks, before a Barrier.
//
// Errors: ErrNegative, with which the counter is as it was, and those of the package comment but
// dsm.ErrNodeLost.
func (g *WaitGroup) Add(delta int64) error {
	err := g.m.inside(context.Background(), func() error {
		all := g.m.all()
		sum := all.Count + delta
		switch {
		case sum < 0 && delta > 0:
			return fmt.Errorf("%w: %d is added to %d", errTooMany, delta, all.Count)
		case sum < 0:
			return fmt.Errorf("%w: %d is added to %d", ErrNegative, delta, all.Count)
		}
		if all.Count = sum; sum == 0 {
			signalAll(g.m)
		}
		return nil
	})
	return g.m.failed("WaitGroup.Add", err)
}

// Done is Add(-1).
func (g *WaitGroup) Done() error { return g.Add(-1) }

// Wait returns if the counter is 0, or else when it becomes 0. What was stored before the calls of
// Done is seen after it. Errors: ctx's, and those of the package comment.
func (g *WaitGroup) Wait(ctx context.Context) error {
	return g.m.failed("WaitGroup.Wait", g.m.await(ctx, func() (waits bool, err error) {
		if waits = g.m.all().Count > 0; waits {
			g.m.own().Waiting++
		}
		return waits, nil
	}))
}
