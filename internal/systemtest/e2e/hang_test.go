package e2e

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
	"dsmd/dsm/collective"
	"dsmd/dsm/dsync"
	"dsmd/dsm/parallel"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// hanging is a program of two ranks that hangs in the way that its argument says.
var hanging = testcluster.Define("hanging", func(s *testcluster.Self) error {
	if s.Args[0] == "ended before" && os.Getenv("DSM_RANK") == "0" {
		time.Sleep(time.Second) // so that rank 1 has left when this one joins
	}
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	phase := dsm.NewBarrier(c, "phase")
	first, second := dsm.NewMutex(c, "accounts"), dsm.NewMutex(c, "index")
	if c.Rank() == 1 {
		first, second = second, first
	}
	if s.Args[0] == "ended" { // both are here
		err = c.Barrier(s.Ctx)
	}
	switch {
	case err != nil:
	case s.Args[0] == "deadlock":
		err = errors.Join(first.Lock(s.Ctx), c.Barrier(s.Ctx), second.Lock(s.Ctx))
	case strings.HasPrefix(s.Args[0], "ended") && c.Rank() == 1:
		return c.Close()
	case s.Args[0] == "elsewhere":
		name := []string{"sum", "product"}[c.Rank()]
		_, err = dsm.Reduce(s.Ctx, c, name, 1, dsm.Sum[int])
	case s.Args[0] == "kits":
		err = hangInKits(s.Ctx, c)
	case s.Args[0] == "loop" || s.Args[0] == "tasks":
		err = hangInTeam(s.Ctx, c, phase, s.Args[0] == "loop")
	case s.Args[0] == "queues":
		err = hangInQueues(s.Ctx, c)
	case s.Args[0] == "semaphore":
		permits, e := dsync.NewSemaphore(s.Ctx, c, "permits", int64(c.Size()))
		err = errors.Join(e, permits.Acquire(s.Ctx, 1), c.Barrier(s.Ctx), permits.Acquire(s.Ctx, 1))
	default:
		err = phase.Wait(s.Ctx)
	}
	return errors.Join(err, c.Close())
})

func hangInKits(ctx context.Context, c *dsm.Cluster) error {
	if c.Rank() == 0 {
		_, err := collective.Gather(ctx, c, "parts", 0, []int{0})
		return err
	}
	counts, err := collections.NewMap[int, int](ctx, c, "counts", 1)
	if err != nil {
		return err
	}
	return counts.Combine(dsm.Sum[int]).FlushAll(ctx, c)
}

// hangInQueues has one rank wait for jobs, and the other until somebody takes what it has found.
func hangInQueues(ctx context.Context, c *dsm.Cluster) error {
	jobs, err := collections.NewQueue[int](ctx, c, "jobs", 1)
	if err != nil {
		return err
	}
	finds, err := collections.NewQueue[int](ctx, c, "finds", 1)
	if err != nil {
		return err
	}
	if c.Rank() == 1 {
		_, err = jobs.Take(ctx)
	}
	for err == nil {
		err = finds.Put(ctx, 0)
	}
	return err
}

// hangInTeam has one rank at the end of a loop, or of tasks, that the other does not begin.
func hangInTeam(ctx context.Context, c *dsm.Cluster, phase *dsm.Barrier, loop bool) error {
	team, err := parallel.New(ctx, c, "sweep")
	switch {
	case err != nil:
		return err
	case c.Rank() == 0:
		return phase.Wait(ctx)
	case loop:
		return team.For(ctx, 10, func(int) error { return nil })
	}
	return parallel.Tasks(ctx, team, []int{1}, func(*parallel.Task[int]) error { return nil })
}

// hangs are what is said of each kind of hang, as patterns: times differ.
var hangs = map[string][]string{
	"deadlock": {
		`nothing moves: no rank computes, and all wait`,
		`rank 0 waits for lock "index" \(hang_test.go:\d+\), held by rank 1 since \S+ at hang_test.go:\d+, which waits for lock "accounts"`,
		`rank 1 waits for lock "accounts" \(hang_test.go:\d+\), held by rank 0 since`,
		`ranks 0, 1 wait for each other, for the locks "index", "accounts"`,
	},
	"ended": {`rank 0 waits at barrier "phase" \(hang_test.go:\d+\) for rank 1 of 2, which has ended`},
	"elsewhere": {
		`rank 0 waits in reduction "sum" \(hang_test.go:\d+\) for rank 1 of 2, which waits in reduction "product" \(hang_test.go:\d+\)`,
		`ranks 0, 1 wait for each other`,
	},
	// the program's line, and not that of the package which waits for it
	"kits": {`rank 0 waits in reduction "collective/parts" \(hang_test.go:\d+\) for rank 1 of 2, which waits in reduction "collective/counts/flush" \(hang_test.go:\d+\)`},
	"loop": {
		`rank 0 waits at barrier "phase" \(hang_test.go:\d+\) for rank 1 of 2, which waits at the end of a loop of team "sweep" \(hang_test.go:\d+\)`,
		`rank 1 waits at the end of a loop of team "sweep" \(hang_test.go:\d+\) for rank 0 of 2, which waits at barrier "phase"`,
		`ranks 0, 1 wait for each other`,
	},
	"semaphore": {`rank 0 waits for permits of semaphore "permits" \(hang_test.go:\d+\)`},
	"tasks":     {`rank 1 waits for the ends of all tasks of team "sweep" \(hang_test.go:\d+\) for rank 0 of 2, which waits at barrier "phase"`},
	"queues": {
		`rank 0 waits for room in queue "finds" \(hang_test.go:\d+\)`,
		`rank 1 waits for an item of queue "jobs" \(hang_test.go:\d+\)`,
	},
}

// TestHang: when nothing moves, the launcher says who waits for what, at which line, and who has it
// or is missing; once.
func TestHang(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	all := maps.Clone(hangs)
	all["ended before"] = hangs["ended"]      // with daemons that stay it may have been another run
	jobs := map[string]*testcluster.Process{} // beside each other: they do nothing
	for does := range all {
		jobs[does] = testcluster.Job{Nodes: 2, Program: hanging, Args: []string{does}}.Run(t)
	}
	for does, job := range jobs {
		t.Run(does, func(t *testing.T) {
			for _, line := range all[does] {
				eventuallySays(t, job.Errors, "dsmd: "+line)
			}
			job.SignalAlone(syscall.SIGINT)
			job.Wait(t)
			if n := strings.Count(job.Errors(), "nothing moves"); n != 1 {
				t.Errorf("it is said %d times:\n%s", n, job.Errors())
			}
		})
	}
}

// TestEarlyExit: with --fail-on-early-exit the job ends when a rank has ended for which others
// wait.
func TestEarlyExit(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	job := testcluster.Job{Nodes: 2, Program: hanging, Flags: []string{"--fail-on-early-exit"}, Args: []string{"ended"}}.Run(t)
	if status := job.Wait(t); status != 1 {
		t.Errorf("status %d", status)
	}
	for _, line := range append(hangs["ended"], `dsmd: rank 1 has ended while others wait for it: ending the job \(--fail-on-early-exit\)`) {
		if !regexp.MustCompile(line).MatchString(job.Errors()) {
			t.Errorf("%s is not said:\n%s", line, job.Errors())
		}
	}
}

// TestHangWithoutLauncher: where daemons stay, one of the ranks says so.
func TestHangWithoutLauncher(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	jobs := map[string][]*testcluster.Process{}
	for does := range hangs {
		c := testcluster.Serve(t, 2, 2)
		jobs[does] = []*testcluster.Process{c.Program(t, hanging, 0, 0, does), c.Program(t, hanging, 1, 1, does)}
	}
	for does, ranks := range jobs {
		t.Run(does, func(t *testing.T) {
			for _, line := range hangs[does] {
				eventuallySays(t, func() string { return ranks[0].Errors() + ranks[1].Errors() }, "dsm: "+line)
			}
			for _, p := range ranks {
				p.SignalAlone(syscall.SIGKILL)
			}
		})
	}
}

// eventuallySays waits until some text has a line with a pattern.
func eventuallySays(t *testing.T, text func() string, pattern string) {
	t.Helper()
	line := regexp.MustCompile(pattern)
	testcluster.Eventually(t, pattern, func() bool { return line.MatchString(text()) })
}

// givingUp is a program of two ranks. Rank 0 waits with a limit, again and again, and says what the
// error is; rank 1 is in its way.
var givingUp = testcluster.Define("giving-up", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	accounts := dsm.NewRWMutex(c, "accounts")
	wait := dsm.NewBarrier(c, "phase").Wait
	if s.Args[0] == "lock" {
		wait = accounts.RLock
	}
	if c.Rank() == 1 {
		return errors.Join(hinder(s, c, accounts), c.Close())
	}
	if s.Args[0] != "missing" {
		err = c.Barrier(s.Ctx)
	}
	for limit := 1500 * time.Millisecond; err == nil && s.Ctx.Err() == nil; limit += limit / 2 {
		ctx, cancel := context.WithTimeout(s.Ctx, limit)
		if why := wait(ctx); why == nil || !errors.Is(why, context.DeadlineExceeded) {
			err = errors.Join(errors.New("nobody is in the way"), why)
		} else {
			s.Say("%v", why)
		}
		cancel()
	}
	return errors.Join(err, c.Close())
})

// hinder is what rank 1 of the program does.
func hinder(s *testcluster.Self, c *dsm.Cluster, accounts *dsm.RWMutex) error {
	var err error
	for range 3 { // so that it stays here, and is taken on the control page
		err = errors.Join(err, accounts.Lock(s.Ctx), accounts.Unlock())
	}
	if s.Args[0] == "lock" {
		err = errors.Join(err, accounts.Lock(s.Ctx))
	}
	if err = errors.Join(err, c.Barrier(s.Ctx)); err != nil || s.Args[0] == "ended" {
		return err
	}
	switch s.Args[0] {
	case "computes":
		for s.Ctx.Err() == nil {
		}
	case "elsewhere":
		_, err = dsm.Reduce(s.Ctx, c, "sum", 1, dsm.Sum[int])
	}
	<-s.Ctx.Done()
	return err
}

// TestGivingUp: the error of a wait whose context ends says who was in the way, on another node,
// with daemons that stay; with the other trap, too, for what a program does and for what it has.
func TestGivingUp(t *testing.T) {
	t.Parallel()
	for _, trap := range []string{"uffd", "sigsegv"} {
		for does, want := range map[string]string{
			"lock":      `RLock "accounts": waited \S+ for lock "accounts", held by rank 1 since \S+ at hang_test.go:\d+`,
			"ended":     `waited \S+ at barrier "phase" for rank 1 of 2, which has ended: context deadline exceeded`,
			"missing":   `waited \S+ at barrier "phase" for rank 1 of 2, which is not here`,
			"computes":  `waited \S+ at barrier "phase" for rank 1 of 2, which computes: `,
			"elsewhere": `waited \S+ at barrier "phase" for rank 1 of 2, which waits in reduction "sum" \(hang_test.go:\d+\)`,
		} {
			if trap == "sigsegv" && does != "lock" && does != "computes" {
				continue
			}
			t.Run(trap+"/"+does, func(t *testing.T) {
				if trap == "uffd" {
					uffdtest.Require(t)
				} else {
					requireCgo(t)
				}
				t.Parallel()
				c := testcluster.Serve(t, 2, 2, "--trap", trap)
				first := c.Program(t, givingUp, 0, 0, does)
				if does != "missing" {
					c.Program(t, givingUp, 1, 1, does)
				}
				eventuallySays(t, first.Output, want)
			})
		}
	}
}
