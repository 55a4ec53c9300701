package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// impatient takes locks with contexts that end at any moment, from several goroutines, until it is
// told to stop. A lock that was taken protects a word that is not atomic; whether it was taken must
// be known for sure.
var impatient = testcluster.Define("impatient", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "guarded", c.PageBytes()/8)
	if err != nil {
		return err
	}
	var over atomic.Bool
	var taken, late atomic.Uint64
	var wrong atomic.Value
	var begun, all sync.WaitGroup
	begun.Add(hammers)
	for range hammers {
		all.Go(func() {
			for i := 0; !over.Load(); i++ {
				n := rand.IntN(2)
				took, err := tryLock(s.Ctx, dsm.NewRWMutex(c, fmt.Sprint("impatient", n)), &words[n])
				switch {
				case err != nil:
					wrong.Store(err)
					over.Store(true)
				case took:
					taken.Add(1)
				default:
					late.Add(1)
				}
				if i == 0 {
					begun.Done()
				}
			}
		})
	}
	begun.Wait()
	s.Say("begun")
	if err := s.Await("stop"); err != nil {
		return err
	}
	over.Store(true)
	all.Wait()
	s.Say("taken %d late %d", taken.Load(), late.Load())
	if err, ok := wrong.Load().(error); ok {
		return err
	}
	return c.Close()
})

// tryLock increments a word under a lock, if it gets the lock in time.
func tryLock(ctx context.Context, lock *dsm.RWMutex, word *uint64) (took bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(300))*time.Microsecond)
	defer cancel()
	write := rand.IntN(3) > 0
	acquire, release := lock.RLock, lock.RUnlock
	if write {
		acquire, release = func(ctx context.Context) error {
			return lock.LockRepair(ctx, func(*dsm.OwnerDiedError) error { return nil })
		}, lock.Unlock
	}
	switch err := acquire(ctx); {
	case errors.Is(err, context.DeadlineExceeded), !write && errors.Is(err, dsm.ErrOwnerDied):
		return false, nil
	case err != nil:
		return false, err
	}
	before := atomic.LoadUint64(word)
	if write {
		atomic.StoreUint64(word, before+1)
		before++
	}
	for range 20 {
		if now := atomic.LoadUint64(word); now != before {
			return true, errors.Join(fmt.Errorf("the word went from %d to %d under the lock", before, now), release())
		}
	}
	return true, release()
}

// TestImpatience has programs on two nodes give up waiting for locks all the time, while others of
// them are killed. In the end the locks are free.
func TestImpatience(t *testing.T) {
	c := serve(t, 2, 5)
	stay := outlive(t, c, impatient, "begun", 1, 0)
	for _, p := range stay {
		if answer := p.Ask(t, "stop"); strings.HasPrefix(answer, "taken 0 ") || strings.HasSuffix(answer, " 0") {
			t.Errorf("a program has %s: locks were to be taken, and to be late for", answer)
		}
		p.Succeed(t)
	}
	last := join(t, c, 0, 4, 5)
	for n := range 2 {
		if answer := last.Ask(t, "repair impatient%d", n); answer != "ok" && answer != "repaired after rank 0" {
			t.Errorf("a lock that nobody holds: %q", answer)
		}
	}
	last.Succeed(t)
}

// allocator allocates, uses and frees memory of changing sizes, from several goroutines, until it
// is told to stop.
var allocator = testcluster.Define("allocator", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	var over atomic.Bool
	var wrong atomic.Value
	var begun, all sync.WaitGroup
	begun.Add(hammers)
	for g := range hammers {
		all.Go(func() {
			for round := 0; !over.Load(); round++ {
				// Names are shared by all programs, so most allocations have several users who come
				// and go.
				if err := useMemory(s.Ctx, c, fmt.Sprintf("memory %d of %d", round%5, g), 1+g*7+round%5*3); err != nil {
					wrong.Store(err)
					over.Store(true)
				}
				if round == 0 {
					begun.Done()
				}
			}
		})
	}
	begun.Wait()
	s.Say("begun")
	err = s.Await("stop")
	over.Store(true)
	all.Wait()
	if wrong, ok := wrong.Load().(error); ok {
		err = errors.Join(err, wrong)
	}
	return errors.Join(err, c.Close())
})

// useMemory allocates memory, marks this rank's word on each page, and frees it.
func useMemory(ctx context.Context, c *dsm.Cluster, name string, pages int) error {
	words, err := dsm.Alloc[uint64](ctx, c, name, pages*c.PageBytes()/8)
	if err != nil {
		return err
	}
	for page := 0; page < len(words); page += c.PageBytes() / 8 {
		own := &words[page+c.Rank()]
		if v := atomic.LoadUint64(own); v != 0 && v != uint64(c.Rank()) {
			return fmt.Errorf("%s: the word of rank %d is %d", name, c.Rank(), v)
		}
		atomic.StoreUint64(own, uint64(c.Rank()))
	}
	return dsm.Free(ctx, c, words)
}

// TestAllocators has programs allocate and free under the same names all the time, while some are
// killed. When the last has left, the daemons know nothing of all the memory.
func TestAllocators(t *testing.T) {
	c := serve(t, 2, 6)
	witnesses := [2]*testcluster.Process{join(t, c, 0, 0, 6), join(t, c, 1, 1, 6)}
	stay := outlive(t, c, allocator, "begun", 2, 5)
	for _, p := range stay {
		p.Say(t, "stop")
		p.Succeed(t)
	}
	for i, w := range witnesses {
		testcluster.Eventually(t, fmt.Sprintf("daemon %d knows no pages", i), func() bool { return counter(t, w, "known_objects") == 0 })
		w.Succeed(t)
	}
}

// TestStoppedProgram stops a program with SIGSTOP in the middle of a fight for pages. With
// userfaultfd nobody has to wait for it. With sigsegv its own agent takes its pages away, so those
// who want them wait until it goes on; nothing is lost.
func TestStoppedProgram(t *testing.T) {
	c := serve(t, 2, 3)
	var all []*testcluster.Process
	for rank := range 3 {
		all = append(all, c.Program(t, hammer, rank%2, rank))
	}
	for _, p := range all {
		p.Expect(t, "hammering")
	}
	all[0].Stop(t)
	for _, p := range all[1:] {
		p.Say(t, "stop")
	}
	if !strings.Contains(c.Daemons[0].Errors(), `"trap": "sigsegv"`) {
		for _, p := range all[1:] {
			p.Expect(t, "done") // after the faults that were under way
		}
		all[0].Signal(syscall.SIGCONT)
	} else {
		all[0].Signal(syscall.SIGCONT)
		for _, p := range all[1:] {
			p.Expect(t, "done")
		}
	}
	all[0].Do(t, "done", "stop")
	for _, p := range all {
		p.Say(t, "count")
		p.Succeed(t)
	}
}

// giant uses both ends of the largest region.
var giant = testcluster.Define("giant", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	all, err := dsm.Alloc[uint64](s.Ctx, c, "everything", 16<<40/8)
	if err != nil {
		return err
	}
	for i, place := range []int{0, len(all) / 3, len(all) - 1} {
		atomic.AddUint64(&all[place], uint64(i+1))
		if err := c.Barrier(s.Ctx); err != nil {
			return err
		}
		if v, want := atomic.LoadUint64(&all[place]), uint64(c.Size()*(i+1)); v != want {
			return fmt.Errorf("word %d is %d, want %d", place, v, want)
		}
	}
	return errors.Join(c.Barrier(s.Ctx), c.Close())
})

// TestLargestRegion allocates 16 TiB, and uses three words of it: more than there is memory for, so
// the nodes have no bound.
func TestLargestRegion(t *testing.T) {
	uffdtest.Require(t)
	testcluster.Job{Nodes: 2, Flags: []string{"--region", "16TiB", "--memory", "unlimited"}, Program: giant}.Succeed(t)
}
