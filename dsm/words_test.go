package dsm

import (
	"context"
	"errors"
	"sync"
	"testing"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// publish makes a lock one that the first program takes by its word.
func (f *fake) publish(m *Mutex) *controlpage.Page {
	page := f.program(0).page
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lock(m.l.hash).writer = f.programs[0]
	page.Publish(m.l.hash)
	return page
}

// TestMutexByWord: a published lock is taken and given back without a call, until the daemon wants
// it.
func TestMutexByWord(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	ctx := within(t)
	m := NewMutex(c, "m")
	page := f.publish(m)
	for range 3 {
		if err := m.Lock(ctx); err != nil {
			t.Fatal(err)
		}
		if err := m.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Unlock(); !errors.Is(err, ErrNotHeld) {
		t.Errorf("giving back what is not held: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := m.Lock(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("locking when it is too late: %v", err)
	}
	if n := f.count(attach.OpAcquire) + f.count(attach.OpRelease); n != 0 {
		t.Errorf("%d calls", n)
	}
	if err := m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if found := page.Recall(m.l.hash); found != controlpage.FoundHeld {
		t.Errorf("the lock is found %d while it is held", found)
	}
	if err := m.Unlock(); err != nil {
		t.Fatal(err)
	}
	f.awaitCalls(attach.OpRelease, 1)
	if err := m.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	if f.count(attach.OpAcquire) != 1 {
		t.Error("a lock that was recalled is not asked for")
	}
	if err := m.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// TestGrantedByWord: a lock that was asked for and granted by its word is given back there.
func TestGrantedByWord(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	m := NewMutex(c, "m")
	page := f.publish(m)
	if !page.Take(m.l.hash) { // so that the program asks
		t.Fatal("the lock was not free")
	}
	f.mu.Lock()
	f.answer = func(call attach.Call) (attach.Reply, bool) {
		return attach.Reply{Ticket: call.Ticket, Status: attach.StatusByWord}, call.Op == attach.OpAcquire
	}
	f.mu.Unlock()
	if err := m.Lock(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{nil, ErrNotHeld} {
		if err := m.Unlock(); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if n := f.count(attach.OpRelease); n != 0 {
		t.Errorf("%d messages for it", n)
	}
}

// TestGoroutinesByWord: goroutines that share a published lock exclude each other, and the race
// detector knows it, whichever way each of them has got it.
func TestGoroutinesByWord(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	ctx := within(t)
	m := NewMutex(c, "m")
	const rounds = 300
	count, byCalls := 0, false
	page := f.publish(m)
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for range rounds {
				if err := m.Lock(ctx); err != nil {
					t.Error(err)
					return
				}
				count++
				if count == rounds && !byCalls {
					byCalls = true
					page.Recall(m.l.hash) // from here on the fake keeps it
				}
				if err := m.Unlock(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if count != 3*rounds {
		t.Errorf("%d increments of %d are left", count, 3*rounds)
	}
}

// TestWordsAfterTheEnd: a lock that is published can't be taken any more when the cluster is closed
// or lost.
func TestWordsAfterTheEnd(t *testing.T) {
	for name, end := range map[string]struct {
		bring func(*fake, *Cluster)
		want  error
	}{
		"closed": {func(_ *fake, c *Cluster) { c.Close() }, ErrClosed},
		"lost":   {func(f *fake, c *Cluster) { f.die(); <-c.done }, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, 1)
			c := f.join()
			m, held := NewMutex(c, "m"), NewMutex(c, "held")
			f.publish(m)
			f.publish(held)
			if err := held.Lock(within(t)); err != nil {
				t.Fatal(err)
			}
			end.bring(f, c)
			if err := m.Lock(within(t)); !errors.Is(err, end.want) {
				t.Errorf("Lock: %v", err)
			}
			if err := held.Unlock(); !errors.Is(err, end.want) {
				t.Errorf("Unlock: %v", err)
			}
		})
	}
}

// TestNoControlPage: a daemon that hands over none, or another file, is refused.
func TestNoControlPage(t *testing.T) {
	f := newFake(t, 1, func(f *fake) { f.pageless = true })
	if _, err := Join(within(t), WithSocket(f.socket)); err == nil || !errors.Is(err, attach.ErrMalformed) {
		t.Errorf("without a control page: %v", err)
	}
}
