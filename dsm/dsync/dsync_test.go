package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
	_ "dsmd/internal/patience" // ends a run in which a test waits for ever
)

func newSemaphore(t *testing.T, ctx context.Context, among dsm.Group, name string, n int64) *dsync.Semaphore {
	t.Helper()
	return kittest.Must[*dsync.Semaphore](t)(dsync.NewSemaphore(ctx, among, name, n))
}

func newWaitGroup(t *testing.T, ctx context.Context, among dsm.Group, name string) *dsync.WaitGroup {
	t.Helper()
	return kittest.Must[*dsync.WaitGroup](t)(dsync.NewWaitGroup(ctx, among, name))
}

func share[T any](t *testing.T, ctx context.Context, c *dsm.Cluster, name string) *T {
	t.Helper()
	return kittest.Must[*T](t)(dsm.Isolate[T](ctx, c, name))
}

// check fails the test unless err wraps what is wanted, or is nil if that is nil.
func check(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// TestAll: what is said of each holds, on one node and on several.
func TestAll(t *testing.T) {
	kittest.RunEach(t, []int{1, 3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		for _, test := range []func(*testing.T, context.Context, *dsm.Cluster){
			testPermits, testOrder, testMisuse, testWaitGroup, testZero, testCond, testSignal, testRelock, testErrGroup, testRefusedGroup,
			testReductionOfThatName, testIdle,
		} {
			test(t, ctx, c)
			kittest.Barrier(t, ctx, c)
		}
	})
}

// testPermits: no more permits are held than there are, whoever gives up waiting, and in the end
// all are there.
func testPermits(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	const size, threads, rounds = 5, 3, 40
	s := newSemaphore(t, ctx, c, "permits", size)
	held := share[atomic.Int64](t, ctx, c, "held")
	var all sync.WaitGroup
	var given, gaveUp atomic.Int64
	for thread := range threads {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c.Rank()), uint64(thread)))
			for range rounds {
				n := r.Int64N(size) + 1
				soon, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(4000))*time.Microsecond)
				err := s.Acquire(soon, n)
				cancel()
				if errors.Is(err, context.DeadlineExceeded) {
					gaveUp.Add(1)
					continue
				}
				check(t, "Acquire", err, nil)
				if now := held.Add(n); now > size {
					t.Errorf("%d permits of %d are held", now, size)
				}
				if r.IntN(2) == 0 {
					time.Sleep(time.Duration(r.IntN(1000)) * time.Microsecond)
				}
				held.Add(-n)
				given.Add(1)
				check(t, "Release", s.Release(n), nil)
			}
		})
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	t.Logf("%d times permits were acquired, and %d times not", given.Load(), gaveUp.Load())
	check(t, "Acquire of all that there are", s.Acquire(ctx, size), nil)
	check(t, "Release", s.Release(size), nil)
	kittest.Barrier(t, ctx, c)
	check(t, "Free", s.Free(ctx), nil)
}

// testOrder: who wants many permits gets them before those that come later and want few.
func testOrder(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	s := newSemaphore(t, ctx, c, "order", 2)
	many := share[atomic.Bool](t, ctx, c, "many")
	if c.Rank() == 0 {
		check(t, "Acquire", s.Acquire(ctx, 1), nil)
	}
	kittest.Barrier(t, ctx, c)
	last := c.Size() - 1
	var waits sync.WaitGroup
	if c.Rank() == last {
		waits.Go(func() {
			check(t, "Acquire of all", s.Acquire(ctx, 2), nil)
			many.Store(true)
			check(t, "Release of all", s.Release(2), nil)
		})
		awaitClaim(t, ctx, s)
	}
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 0 {
		waits.Go(func() {
			check(t, "Acquire of one", s.Acquire(ctx, 1), nil)
			if !many.Load() {
				t.Error("who came later went first")
			}
			check(t, "Release of one", s.Release(1), nil)
		})
		check(t, "Release", s.Release(1), nil)
	}
	waits.Wait()
	kittest.Barrier(t, ctx, c)
	// Who gives up lets those behind go on.
	if c.Rank() == 0 {
		check(t, "Acquire", s.Acquire(ctx, 1), nil)
		impatient, giveUp := context.WithCancel(ctx)
		waits.Go(func() { check(t, "Acquire that gave up", s.Acquire(impatient, 2), context.Canceled) })
		awaitClaim(t, ctx, s)
		time.AfterFunc(10*time.Millisecond, giveUp)
	}
	kittest.Barrier(t, ctx, c)
	if c.Rank() == last {
		check(t, "Acquire behind who gives up", s.Acquire(ctx, 1), nil)
		check(t, "Release", s.Release(1), nil)
	}
	waits.Wait()
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 0 {
		check(t, "Release", s.Release(1), nil)
	}
	check(t, "Free", s.Free(ctx), nil)
}

// awaitClaim returns when somebody waits for permits of which one is there: nobody else gets it.
func awaitClaim(t *testing.T, ctx context.Context, s *dsync.Semaphore) {
	t.Helper()
	for {
		has, err := s.TryAcquire(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !has {
			return
		}
		check(t, "Release", s.Release(1), nil)
	}
}

// testMisuse: what makes no sense is an error, and changes nothing.
func testMisuse(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	s := newSemaphore(t, ctx, c, "misuse", 3)
	check(t, "Acquire of too many", s.Acquire(ctx, 4), dsm.ErrNoSpace)
	check(t, "Acquire of less than none", s.Acquire(ctx, -1), dsm.ErrNoSpace)
	check(t, "Acquire of none", s.Acquire(ctx, 0), nil)
	check(t, "Release of what is not held", s.Release(1), dsm.ErrNotHeld)
	check(t, "Release of less than none", s.Release(-1), dsm.ErrNotHeld)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	check(t, "Acquire without time", s.Acquire(ended, 1), context.Canceled)
	kittest.Barrier(t, ctx, c)
	check(t, "Acquire of all", s.Acquire(ctx, 3), nil)
	check(t, "Release of all", s.Release(3), nil)
	kittest.Barrier(t, ctx, c)
	check(t, "Free", s.Free(ctx), nil)
	_, err := dsync.NewSemaphore(ctx, c, "negative", -1)
	check(t, "a negative semaphore", err, dsm.ErrNoSpace)
	if c.Size() > 1 {
		s, err := dsync.NewSemaphore(ctx, c, "mixed", int64(c.Rank()))
		agreed := err == nil
		if !agreed {
			check(t, "other numbers of permits", err, dsm.ErrMismatch)
		}
		one := kittest.Must[[]bool](t)(dsm.AllGather(ctx, c, "agreed", agreed))
		if strings.Count(fmt.Sprint(one), "true") != 1 {
			t.Errorf("ranks want different numbers of permits, and get them: %t", one)
		}
		if agreed {
			check(t, "Free", s.Free(ctx), nil)
		}
	}
	g := newWaitGroup(t, ctx, c, "misuse too")
	check(t, "Done of nothing", g.Done(), dsync.ErrNegative)
	check(t, "Wait for nothing", g.Wait(ctx), nil)
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 0 {
		check(t, "Add of much", g.Add(math.MaxInt64), nil)
		if err := g.Add(1); err == nil || errors.Is(err, dsync.ErrNegative) {
			t.Errorf("Add of too much: %v", err)
		}
		check(t, "Add of less than nothing", g.Add(-math.MaxInt64), nil)
	}
	kittest.Barrier(t, ctx, c)
	check(t, "Free", g.Free(ctx), nil)
}

// testWaitGroup: nobody goes on before all is done, and then all do and see it.
func testWaitGroup(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	const each, waiters = 20, 3
	g := newWaitGroup(t, ctx, c, "group")
	done := share[atomic.Int64](t, ctx, c, "done")
	for round := range 5 {
		check(t, "Add", g.Add(each), nil)
		kittest.Barrier(t, ctx, c)
		soon, cancel := context.WithTimeout(ctx, time.Millisecond)
		check(t, "Wait without time", g.Wait(soon), context.DeadlineExceeded)
		cancel()
		kittest.Barrier(t, ctx, c)
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				check(t, "Wait", g.Wait(ctx), nil)
				if n, want := done.Load(), int64((round+1)*each*c.Size()); n != want {
					t.Errorf("Wait returned when %d of %d were done", n, want)
				}
			})
		}
		for range each {
			all.Go(func() {
				done.Add(1)
				check(t, "Done", g.Done(), nil)
			})
		}
		all.Wait()
		kittest.Barrier(t, ctx, c)
	}
	check(t, "Free", g.Free(ctx), nil)
}

// testZero: who waits goes on when the counter has become 0, also if it is no more when the rank
// looks.
func testZero(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	const rounds = 30
	g := newWaitGroup(t, ctx, c, "zero")
	last := c.Rank() == c.Size()-1
	if last {
		check(t, "Add", g.Add(1), nil)
	}
	kittest.Barrier(t, ctx, c)
	for range rounds {
		waits := make(chan error, 1)
		if c.Rank() == 0 {
			before := arrivals(t, ctx, c)
			go func() { waits <- g.Wait(ctx) }()
			for arrivals(t, ctx, c) == before { // it waits from then on
			}
		}
		kittest.Barrier(t, ctx, c)
		if last {
			check(t, "Done", g.Done(), nil)
			check(t, "Add", g.Add(1), nil)
		}
		if c.Rank() == 0 {
			check(t, "Wait", <-waits, nil)
		}
		kittest.Barrier(t, ctx, c)
	}
	check(t, "Free", g.Free(ctx), nil)
}

// arrivals is how often this rank has come to a barrier: also to its gate, at which it waits.
func arrivals(t *testing.T, ctx context.Context, c *dsm.Cluster) uint64 {
	t.Helper()
	return kittest.Must[dsm.Stats](t)(c.Stats(ctx)).Sync.Barriers
}
