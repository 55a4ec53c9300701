package dsync_test

import (
	"context"
	"errors"
	"math/rand/v2"
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
	type counts struct{ Waiting, Gone int }
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
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			locked(func() {
				s.Waiting++
				check(t, "Wait", changed.Wait(ctx), nil)
				s.Gone++
			})
		})
	}
	gone := func() (n int) {
		locked(func() { n = s.Gone })
		return n
	}
	if total := threads * c.Size(); c.Rank() == 0 {
		for waiting := 0; waiting < total; locked(func() { waiting = s.Waiting }) {
			time.Sleep(time.Millisecond)
		}
		for i := range total {
			if n := gone(); n != i {
				t.Errorf("after %d signals %d have gone on", i, n)
			}
			if i%2 == 0 {
				locked(func() { check(t, "Signal", changed.Signal(), nil) })
			} else {
				check(t, "Signal", changed.Signal(), nil)
			}
			for gone() == i {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	// With an error the caller has the lock, but not when it is not its to give back.
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	locked(func() { check(t, "Wait without time", changed.Wait(soon), context.DeadlineExceeded) })
	check(t, "Wait without the lock", changed.Wait(ctx), dsm.ErrNotHeld)
	kittest.Barrier(t, ctx, c)
	check(t, "Broadcast to nobody", changed.Broadcast(), nil)
	check(t, "Free", changed.Free(ctx), nil)
}
