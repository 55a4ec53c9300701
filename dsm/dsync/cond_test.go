package dsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
)

// testCond: a store for one item, between those who put and those who take. Some give up waiting.
func testCond(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	const threads, items = 2, 30
	type store struct {
		Full             bool
		Item, Put, Taken int
	}
	s := share[store](t, ctx, c, "store")
	lock := dsm.NewMutex(c, "store")
	changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "changed", lock))
	// change calls f when the store is full, or not.
	change := func(r *rand.Rand, full bool, f func()) {
		check(t, "Lock", lock.Lock(ctx), nil)
		defer func() { check(t, "Unlock", lock.Unlock(), nil) }()
		for s.Full != full {
			soon, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(20000))*time.Microsecond)
			err := changed.Wait(soon)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait: %v", err)
				return
			}
		}
		f()
		s.Full = !full
		check(t, "Broadcast", changed.Broadcast(), nil)
	}
	var all sync.WaitGroup
	for thread := range threads {
		putting, taking := rand.New(rand.NewPCG(1, uint64(thread))), rand.New(rand.NewPCG(2, uint64(thread)))
		all.Go(func() {
			for i := range items {
				change(putting, false, func() { s.Item, s.Put = i+1, s.Put+i+1 })
			}
		})
		all.Go(func() {
			for range items {
				change(taking, true, func() { s.Taken += s.Item })
			}
		})
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	if want := threads * c.Size() * items * (items + 1) / 2; s.Put != want || s.Taken != want || s.Full {
		t.Errorf("%d were put and %d taken, want %d", s.Put, s.Taken, want)
	}
	kittest.Barrier(t, ctx, c)
	check(t, "Free", changed.Free(ctx), nil)
}

// testSignal: each signal lets one go on that waits, wherever it is, and no more than one. A signal
// for which nobody waits lets nobody go on.
func testSignal(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	const threads = 3
	type counts struct {
		Waiting, Gone int
		Of            [3]int // that have gone on, of each rank
	}
	s := share[counts](t, ctx, c, "counts")
	lock := dsm.NewRWMutex(c, "counts")
	changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "signalled", lock))
	locked := func(f func()) {
		check(t, "Lock", lock.Lock(ctx), nil)
		f()
		check(t, "Unlock", lock.Unlock(), nil)
	}
	check(t, "Signal to nobody", changed.Signal(), nil)
	kittest.Barrier(t, ctx, c)
	giveUp(t, ctx, changed)
	kittest.Barrier(t, ctx, c)
	var all sync.WaitGroup
	wait := func() {
		locked(func() {
			s.Waiting++
			check(t, "Wait", changed.Wait(ctx), nil)
			s.Gone++
			s.Of[c.Rank()]++
		})
	}
	// await returns when f says so.
	await := func(f func() bool) {
		for is := false; !is; locked(func() { is = f() }) {
			time.Sleep(100 * time.Microsecond)
		}
	}
	// Who has given up takes no signal from the only one who waits.
	if c.Rank() == c.Size()-1 {
		all.Go(wait)
		await(func() bool { return s.Waiting == 1 })
	}
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 0 {
		check(t, "Signal", changed.Signal(), nil)
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	for range threads {
		all.Go(wait)
	}
	if total := threads * c.Size(); c.Rank() == 0 {
		await(func() bool { return s.Waiting == 1+total })
		for i := range total {
			locked(func() {
				if s.Gone != 1+i {
					t.Errorf("after %d signals %d have gone on", 1+i, s.Gone)
				}
				if i == c.Size() && slices.Max(s.Of[:]) > 2 {
					t.Errorf("ranks do not take turns: %d have gone on", s.Of)
				}
				if i%2 == 0 {
					check(t, "Signal", changed.Signal(), nil)
				}
			})
			if i%2 == 1 {
				check(t, "Signal", changed.Signal(), nil)
			}
			await(func() bool { return s.Gone > 1+i })
		}
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	check(t, "Broadcast to nobody", changed.Broadcast(), nil)
	check(t, "Free", changed.Free(ctx), nil)
}

// giveUp waits in vain. With an error the caller has the lock, but not when it is not its to give
// back.
func giveUp(t *testing.T, ctx context.Context, changed *dsync.Cond) {
	t.Helper()
	check(t, "Wait without the lock", changed.Wait(ctx), dsm.ErrNotHeld)
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	check(t, "Lock", changed.L.Lock(ctx), nil)
	check(t, "Wait without time", changed.Wait(soon), context.DeadlineExceeded)
	check(t, "Unlock", changed.L.Unlock(), nil)
}

// broken is a lock that nobody obtains any more.
type broken struct{ *dsm.Mutex }

func (broken) Lock(context.Context) error { return dsm.ErrOwnerDied }

// testRelock: an error of Wait says whether the caller has the lock.
func testRelock(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	lock := dsm.NewMutex(c, "relock")
	changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "relock", broken{lock}))
	// As a rule the first one ends before it gives the lock back, and the second one later.
	for _, patience := range []time.Duration{0, 50 * time.Millisecond} {
		check(t, "Lock", lock.Lock(ctx), nil)
		soon, cancel := context.WithTimeout(ctx, patience)
		err := changed.Wait(soon)
		cancel()
		held := lock.Unlock() == nil
		if held == errors.Is(err, dsm.ErrNotHeld) || held == errors.Is(err, dsm.ErrOwnerDied) {
			t.Errorf("the caller has the lock: %t; and Wait says: %v", held, err)
		}
	}
	kittest.Barrier(t, ctx, c)
	check(t, "Free", changed.Free(ctx), nil)
}
