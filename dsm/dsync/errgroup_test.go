package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
)

var errWork = errors.New("the work has failed")

func newErrGroup(t *testing.T, ctx context.Context, among dsm.Group, name string) (*dsync.ErrGroup, context.Context) {
	t.Helper()
	g, within, err := dsync.NewErrGroup(ctx, among, name)
	if err != nil {
		t.Fatal(err)
	}
	return g, within
}

// testErrGroup: Wait waits for all, and says the same everywhere.
func testErrGroup(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	done := share[atomic.Int64](t, ctx, c, "done by the group")
	g, within := newErrGroup(t, ctx, c, "errgroup")
	for range 3 {
		g.Go(func() error {
			g.Go(func() error {
				done.Add(1)
				return within.Err()
			})
			return nil
		})
	}
	check(t, "Wait", g.Wait(ctx), nil)
	if n := done.Load(); n != int64(3*c.Size()) {
		t.Errorf("Wait returned when %d of %d were done", n, 3*c.Size())
	}
	check(t, "the context in the end", context.Cause(within), context.Canceled)

	// One fails, on the last rank, and all others are told.
	g, within = newErrGroup(t, ctx, c, "errgroup")
	// The text of its error stays lost, as the rest of its state does.
	_, err := dsm.Alloc[byte](ctx, c, fmt.Sprintf("dsync/errgroup/errgroup/%d/text", c.Size()), 3000)
	check(t, "Alloc of the text without StaysLost", err, dsm.ErrMismatch)
	for range 3 {
		g.Go(func() error {
			<-within.Done()
			return context.Cause(within)
		})
	}
	soon, cancel := context.WithCancel(ctx)
	cancel()
	check(t, "Wait without time", g.Wait(soon), context.Canceled)
	last := c.Size() - 1
	if c.Rank() == last {
		g.Go(func() error { return errWork })
	}
	first := func(what string, err error) {
		var e *dsync.Error
		if !errors.As(err, &e) || e.Rank != last || e.Text != errWork.Error() || errors.Is(err, errWork) != (c.Rank() == last) {
			t.Errorf("%s: %v, want that of rank %d", what, err, last)
		}
	}
	first("Wait", g.Wait(ctx))
	first("the cause", context.Cause(within))

	// All fail, with long errors; one is the first.
	g, _ = newErrGroup(t, ctx, c, "errgroup")
	g.Go(func() error { return errors.New(strings.Repeat("long ", 1000)) })
	var e *dsync.Error
	if !errors.As(g.Wait(ctx), &e) || len(e.Text) != 3000 {
		t.Errorf("Wait: %v", e)
	}
	ranks := kittest.Must[[]int](t)(dsm.AllGather(ctx, c, "first", e.Rank))
	for _, rank := range ranks {
		if rank != ranks[0] {
			t.Errorf("ranks do not agree who was the first: %d", ranks)
		}
	}
}

// testRefusedGroup: when one rank can't make a group, as it has its memory with another option,
// none has one, and they can make it later.
func testRefusedGroup(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	refused := c.Rank() == c.Size()-1
	var text []byte
	if refused {
		text = kittest.Must[[]byte](t)(dsm.Alloc[byte](ctx, c, fmt.Sprintf("dsync/refused/errgroup/%d/text", c.Size()), 3000))
	}
	if _, _, err := dsync.NewErrGroup(ctx, c, "refused"); err == nil || errors.Is(err, dsm.ErrMismatch) != refused {
		t.Fatalf("NewErrGroup that one rank refuses: %v", err)
	}
	check(t, "Free", dsm.Free(ctx, c, text), nil)
	g, _ := newErrGroup(t, ctx, c, "refused")
	check(t, "Wait", g.Wait(ctx), nil)
}

// testReductionOfThatName: a group is made and ends while another goroutine waits in a reduction of
// its name.
func testReductionOfThatName(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	kittest.Apart(t, ctx, c, "group", func() error {
		g, _, err := dsync.NewErrGroup(ctx, c, "group")
		if err != nil {
			return err
		}
		return g.Wait(ctx)
	})
}

// testIdle: who waits does nothing meanwhile, and one rank alone sends nothing.
func testIdle(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	g := newWaitGroup(t, ctx, c, "idle")
	s := newSemaphore(t, ctx, c, "idle too", 2)
	check(t, "Add", g.Add(1), nil)
	kittest.Barrier(t, ctx, c)
	before, waits := arrivals(t, ctx, c), make(chan error, 1)
	go func() { waits <- g.Wait(ctx) }()
	for arrivals(t, ctx, c) == before {
	}
	pass := func() {
		if c.Rank() == 0 {
			check(t, "Acquire", s.Acquire(ctx, 2), nil)
			check(t, "Release", s.Release(2), nil)
		}
	}
	kittest.Quiet(t, ctx, c, "a semaphore of one rank, while goroutines wait", pass)
	select {
	case err := <-waits:
		t.Errorf("Wait returned too early: %v", err)
	default:
	}
	kittest.Barrier(t, ctx, c)
	check(t, "Done", g.Done(), nil)
	check(t, "Wait", <-waits, nil)
	kittest.Barrier(t, ctx, c)
	check(t, "Free", errors.Join(g.Free(ctx), s.Free(ctx)), nil)
}
