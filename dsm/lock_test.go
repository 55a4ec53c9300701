package dsm

import (
	"context"
	"errors"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
)

// deadLock is a lock that rank 2 of three died holding, as the others have it.
func deadLock(t *testing.T) (f *fake, c []*Cluster, mine, theirs *RWMutex) {
	t.Helper()
	f = newFake(t, 3)
	c = f.joinAll()
	if err := NewMutex(c[2], "m").Lock(within(t)); err != nil {
		t.Fatal(err)
	}
	p := f.program(2)
	c[2].conn.Shutdown() // no Bye: it has died
	f.await("the end of rank 2", func() bool { return p.ended })
	return f, c, NewRWMutex(c[0], "m"), NewRWMutex(c[1], "m")
}

// wantDied checks the error of who does not get a lock that rank 2 died holding.
func wantDied(t *testing.T, what string, err error) {
	t.Helper()
	wantError(t, err, ErrOwnerDied, "rank 2", `"m" is not held`, "LockRepair")
	var died *OwnerDiedError
	if !errors.As(err, &died) || died.Rank != 2 || died.Node != -1 || died.Lock != "m" {
		t.Errorf("%s: error %#v", what, err)
	}
}

// noRepair is a repair that must not be asked for.
func noRepair(t *testing.T) func(*OwnerDiedError) error {
	return func(died *OwnerDiedError) error {
		t.Errorf("asked to repair: %v", died)
		return nil
	}
}

// TestOwnerDied: a lock whose owner died is held by nobody who does not repair, and they go on with
// an error: who waited and who comes later, writers and readers. Who repairs has the lock, and
// after it everybody can.
func TestOwnerDied(t *testing.T) {
	f := newFake(t, 3)
	c := f.joinAll()
	ctx := within(t)
	dead, mine, theirs := NewMutex(c[2], "m"), NewRWMutex(c[0], "m"), NewRWMutex(c[1], "m")
	if err := dead.Lock(ctx); err != nil {
		t.Fatal(err)
	}
	lock, rlock := make(chan error), make(chan error)
	go func() { lock <- mine.Lock(ctx) }()
	go func() { rlock <- theirs.RLock(ctx) }()
	f.awaitCalls(attach.OpAcquire, 3)
	c[2].conn.Shutdown() // no Bye: it has died
	wantDied(t, "Lock that waited", <-lock)
	wantDied(t, "RLock that waited", <-rlock)
	wantDied(t, "Lock", mine.Lock(ctx))
	wantDied(t, "RLock", theirs.RLock(ctx))
	for _, try := range []func(context.Context) (bool, error){mine.TryLock, theirs.TryRLock} {
		held, err := try(ctx)
		if wantDied(t, "TryLock", err); held {
			t.Error("a try has the lock, and an error")
		}
	}
	for _, err := range []error{mine.Unlock(), mine.RUnlock(), theirs.Unlock(), theirs.RUnlock()} {
		wantError(t, err, ErrNotHeld)
	}

	repairs := 0
	if err := theirs.LockRepair(ctx, func(died *OwnerDiedError) error {
		repairs++
		if died.Rank != 2 || died.Node != -1 || died.Lock != "m" {
			t.Errorf("repair after %#v", died)
		}
		if held, err := mine.TryLock(ctx); held || err != nil {
			t.Errorf("beside who repairs: %v, %v", held, err)
		}
		return nil
	}); err != nil || repairs != 1 {
		t.Fatalf("repaired %d times: %v", repairs, err)
	}
	go func() { lock <- mine.Lock(ctx) }()
	f.awaitCalls(attach.OpAcquire, 6)
	if err := theirs.Unlock(); err != nil {
		t.Errorf("the lock was not held: %v", err)
	}
	if err := errors.Join(<-lock, mine.Unlock(), theirs.RLock(ctx), theirs.RUnlock()); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	if err := errors.Join(mine.LockRepair(ctx, noRepair(t)), mine.Unlock()); err != nil {
		t.Error(err)
	}
}

// TestRepairFails: if it returns an error, or panics, the lock is not held, and as unrepaired as
// before.
func TestRepairFails(t *testing.T) {
	_, _, mine, theirs := deadLock(t)
	ctx := within(t)
	cause := errors.New("beyond repair")
	wantError(t, mine.LockRepair(ctx, func(*OwnerDiedError) error { return cause }), cause, `LockRepair "m": repair`)
	wantError(t, mine.Unlock(), ErrNotHeld)
	wantDied(t, "Lock", theirs.Lock(ctx))
	func() {
		defer func() {
			if what := recover(); what != "broken" {
				t.Errorf("recovered %v", what)
			}
		}()
		_ = mine.LockRepair(ctx, func(*OwnerDiedError) error { panic("broken") })
	}()
	wantError(t, mine.Unlock(), ErrNotHeld)
	wantDied(t, "RLock", mine.RLock(ctx))
	passedOn := mine.LockRepair(ctx, func(died *OwnerDiedError) error { return died })
	wantError(t, passedOn, ErrOwnerDied, "repair: ")
	if err := errors.Join(theirs.LockRepair(ctx, func(*OwnerDiedError) error { return nil }), theirs.Unlock(), mine.Lock(ctx)); err != nil {
		t.Errorf("after a repair: %v", err)
	}
}

// TestRepairerDies: then the next one repairs, and is told of it.
func TestRepairerDies(t *testing.T) {
	f, c, mine, theirs := deadLock(t)
	ctx := within(t)
	p := f.program(1)
	err := theirs.LockRepair(ctx, func(*OwnerDiedError) error {
		c[1].conn.Shutdown()
		f.await("the end of rank 1", func() bool { return p.ended })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var told *OwnerDiedError
	if err := mine.LockRepair(ctx, func(died *OwnerDiedError) error { told = died; return nil }); err != nil || told == nil || told.Rank != 1 {
		t.Errorf("the next one is told %v, error %v", told, err)
	}
}

// TestRepairCanceled: who waits to repair can give up, as from Lock.
func TestRepairCanceled(t *testing.T) {
	f := newFake(t, 2)
	c := f.joinAll()
	mine, theirs := NewMutex(c[0], "m"), NewMutex(c[1], "m")
	if err := theirs.Lock(within(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(within(t))
	got := make(chan error)
	go func() { got <- mine.LockRepair(ctx, noRepair(t)) }()
	f.awaitCalls(attach.OpRepair, 1)
	cancel()
	wantError(t, <-got, context.Canceled, `LockRepair "m"`, "waited ")
	wantError(t, mine.Unlock(), ErrNotHeld)
	wantError(t, mine.LockRepair(ctx, noRepair(t)), context.Canceled)
}

// TestTryLock: it has the lock or not, and does not wait for who has it. The fake takes ranks of
// the same parity for those of one node.
func TestTryLock(t *testing.T) {
	f := newFake(t, 3)
	c := f.joinAll()
	ctx := within(t)
	mine, beside, elsewhere := NewRWMutex(c[0], "m"), NewRWMutex(c[2], "m"), NewRWMutex(c[1], "m")
	try := func(what string, take func(context.Context) (bool, error), want bool) {
		t.Helper()
		if got, err := take(ctx); got != want || err != nil {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	try("a free lock", mine.TryLock, true)
	before := time.Now()
	try("one that is held here", mine.TryLock, false)
	try("one that is held beside", beside.TryLock, false)
	try("one that is held beside", beside.TryRLock, false)
	try("one that is held elsewhere", elsewhere.TryLock, false)
	try("one that is held elsewhere", elsewhere.TryRLock, false)
	if took := time.Since(before); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	if n := f.count(attach.OpCancel); n < 2 { // more where an answer took long
		t.Errorf("%d cancels, want those of the two that had to ask elsewhere", n)
	}
	if err := mine.Unlock(); err != nil {
		t.Error(err)
	}
	try("a free lock", elsewhere.TryRLock, true)
	try("one that is read", beside.TryRLock, true)
	try("one that is read", mine.TryLock, false)
	if err := errors.Join(elsewhere.RUnlock(), beside.RUnlock()); err != nil {
		t.Error(err)
	}
	try("a free lock", beside.TryLock, true)
	if err := beside.Unlock(); err != nil {
		t.Error(err)
	}
	wantError(t, mine.Unlock(), ErrNotHeld)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if held, err := mine.TryLock(ended); held || !errors.Is(err, context.Canceled) {
		t.Errorf("when it is too late: %v, %v", held, err)
	}
	c[0].Close()
	held, err := mine.TryLock(ctx)
	if wantError(t, err, ErrClosed, `TryLock "m"`); held {
		t.Error("a lock is held after Close")
	}
}

// TestTryLockCanceled: ctx's end is an error, other than that the lock is held.
func TestTryLockCanceled(t *testing.T) {
	f := newFake(t, 1, waitsForCancel(attach.OpTry, attach.StatusCanceled))
	m := NewMutex(f.join(), "m")
	ctx, cancel := context.WithCancel(within(t))
	if held, err := m.TryLock(ctx); held || err != nil {
		t.Errorf("a lock of which nothing is heard: %v, %v", held, err)
	}
	short, cancelShort := context.WithTimeout(ctx, TryPatience/10)
	defer cancelShort()
	if held, err := m.TryLock(short); held || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("when its own time is over before: %v, %v", held, err)
	}
	cancel()
	if held, err := m.TryLock(ctx); held || !errors.Is(err, context.Canceled) {
		t.Errorf("when it is canceled: %v, %v", held, err)
	}
}

// TestTryLockTooLate: the lock is granted while the cancellation is on its way, so it is held.
func TestTryLockTooLate(t *testing.T) {
	f := newFake(t, 1, waitsForCancel(attach.OpTry, attach.StatusOK))
	m := NewMutex(f.join(), "m")
	if held, err := m.TryLock(within(t)); !held || err != nil {
		t.Errorf("TryLock: %v, %v", held, err)
	}
	if err := m.Unlock(); err != nil {
		t.Error(err)
	}
}

// TestTryLockByWord: a published lock is tried, and found held, without a call. What the daemon has
// recalled is held too, until it is given back.
func TestTryLockByWord(t *testing.T) {
	f := newFake(t, 1)
	c := f.join()
	ctx := within(t)
	m, rw := NewMutex(c, "m"), NewRWMutex(c, "m")
	page := f.publish(m)
	if held, err := m.TryLock(ctx); !held || err != nil {
		t.Fatalf("a free lock: %v, %v", held, err)
	}
	refused := func(when string) {
		t.Helper()
		for _, try := range []func(context.Context) (bool, error){m.TryLock, rw.TryLock, rw.TryRLock} {
			if held, err := try(ctx); held || err != nil {
				t.Errorf("%s: %v, %v", when, held, err)
			}
		}
	}
	refused("held")
	if found := page.Recall(m.l.hash); found != controlpage.FoundHeld {
		t.Errorf("the lock is found %d while it is held", found)
	}
	refused("recalled")
	if n := f.count(attach.OpTry); n != 0 {
		t.Errorf("%d calls", n)
	}
	if err := m.Unlock(); err != nil {
		t.Fatal(err)
	}
	if held, err := m.TryLock(ctx); !held || err != nil || f.count(attach.OpTry) != 1 {
		t.Errorf("a lock that was recalled: %v, %v, %d calls", held, err, f.count(attach.OpTry))
	}
}

// TestLockByWordAllocatesNothing: the fast path is an atomic operation, for Lock, LockRepair and
// TryLock alike.
func TestLockByWordAllocatesNothing(t *testing.T) {
	f := newFake(t, 1)
	ctx := context.Background()
	m := NewMutex(f.join(), "m")
	f.publish(m)
	repair := noRepair(t)
	for name, take := range map[string]func() error{
		"Lock":       func() error { return m.Lock(ctx) },
		"LockRepair": func() error { return m.LockRepair(ctx, repair) },
		"TryLock": func() error {
			_, err := m.TryLock(ctx)
			return err
		},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := errors.Join(take(), m.Unlock()); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s and Unlock allocate %v times", name, n)
		}
	}
}
