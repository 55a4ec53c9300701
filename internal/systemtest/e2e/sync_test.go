package e2e

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestContextsEndWaits has each kind of wait end with its context, and then succeed.
func TestContextsEndWaits(t *testing.T) {
	c := serve(t, 2, 2)
	a, b := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	a.Do(t, "ok", "lock door")
	for _, wait := range []string{"lock door 20", "rlock door 20", "barrier all 20", "sum things 20"} {
		b.Do(t, "too late", "%s", wait)
	}
	a.Do(t, "ok", "unlock door")
	b.Do(t, "ok", "lock door")
	b.Do(t, "ok", "unlock door")
	for _, wait := range []struct{ line, answer string }{{"barrier", "ok"}, {"sum things", "101"}} {
		b.Say(t, "%s", wait.line)
		a.Do(t, wait.answer, "%s", wait.line) // the arrival that was taken back does not count
		b.Expect(t, wait.answer)
	}
	a.Succeed(t)
	b.Succeed(t)
}

// TestReadersAndWriters checks who gets a reader-writer lock beside whom, on nodes and on programs
// of one node.
func TestReadersAndWriters(t *testing.T) {
	c := serve(t, 2, 3)
	near, far, same := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 0, 2, 3)
	for _, p := range []*testcluster.Process{near, far, same} {
		p.Do(t, "ok", "rlock door") // all at once
	}
	for _, p := range []*testcluster.Process{near, same} {
		p.Do(t, "ok", "runlock door")
		p.Do(t, "too late", "lock door 20")
	}
	far.Do(t, "ok", "runlock door")
	same.Do(t, "ok", "lock door")
	for _, p := range []*testcluster.Process{near, far} {
		p.Do(t, "too late", "rlock door 20")
		p.Do(t, "too late", "lock door 20")
	}
	same.Do(t, "ok", "unlock door")
	for _, p := range []*testcluster.Process{far, same, near} {
		p.Do(t, "ok", "lock door")
		p.Do(t, "ok", "unlock door")
		p.Succeed(t)
	}
}

// TestTryLock has programs of one node and of two try locks that are free or held, here and
// elsewhere, for both accesses. A message there and back takes less than the patience of a try, if
// the machine is not too busy: so a lock that is free may be refused, and comes all the same.
func TestTryLock(t *testing.T) {
	c := serve(t, 2, 3)
	near, far, same := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 0, 2, 3)
	gets := func(p *testcluster.Process, try string) {
		t.Helper()
		for p.Ask(t, "%s door", try) != "true" {
		}
	}
	gets(near, "trylock")
	for _, p := range []*testcluster.Process{near, same, far} {
		p.Do(t, "false", "trylock door")
		p.Do(t, "false", "tryrlock door")
	}
	near.Do(t, "ok", "unlock door")
	for _, p := range []*testcluster.Process{far, near, same} {
		gets(p, "tryrlock") // all at once
	}
	for _, p := range []*testcluster.Process{far, near, same} {
		p.Do(t, "false", "trylock door")
	}
	for _, p := range []*testcluster.Process{far, near, same} {
		p.Do(t, "ok", "runlock door")
	}
	for range 3 {
		for _, p := range []*testcluster.Process{far, near, same} {
			gets(p, "trylock")
			p.Do(t, "ok", "unlock door")
		}
	}
	for _, p := range []*testcluster.Process{far, near, same} {
		p.Succeed(t)
	}
}

// ledger is memory that a lock protects, without atomics.
type ledger struct {
	Total   uint64
	Entries [700]uint64 // of more than one page
}

// accountant changes a ledger under a lock, and looks at it as a reader, from several goroutines. A
// reader sees all entries alike, and at the end no entry is lost.
var accountant = testcluster.Define("accountant", func(s *testcluster.Self) error {
	const goroutines, rounds = 2, 40
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	book, err := dsm.Isolate[ledger](s.Ctx, c, "book")
	if err != nil {
		return err
	}
	lock, rw := dsm.NewMutex(c, "plain"), dsm.NewRWMutex(c, "book")
	plain, err := dsm.Isolate[uint64](s.Ctx, c, "plain")
	if err != nil {
		return err
	}
	var wrong atomic.Value
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for round := range rounds {
				if err := errors.Join(account(s, rw, book, round%4 == 0), increment(s, lock, plain)); err != nil {
					wrong.Store(err)
				}
			}
		})
	}
	all.Wait()
	if err, ok := wrong.Load().(error); ok {
		return err
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	total := uint64(c.Size() * goroutines * rounds)
	if book.Total != total/4 || *plain != total {
		return fmt.Errorf("rank %d: totals of %d and %d, want %d and %d", c.Rank(), book.Total, *plain, total/4, total)
	}
	return c.Close()
})

// account writes or reads the ledger.
func account(s *testcluster.Self, lock *dsm.RWMutex, book *ledger, write bool) error {
	if write {
		if err := lock.Lock(s.Ctx); err != nil {
			return err
		}
		book.Total++
		for i := range book.Entries {
			book.Entries[i] = book.Total
		}
		return lock.Unlock()
	}
	if err := lock.RLock(s.Ctx); err != nil {
		return err
	}
	total, unlike := book.Total, 0
	for _, e := range book.Entries {
		if e != total {
			unlike++
		}
	}
	if unlike > 0 {
		return fmt.Errorf("a reader sees %d entries that are not %d: a writer is there too", unlike, total)
	}
	return lock.RUnlock()
}

func increment(s *testcluster.Self, lock *dsm.Mutex, v *uint64) error {
	if err := lock.Lock(s.Ctx); err != nil {
		return err
	}
	*v++
	return lock.Unlock()
}

// TestLocksProtectMemory changes memory under locks from several nodes and several programs of a
// node.
func TestLocksProtectMemory(t *testing.T) {
	c := serve(t, 2, 4)
	var all []*testcluster.Process
	for rank := range 4 {
		all = append(all, c.Program(t, accountant, rank%2, rank))
	}
	for _, p := range all {
		p.Succeed(t)
	}
}

// folder reduces numbers whose sum depends on the order, and prints the bits of what it got.
var folder = testcluster.Define("folder", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	v := math.Pow(-10, float64(5*c.Rank())) / 3
	for range 10 {
		sum, err := dsm.Reduce(s.Ctx, c, "sum", v, dsm.Sum)
		least, err2 := dsm.Reduce(s.Ctx, c, "least", v, dsm.Min)
		// not associative
		mixed, err3 := dsm.Reduce(s.Ctx, c, "mixed", v, func(a, b float64) float64 { return a - b/7 })
		if err := errors.Join(err, err2, err3); err != nil {
			return err
		}
		s.Say("%x %x %x", math.Float64bits(sum), math.Float64bits(least), math.Float64bits(mixed))
	}
	return c.Close()
})

// TestReductionsAgree checks that every rank gets the same bits, and those of a fold in the order
// of ranks.
func TestReductionsAgree(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	job := testcluster.Job{Nodes: 4, Program: folder}.Succeed(t)
	values := make([]float64, 4)
	for rank := range values {
		values[rank] = math.Pow(-10, float64(5*rank)) / 3
	}
	sum, least, mixed := values[0], values[0], values[0]
	for _, v := range values[1:] {
		sum, least, mixed = sum+v, min(least, v), mixed-v/7
	}
	want := fmt.Sprintf("%x %x %x", math.Float64bits(sum), math.Float64bits(least), math.Float64bits(mixed))
	if n := strings.Count(job.Output(), "] "+want+"\n"); n != 40 || strings.Count(job.Output(), "\n") != 40 {
		t.Errorf("%d of 40 lines are %q:\n%s", n, want, job.Output())
	}
}
