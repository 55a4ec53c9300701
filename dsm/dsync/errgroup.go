package dsync

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"dsmd/dsm"
)

// maxText bounds what other ranks are told of an error, in bytes.
const maxText = 3000

// Error is the error of an ErrGroup. All ranks get that of the goroutine that was the first to
// fail.
type Error struct {
	Rank int    // of the goroutine, in its job
	Text string // of its error, at most 3,000 bytes
	err  error
}

func (e *Error) Error() string { return fmt.Sprintf("on rank %d: %s", e.Rank, e.Text) }

// Unwrap is the goroutine's own error, on its rank; else it is nil.
func (e *Error) Unwrap() error { return e.err }

// ErrGroup is goroutines on all ranks that belong together, as errgroup.Group is in one process.
// The first that fails ends the context of all.
//
// What travels: nothing while goroutines run, and to start one takes no message. To make the group
// takes two meetings of all ranks, and to Wait takes one. The first error comes to all ranks, one
// after the other.
//
// If a rank is lost the contexts of all others end, and Wait returns an error that wraps
// dsm.ErrNodeLost: what its goroutines have done nobody knows.
type ErrGroup struct {
	m     *monitor[failure, struct{}]
	among dsm.Group
	name  string
	text  []byte // shared; of the first error

	ctx     context.Context // of the goroutines
	cancel  context.CancelCauseFunc
	broken  context.Context // ends when ranks can't agree on a first error any more
	breaks  context.CancelCauseFunc
	watch   sync.WaitGroup // waits for the first error
	unwatch context.CancelFunc
	local   sync.WaitGroup // goroutines of this rank

	mu  sync.Mutex
	own error // if this rank was the first that failed; guarded by mu
}

// failure is the first error, but for its text.
type failure struct {
	Failed           bool
	Index, Rank, Len int
}

// NewErrGroup returns a group of goroutines, which name names, and the context for them, which
// comes from ctx. All ranks call it, and it waits for all of them. All of them also call Wait. When
// all have come and it fails on one, also because ctx has ended there, it does on all.
//
// The context ends when a goroutine has failed anywhere, when a rank is lost, and when Wait has
// returned. context.Cause is an *Error, or wraps dsm.ErrNodeLost, or is context.Canceled.
//
// Errors are those of dsm.Reduce, of dsm.Alloc, of dsm.Mutex.Lock and of the package comment.
func NewErrGroup(ctx context.Context, among dsm.Group, name string) (*ErrGroup, context.Context, error) {
	g := &ErrGroup{among: among, name: name}
	if err := g.open(ctx); err != nil {
		return nil, nil, fmt.Errorf("dsync: NewErrGroup %q: %w", name, err)
	}
	g.ctx, g.cancel = context.WithCancelCause(ctx)
	g.broken, g.breaks = context.WithCancelCause(context.Background())
	watching, unwatch := context.WithCancel(context.Background())
	g.unwatch = unwatch
	g.watch.Go(func() {
		err := g.m.await(watching, func() (waits bool, err error) { return !g.m.ready(), nil })
		switch {
		case err == nil:
			g.cancel(g.first())
		case watching.Err() == nil:
			g.fall(err)
		}
	})
	return g, g.ctx, nil
}

// comingTime is how long after its context has ended a rank waits for the others, which have come
// once, to come again.
const comingTime = 30 * time.Second

func (g *ErrGroup) open(ctx context.Context) error {
	// The memory of an earlier one of the name is free when all have come.
	if err := g.meet(ctx); err != nil {
		return err
	}
	failed := g.alloc(ctx)
	// The others would wait for one that has failed. All are here, and come once more. One whose
	// program has ended meanwhile may never come.
	meeting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(comingTime, cancel) })()
	any, err := dsm.Reduce(meeting, g.among, g.meeting(), failed != nil, func(a, b bool) bool { return a || b })
	switch {
	case failed != nil:
		return failed
	case err == nil && any:
		err = errors.New("another rank has failed")
	}
	if err != nil {
		ctx = context.WithoutCancel(ctx)
		return errors.Join(err, dsm.Free(ctx, g.m.c, g.text), g.m.free(ctx))
	}
	return nil
}

// alloc makes the state.
func (g *ErrGroup) alloc(ctx context.Context) (err error) {
	if g.m, err = newMonitor[failure, struct{}](ctx, g.among, "errgroup", g.name); err != nil {
		return err
	}
	g.m.ready = func() bool { return g.m.all().Failed }
	g.m.relook = watchAfter
	if g.text, err = dsm.Alloc[byte](ctx, g.m.c, g.m.name+"/text", maxText, dsm.Unsaved()); err != nil {
		return errors.Join(err, g.m.free(context.WithoutCancel(ctx)))
	}
	if g.m.index > 0 {
		return nil
	}
	// From here on the page is not at a node that has no rank, whose loss ends no group.
	if err = dsm.Guard(func() { g.text[0] = 0 }); err != nil {
		ctx = context.WithoutCancel(ctx)
		return errors.Join(err, dsm.Free(ctx, g.m.c, g.text), g.m.free(ctx))
	}
	return nil
}

// meeting is the name of the reduction by which ranks meet.
func (g *ErrGroup) meeting() string { return fmt.Sprintf("dsync/%s/errgroup", g.name) }

// meet waits for all ranks.
func (g *ErrGroup) meet(ctx context.Context) error {
	_, err := dsm.AllGather(ctx, g.among, g.meeting(), struct{}{})
	return err
}

// fall ends the group here: it has no first error on which all ranks agree.
func (g *ErrGroup) fall(err error) {
	g.breaks(err)
	g.cancel(err)
}

// first is the first error, which there is.
func (g *ErrGroup) first() (err error) {
	lost := dsm.Guard(func() {
		f := g.m.all()
		e := &Error{Rank: f.Rank, Text: string(g.text[:f.Len])}
		if f.Index == g.m.index {
			g.mu.Lock()
			e.err = g.own
			g.mu.Unlock()
		}
		err = e
	})
	return errors.Join(err, lost)
}

// Go calls f in a goroutine of this program. If f returns an error, and no other of the group has
// before, the contexts of all ranks end with that. If f touches a page that is lost, that is an
// error, too (see dsm.Guard). A panic ends the program, and that is a loss.
//
// It may be called before this rank calls Wait, and by goroutines of the group.
func (g *ErrGroup) Go(f func() error) {
	g.local.Go(func() {
		var err error
		if lost := dsm.Guard(func() { err = f() }); lost != nil {
			err = lost
		}
		if err != nil {
			g.fail(err)
		}
	})
}

// fail tells all ranks of an error, unless there was one before.
func (g *ErrGroup) fail(err error) {
	told := g.m.inside(context.Background(), func() error {
		f := g.m.all()
		if f.Failed {
			return nil
		}
		g.mu.Lock()
		g.own = err
		g.mu.Unlock()
		*f = failure{Failed: true, Index: g.m.index, Rank: g.m.c.Rank(), Len: copy(g.text, err.Error())}
		g.m.wakeAll()
		return nil
	})
	if told != nil {
		g.fall(errors.Join(err, told))
	}
}

// Wait waits until the goroutines of all ranks have ended, and all ranks have called it. Then the
// group is over. It returns nil if none has failed, and else an *Error, the same one on all ranks.
//
// If the error wraps ctx's, ctx has ended first: goroutines may still run, the others go on waiting
// for this rank, and it may call Wait again. Other errors: dsm.ErrNodeLost and the others of the
// package comment; then the group is over for this rank when its own goroutines have ended.
func (g *ErrGroup) Wait(ctx context.Context) error {
	here := make(chan struct{})
	go func() {
		g.local.Wait()
		close(here)
	}()
	select {
	case <-here:
	case <-ctx.Done():
		return g.m.failed("ErrGroup.Wait", ctx.Err())
	}
	meeting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.broken, cancel)()
	wasBroken := g.broken.Err() != nil
	err := g.meet(meeting)
	// A rank that is lost when all have met has ended, and its goroutines before.
	if g.broken.Err() != nil && (wasBroken || err != nil) {
		err = context.Cause(g.broken)
	} else if err != nil && ctx.Err() != nil {
		return g.m.failed("ErrGroup.Wait", err)
	}
	return g.m.failed("ErrGroup.Wait", g.end(err))
}

// end ends the group for this rank. err is why ranks have not met.
func (g *ErrGroup) end(err error) error {
	g.unwatch()
	g.watch.Wait()
	if err == nil {
		failed := false
		if err = dsm.Guard(func() { failed = g.m.all().Failed }); failed {
			err = g.first()
		}
	}
	g.cancel(nil)
	g.breaks(nil)
	ctx := context.Background()
	return errors.Join(err, dsm.Free(ctx, g.m.c, g.text), g.m.free(ctx))
}
