package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/attach"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// expectation is a call that must fail: with this error, and with these words in its text.
type expectation struct {
	err   error
	want  error
	words []string
}

func checkAll(list []expectation) error {
	var wrong []error
	for i, e := range list {
		if !errors.Is(e.err, e.want) {
			wrong = append(wrong, fmt.Errorf("bad use %d: the error is %v, want %v", i, e.err, e.want))
			continue
		}
		for _, word := range e.words {
			if !strings.Contains(e.err.Error(), word) {
				wrong = append(wrong, fmt.Errorf("bad use %d: %q does not name %q", i, e.err, word))
			}
		}
	}
	return errors.Join(wrong...)
}

// refused is the error of an Alloc that must fail.
func refused[T any](c *dsm.Cluster, name string, n int) error {
	s, err := dsm.Alloc[T](context.Background(), c, name, n)
	if err == nil {
		return fmt.Errorf("Alloc of %d %T succeeded", len(s), s)
	}
	return err
}

type (
	body struct{ Position, Velocity [3]float64 }
	tag  struct {
		Key   uint32
		Label string
	}
	tagged struct {
		Body body
		Tags [2]tag
	}
)

// misuser does what must not be done, against a real daemon, on two ranks.
var misuser = testcluster.Define("misuser", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	mine := func(rank int, n int) int { // n on one rank, another length on the other
		if c.Rank() == rank {
			return n
		}
		return n + 1
	}
	bodies, err := dsm.Alloc[body](s.Ctx, c, "bodies", 10)
	if err == nil && c.Rank() == 0 {
		_, err = dsm.Alloc[int32](s.Ctx, c, "numbers", mine(0, 100))
	}
	if err := errors.Join(err, c.Barrier(s.Ctx)); err != nil {
		return err
	}
	list := []expectation{
		{refused[tagged](c, "tagged", 3), dsm.ErrType, []string{"Tags[].Label", "string"}},
		{refused[[]int](c, "slices", 3), dsm.ErrType, []string{"slice"}},
		{refused[map[int]int](c, "maps", 3), dsm.ErrType, []string{"map"}},
		{refused[any](c, "anything", 3), dsm.ErrType, []string{"interface"}},
		{refused[*body](c, "pointers", 3), dsm.ErrType, []string{"pointer"}},
		{refused[body](c, "bodies", 11), dsm.ErrMismatch, []string{"bodies", "10", "11"}},
		{refused[int64](c, "bodies", 10), dsm.ErrMismatch, []string{"int64"}},
		{refused[byte](c, "too large", 1<<30), dsm.ErrNoSpace, []string{"region"}},
		{refused[byte](c, "negative", -1), dsm.ErrNoSpace, []string{"-1"}},
		{refused[[1 << 20]uint64](c, "overflow", 1<<50), dsm.ErrNoSpace, nil},
		{dsm.Free(s.Ctx, c, bodies[1:]), dsm.ErrNotShared, nil},
		{dsm.Free(s.Ctx, c, make([]int, 5)), dsm.ErrNotShared, nil},
		{dsm.Prefetch(s.Ctx, c, make([]int, 5), dsm.Read), dsm.ErrNotShared, nil},
		{dsm.NewMutex(c, "nobody's").Unlock(), dsm.ErrNotHeld, []string{"nobody's"}},
	}
	if c.Rank() == 1 {
		list = append(list,
			expectation{refused[int32](c, "numbers", mine(0, 100)), dsm.ErrMismatch, []string{"numbers", "100", "101"}},
			expectation{refused[uint32](c, "numbers", 100), dsm.ErrMismatch, []string{"int32", "uint32"}})
	}
	if err := checkAll(list); err != nil {
		return err
	}
	// The region of 1 MiB has no room for this twice, and has it again when the first is freed.
	half, err := dsm.Alloc[byte](s.Ctx, c, "half", 600<<10)
	if err != nil {
		return err
	}
	if err := checkAll([]expectation{{refused[byte](c, "other half", 600<<10), dsm.ErrNoSpace, []string{"free"}}}); err != nil {
		return err
	}
	if err := errors.Join(c.Barrier(s.Ctx), dsm.Free(s.Ctx, c, half), c.Barrier(s.Ctx)); err != nil {
		return err
	}
	if _, err := dsm.Alloc[byte](s.Ctx, c, "other half", 600<<10); err != nil {
		return fmt.Errorf("after the free: %w", err)
	}
	if err := errors.Join(c.Barrier(s.Ctx), c.Close()); err != nil {
		return err
	}
	_, reduced := dsm.Reduce(s.Ctx, c, "sum", 1, dsm.Sum)
	_, stats := c.Stats(s.Ctx)
	return checkAll([]expectation{
		{refused[int](c, "late", 1), dsm.ErrClosed, nil}, {dsm.Free(s.Ctx, c, bodies), dsm.ErrClosed, nil},
		{c.Barrier(s.Ctx), dsm.ErrClosed, nil}, {dsm.NewMutex(c, "m").Lock(s.Ctx), dsm.ErrClosed, nil},
		{dsm.NewMutex(c, "m").Unlock(), dsm.ErrClosed, nil}, {reduced, dsm.ErrClosed, nil}, {stats, dsm.ErrClosed, nil},
		{dsm.Prefetch(s.Ctx, c, bodies, dsm.Read), dsm.ErrClosed, nil}, {c.Close(), dsm.ErrClosed, nil},
	})
})

// TestBadUse checks that each kind of bad use gets an error that says what and where.
func TestBadUse(t *testing.T) {
	uffdtest.Require(t)
	testcluster.Job{Nodes: 2, Flags: []string{"--region", "1MiB"}, Program: misuser}.Succeed(t)
}

// stranger tries to join, and says how that went.
var stranger = testcluster.Define("stranger", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	for name, want := range map[string]error{"no daemon": dsm.ErrNoDaemon, "refused": dsm.ErrRefused} {
		if errors.Is(err, want) {
			s.Say("%s", name)
			return nil
		}
	}
	if err == nil {
		defer c.Close()
	}
	return fmt.Errorf("Join returned %v", err)
})

// TestJoinFails checks what a program hears when nobody listens, its rank is taken, or there is no
// such rank.
func TestJoinFails(t *testing.T) {
	t.Parallel()
	c := serve(t, 1, 2)
	first := join(t, c, 0, 0, 2)
	c.Program(t, stranger, 0, 0).Expect(t, "refused")
	c.Program(t, stranger, 0, 2).Expect(t, "refused")
	first.Do(t, "1", "counter programs")
	c.Daemons[0].Kill(t)
	c.Program(t, stranger, 0, 1).Expect(t, "no daemon")
}

// knocker tries to join many times where it is not wanted.
var knocker = testcluster.Define("knocker", func(s *testcluster.Self) error {
	for range 200 {
		if _, err := dsm.Join(s.Ctx); !errors.Is(err, dsm.ErrRefused) || !strings.Contains(err.Error(), "go away") {
			return fmt.Errorf("Join returned %v, want the reason of the refusal", err)
		}
	}
	return nil
})

// TestTurnedAway has a program greet a daemon that has refused it already and closed the
// connection: whether or not the greeting can still be sent, the program says what the reason was.
func TestTurnedAway(t *testing.T) {
	c := serve(t, 1, 1)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket(0) + "-doorman", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = conn.Write(attach.AppendRefuse(nil, &attach.Refuse{Code: attach.RefuseOther, Reason: "go away"}))
			conn.Close()
		}
	}()
	c.ProgramAt(t, knocker, l.Addr().String(), 0).Succeed(t)
}

// TestRanksAreDealt starts programs that were given no rank, all at once: each gets one of its own.
func TestRanksAreDealt(t *testing.T) {
	t.Parallel()
	const programs = 6
	c := serve(t, 1, programs)
	var all []*testcluster.Process
	for range programs {
		all = append(all, c.Program(t, console, 0, testcluster.AnyRank))
	}
	ranks := map[string]bool{}
	for _, p := range all {
		ranks[p.Hear(t)] = true
	}
	if len(ranks) != programs {
		t.Errorf("%d programs are called %v", programs, ranks)
	}
	for _, p := range all {
		p.Succeed(t)
	}
}

// TestRegionTooLarge checks that a region beyond what addresses allow is refused before anything
// starts.
func TestRegionTooLarge(t *testing.T) {
	job := testcluster.Job{Nodes: 1, Flags: []string{"--region", "17TiB"}, Program: console}.Run(t)
	if status := job.Wait(t); status != 64 || !strings.Contains(job.Errors(), "16TiB") {
		t.Errorf("status %d, %q; want 64 and the limit", status, job.Errors())
	}
}

// TestFreedMemoryIsZero allocates the same addresses again: they are zeros everywhere, whoever
// wrote there before. The region has room for one such allocation, so the last Free must not return
// before the memory is there again.
func TestFreedMemoryIsZero(t *testing.T) {
	c := serve(t, 2, 2, "--region", "256KiB")
	a, b := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	both := []*testcluster.Process{a, b}
	var address string
	for round := range 12 {
		// Owned by one, shared by both, or by the other; 40 pages, so that both nodes are homes.
		for _, p := range both {
			p.Do(t, "ok", "alloc r%d 40", round)
			p.Do(t, "ok", "zero r%d", round)
		}
		if at := a.Ask(t, "address r%d", round); address == "" {
			address = at
		} else if at != address {
			t.Fatalf("round %d: the memory is at %s, before it was at %s: nothing is reused", round, at, address)
		}
		both[round%2].Do(t, "ok", "fill r%d 100", round)
		if round%3 > 0 {
			both[1-round%2].Do(t, "ok", "check r%d 100", round)
		}
		for _, p := range both {
			p.Do(t, "ok", "free r%d", round)
		}
	}
	a.Succeed(t)
	b.Succeed(t)
}

// TestFreeForgets checks that daemons keep nothing of memory that was freed, nor of programs that
// have left.
func TestFreeForgets(t *testing.T) {
	c := serve(t, 2, 2)
	a, b := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	both := []*testcluster.Process{a, b}
	known := func() [2]uint64 { return [2]uint64{counter(t, a, "known_objects"), counter(t, b, "known_objects")} }
	var before [2]uint64
	testcluster.Eventually(t, "the daemons come to rest", func() bool {
		last := before
		before = known()
		return last == before
	})
	for round := range 8 {
		for _, p := range both {
			p.Do(t, "ok", "alloc loop%d 40", round)
			p.Do(t, "ok", "fill loop%d 1", round)
		}
		if now := known(); round == 0 && now[0]+now[1] < before[0]+before[1]+40 {
			t.Fatalf("with 40 pages in use the daemons know %v objects, before it were %v: the counter does not count", now, before)
		}
		for _, p := range both {
			p.Do(t, "ok", "free loop%d", round)
		}
	}
	testcluster.Eventually(t, fmt.Sprintf("the daemons know no more than the %v objects of before", before), func() bool {
		now := known()
		return now[0] <= before[0] && now[1] <= before[1]
	})
	a.Succeed(t)
	b.Succeed(t)
}

// TestCanceledAlloc stops the daemon that keeps the names while an allocation waits for it. When
// the allocation was given up, repeated and freed, the name and its memory are free: the region has
// room for nothing beside them.
func TestCanceledAlloc(t *testing.T) {
	t.Parallel()
	c := serve(t, 2, 2, "--region", "256KiB")
	far, near := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	c.Daemons[0].Stop(t)
	near.Do(t, "too late", "alloc data 40 30")
	c.Daemons[0].Signal(syscall.SIGCONT)
	near.Do(t, "ok", "alloc data 40")
	near.Do(t, "ok", "free data")
	far.Do(t, "ok", "alloc other 40")
	far.Succeed(t)
	near.Succeed(t)
}

// TestPrefetch checks that pages which were prefetched are touched without a fault.
func TestPrefetch(t *testing.T) {
	c := serve(t, 2, 2)
	far, near := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	for _, p := range []*testcluster.Process{far, near} {
		p.Do(t, "ok", "alloc data 600") // more than a prefetch has on its way at a time
	}
	far.Do(t, "ok", "fill data 9")
	faults := func() (sum uint64) {
		for _, kind := range []string{"faults_read", "faults_write", "faults_upgrade", "faults_map"} {
			sum += counter(t, near, kind)
		}
		return sum
	}
	before := faults()
	near.Do(t, "ok", "prefetch data %d", dsm.Read)
	near.Do(t, "ok", "check data 9")
	if n := faults() - before; n != 0 {
		t.Errorf("%d faults in reading memory that was prefetched for reading", n)
	}
	near.Do(t, "ok", "prefetch data %d", dsm.Write)
	near.Do(t, "ok", "fill data 11")
	if n := faults() - before; n != 0 {
		t.Errorf("%d faults in writing memory that was prefetched for writing", n)
	}
	far.Do(t, "ok", "check data 11")
	far.Succeed(t)
	near.Succeed(t)
}

// TestPrefetchOfWhatIsHere: the daemon is asked only if some page is not here for what is wanted.
// With sigsegv it always is.
func TestPrefetchOfWhatIsHere(t *testing.T) {
	withEachTrap(t, func(t *testing.T, trap string) {
		c := serve(t, 2, 2, "--trap", trap)
		far, near := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
		for _, p := range []*testcluster.Process{far, near} {
			p.Do(t, "ok", "alloc data 600")
		}
		asks := func(want uint64, access dsm.Access) {
			t.Helper()
			before := counter(t, near, "prefetch_calls")
			near.Do(t, "ok", "prefetch data %d 60000", access)
			if trap == "sigsegv" {
				want = 1
			}
			if asked := counter(t, near, "prefetch_calls") - before; asked != want {
				t.Errorf("the daemon was asked %d times for access %d, want %d", asked, access, want)
			}
		}
		far.Do(t, "ok", "fill data 9")
		asks(1, dsm.Read)
		near.Do(t, "ok", "check data 9")
		asks(0, dsm.Read)
		asks(1, dsm.Write)
		asks(0, dsm.Write)
		near.Do(t, "ok", "check data 9")
		far.Do(t, "ok", "check data 9")
		asks(0, dsm.Read)
		asks(1, dsm.Write)
		far.Succeed(t)
		near.Succeed(t)
	})
}

// TestPrefetchEndsWithContext stops the daemon that has the pages, so that a prefetch can only
// wait.
func TestPrefetchEndsWithContext(t *testing.T) {
	c := serve(t, 2, 2)
	far, near := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	for _, p := range []*testcluster.Process{far, near} {
		p.Do(t, "ok", "alloc data 40")
	}
	far.Do(t, "ok", "fill data 9")
	c.Daemons[0].Stop(t)
	near.Do(t, "too late", "prefetch data %d 30", dsm.Read)
	c.Daemons[0].Signal(syscall.SIGCONT)
	near.Do(t, "ok", "check data 9")
	far.Succeed(t)
	near.Succeed(t)
}
