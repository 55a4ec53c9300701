package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"dsmd/dsm"
)

const (
	// doors is how many locks of an era are fought for.
	doors = 3
	// holdAtMost is how long a lock is held.
	holdAtMost = 5 * time.Millisecond
	// patienceAtMost is for how long a client waits for a lock that does not wait as long as it
	// takes.
	patienceAtMost = 300 * time.Millisecond
)

// locksWorkload takes locks, some with a limit of its patience. Whoever has one takes the next
// fencing number in shared memory, and finds it again when it gives the lock back.
var locksWorkload = define(&Workload{Name: "locks", Threads: 2, work: func(m *member) (job, error) {
	fences, err := newSpread(m, "fences")
	w := locks{m, fences}
	return job{w.step, w.finish}, err
}})

type locks struct {
	m      *member
	fences spread
}

// step takes a lock, holds it for a while and gives it back.
func (w locks) step(thread int, r *rand.Rand) error {
	patience := time.Duration(0)
	if r.IntN(4) == 0 {
		patience = 1 + time.Duration(r.Int64N(int64(patienceAtMost)))
	}
	return w.pass(thread, w.m.era(), r.IntN(doors), patience, time.Duration(r.Int64N(int64(holdAtMost))))
}

// pass takes a lock and gives it back. With a patience it may also go without.
func (w locks) pass(thread, era, door int, patience, hold time.Duration) error {
	lock, name := dsm.NewMutex(w.m.c, fmt.Sprintf("door %d/%d", era, door)), fmt.Sprintf("lock/%d/%d", era, door)
	held := false
	if err := w.m.record.do(thread, Operation{Place: name, Do: acquire}, func() (result Result, err error) {
		held, result, err = w.acquire(lock, patience)
		return result, err
	}); err != nil || !held {
		return err
	}
	if err := w.fence(thread, era, door, hold); err != nil {
		return fmt.Errorf("at %s: %w", name, err)
	}
	return w.m.record.do(thread, Operation{Place: name, Do: release}, func() (Result, error) { return Result{}, lock.Unlock() })
}

// fence takes the next fencing number of a lock that is held, and finds it again after a while.
// There is no number any more if the page is lost.
func (w locks) fence(thread, era, door int, hold time.Duration) error {
	fence := w.fences.word(era, door)
	var number uint64
	if err := w.m.record.do(thread, Operation{Place: fmt.Sprintf("sum/fence/%d/%d", era, door), Do: add}, func() (Result, error) {
		err := dsm.Guard(func() {
			number = *fence + 1
			*fence = number
		})
		return Result{Got: number}, err
	}); err != nil {
		return err
	}
	time.Sleep(hold)
	got := number
	if err := dsm.Guard(func() { got = *fence }); err != nil && !errors.Is(err, dsm.ErrPageLost) {
		return err
	}
	if got != number {
		return fmt.Errorf("%w: it found number %d, and it has %d itself", errTwoHolders, got, number)
	}
	return nil
}

// errTwoHolders is how a program ends that is not alone with its lock.
var errTwoHolders = errors.New("somebody else was given the lock that this client holds")

// acquire takes a lock within a patience; 0 is without limit.
func (w locks) acquire(lock *dsm.Mutex, patience time.Duration) (held bool, result Result, err error) {
	ctx, cancel := w.m.ctx, context.CancelFunc(func() {})
	if patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	defer cancel()
	err = lock.LockRepair(ctx, func(died *dsm.OwnerDiedError) error {
		result = Result{Got: fromDead, Dead: died.Rank}
		if died.Node >= 0 {
			result = Result{Got: fromLost, Dead: died.Node}
		}
		return nil
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return false, result, fmt.Errorf("%w: %w", errVoid, err)
	}
	return err == nil, result, err
}

// finish passes each door of this era once more: a lock that nobody gave back would be found now.
func (w locks) finish() error {
	for door := range doors {
		if err := w.pass(lastThread, w.m.era(), door, 0, 0); err != nil {
			return err
		}
	}
	return nil
}
