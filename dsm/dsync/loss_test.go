package dsync_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/dsm/dsync"
	"dsmd/internal/kittest"
	"dsmd/internal/patience"
)

// die ends this program, and not its node.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// TestDeath: when a program dies that holds a permit, has not said Done, would have signalled or
// runs a part of a group, all that wait are told, and those that are left make new ones.
func TestDeath(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		loss(t, ctx, c, die)
	}, "--survive")
}

// TestLoss is TestDeath with a node.
func TestLoss(t *testing.T) {
	dsmtest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		loss(t, ctx, c, func() { dsmtest.LoseNode(t, c) })
	}, "--survive")
}

// TestOtherNodeLost: a node is lost that has no rank any more. The first error of a group comes to
// all ranks, wherever its text and their gates are.
func TestOtherNodeLost(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		left, lose := kittest.NodeWithoutRank(t, ctx, c)
		var groups []*dsync.ErrGroup
		for name := range 16 { // some lie where that node is the home
			g, _, err := dsync.NewErrGroup(ctx, left, fmt.Sprint(name))
			check(t, "NewErrGroup", err, nil)
			groups = append(groups, g)
		}
		lose()
		for i, g := range groups {
			if left.Index() == 1 {
				g.Go(func() error { return errors.New("a failure") })
			}
			brief, cancel := context.WithTimeout(ctx, patience.Or(10*time.Second))
			err := g.Wait(brief)
			cancel()
			if failed := (*dsync.Error)(nil); !errors.As(err, &failed) || failed.Text != "a failure" {
				t.Errorf("Wait of group %d returned %v", i, err)
			}
		}
	}, "--survive")
}

func loss(t *testing.T, ctx context.Context, c *dsm.Cluster, end func()) {
	s, g := newSemaphore(t, ctx, c, "permits", 2), newWaitGroup(t, ctx, c, "group")
	lock := dsm.NewMutex(c, "lock")
	changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "changed", lock))
	eg, within := newErrGroup(t, ctx, c, "errgroup")
	check(t, "Add", g.Add(1), nil)
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 2 {
		check(t, "Acquire", s.Acquire(ctx, 1), nil)
	}
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 2 {
		// The others wait by then, or will.
		time.AfterFunc(10*time.Millisecond, end)
		select {}
	}
	lost := func(what string, err error) {
		t.Helper()
		// What the program was in the middle of, or the node had, may be known to be lost instead.
		if !errors.Is(err, dsm.ErrNodeLost) && !errors.Is(err, dsm.ErrPageLost) && !errors.Is(err, dsm.ErrOwnerDied) {
			t.Errorf("%s: %v", what, err)
		}
	}
	waits := make(chan func(), 3)
	go func() {
		err := s.Acquire(ctx, 2)
		waits <- func() { lost("Acquire", err) }
	}()
	go func() {
		err := g.Wait(ctx)
		waits <- func() { lost("Wait for a group", err) }
	}()
	go func() {
		err := lock.Lock(ctx)
		if err == nil {
			for err == nil {
				err = changed.Wait(ctx)
			}
			check(t, "Unlock after the loss", lock.Unlock(), nil)
		}
		waits <- func() { lost("Wait for a signal", err) }
	}()
	over := make(chan struct{})
	go func() {
		defer close(over)
		for within.Err() == nil {
			if err := changed.Signal(); err != nil {
				lost("Signal", err)
				if errors.Is(err, dsm.ErrNodeLost) {
					t.Errorf("Signal, which waits for nobody that is lost: %v", err)
				}
				return
			}
		}
	}()
	eg.Go(func() error {
		<-within.Done()
		return nil
	})
	lost("Wait of goroutines", eg.Wait(ctx))
	lost("the cause", context.Cause(within))
	for range cap(waits) {
		(<-waits)()
	}
	<-over
	lost("Acquire after the loss", s.Acquire(ctx, 2))
	lost("Wait for a group after the loss", g.Wait(ctx))
	again(t, ctx, c)
}

// TestClaimOfTheDead: a rank that dies while it waits for permits keeps none from those that are
// left, neither those that are there nor those that are given back.
func TestClaimOfTheDead(t *testing.T) {
	kittest.RunEach(t, []int{3}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		s := newSemaphore(t, ctx, c, "permits", 3)
		if c.Rank() == 0 {
			check(t, "Acquire", s.Acquire(ctx, 1), nil)
		}
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			go func() {
				awaitClaim(t, ctx, s)
				die()
			}()
			t.Errorf("the third permit was acquired: %v", s.Acquire(ctx, 3))
		}
		for lost := []int(nil); len(lost) == 0; {
			lost = kittest.Must[[]int](t)(c.Lost(ctx))
		}
		left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		meet := func() { check(t, "Barrier", left.Barrier(ctx), nil) }
		meet()
		if c.Rank() == 0 {
			check(t, "Release", s.Release(1), nil)
		}
		meet()
		if c.Rank() == 1 {
			check(t, "Acquire", s.Acquire(ctx, 3), nil)
			check(t, "Release", s.Release(3), nil)
		}
		meet()
	}, "--survive")
}

// again has those that are left use new ones of the same names.
func again(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
	s, g := newSemaphore(t, ctx, left, "permits", 2), newWaitGroup(t, ctx, left, "group")
	for range 20 {
		check(t, "Acquire among those that are left", s.Acquire(ctx, 2), nil)
		check(t, "Release among those that are left", s.Release(2), nil)
	}
	check(t, "Add", g.Add(1), nil)
	if err := left.Barrier(ctx); err != nil {
		t.Fatal(err)
	}
	check(t, "Done", g.Done(), nil)
	check(t, "Wait among those that are left", g.Wait(ctx), nil)
	eg, _ := newErrGroup(t, ctx, left, "errgroup")
	eg.Go(func() error { return errWork })
	if e := (*dsync.Error)(nil); !errors.As(eg.Wait(ctx), &e) {
		t.Error("the error was not found")
	}
}

// TestWaitAfterLoss: those that are left wait for each other for as long as they like, also for who
// comes late. A lock that nobody has used may have been lost with its home: one of many has.
func TestWaitAfterLoss(t *testing.T) {
	dsmtest.Run(t, 3, func(ctx context.Context, c *dsm.Cluster) {
		dsync.SetPatience(10*time.Millisecond, time.Hour)
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		check(t, "Barrier without a rank", c.Barrier(ctx), dsm.ErrNodeLost)
		left := kittest.Must[*dsm.Survivors](t)(c.Survivors(ctx))
		awaitRecovery(t, ctx, c)
		for i := range 12 {
			if c.Rank() == 0 {
				outwait(t, ctx, c, newSemaphore(t, ctx, left, fmt.Sprint("permit ", i), 1))
			}
		}
		// In a group with the lost one, who may have come.
		late := newSemaphore(t, ctx, c, fmt.Sprint("of all, rank ", c.Rank()), 1)
		check(t, "Acquire", late.Acquire(ctx, 1), nil)
		check(t, "Acquire for which a lost rank is waited for", late.Acquire(ctx, 1), dsm.ErrNodeLost)
		check(t, "Barrier among those that are left", left.Barrier(ctx), nil)
	}, "--survive")
}

// awaitRecovery returns when this node goes on without the one that is lost: it finds a lock that
// had its home there. Until then a barrier of those that are left may end, as that had its home
// there, too.
func awaitRecovery(t *testing.T, ctx context.Context, c *dsm.Cluster) {
	t.Helper()
	var err error
	for i := 0; err == nil; i++ {
		err = dsm.NewMutex(c, fmt.Sprintf("unused %d of rank %d", i, c.Rank())).Lock(ctx)
	}
	check(t, "Lock", err, dsm.ErrOwnerDied)
}

// outwait waits for the permit, which it holds, until this rank has looked by itself whether others
// have died.
func outwait(t *testing.T, ctx context.Context, c *dsm.Cluster, s *dsync.Semaphore) {
	t.Helper()
	check(t, "Acquire", s.Acquire(ctx, 1), nil)
	before, waits := arrivals(t, ctx, c), make(chan error, 1)
	go func() { waits <- s.Acquire(ctx, 1) }()
	for len(waits) == 0 && arrivals(t, ctx, c) < before+3 {
		time.Sleep(time.Millisecond)
	}
	check(t, "Release", s.Release(1), nil)
	check(t, "Acquire for which others are waited for", <-waits, nil)
}

// TestFormerRun: who died in a run of the job that is over is not missed in the next.
func TestFormerRun(t *testing.T) {
	if role := os.Getenv(roleEnv); role != "" {
		dsync.SetPatience(10*time.Millisecond, time.Hour)
		c := joinServed(t, t.Context(), role)
		s := newSemaphore(t, t.Context(), c, "permit", 1)
		if c.Rank() == 1 {
			die()
		}
		outwait(t, t.Context(), c, s)
		return
	}
	dsmtest.Run(t, 1, func(ctx context.Context, c *dsm.Cluster) {
		play(t, ctx, "1", true)
		play(t, ctx, "0", false)
	})
}

// TestJobs: what one job makes is its own, also under a name that begins with dsm.Everywhere.
func TestJobs(t *testing.T) {
	role := os.Getenv(roleEnv)
	use := func(ctx context.Context, c *dsm.Cluster, permits int64, beside func()) {
		s, g := newSemaphore(t, ctx, c, "/name", permits), newWaitGroup(t, ctx, c, "/name")
		changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "/name", dsm.NewMutex(c, "lock")))
		check(t, "Add", g.Add(1), nil)
		check(t, "Acquire of all", s.Acquire(ctx, permits), nil)
		beside()
		check(t, "Release of all", s.Release(permits), nil)
		check(t, "Done", g.Done(), nil)
		check(t, "Wait", g.Wait(ctx), nil)
		check(t, "Free", errors.Join(changed.Free(ctx), g.Free(ctx), s.Free(ctx)), nil)
	}
	if role != "" {
		ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
		defer end()
		use(ctx, joinServed(t, ctx, role), 3, func() {})
		return
	}
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			use(ctx, c, 2, func() { play(t, ctx, "0", false) })
		}
		kittest.Barrier(t, ctx, c)
	})
}

// TestServed: where a program that has died may come again, who waits for it is told after a while,
// and who lets it go on does not wait for it. Programs that `dsmd run` has not started, which join
// as another job, are served so.
func TestServed(t *testing.T) {
	if role := os.Getenv(roleEnv); role != "" {
		dsync.SetPatience(200*time.Millisecond, 50*time.Millisecond)
		served(t, role)
		return
	}
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		play(t, ctx, fmt.Sprint(c.Rank()), c.Rank() == 1)
		// The node lives as long as somebody waits there for what was on it.
		kittest.Barrier(t, ctx, c)
	})
}

const roleEnv = "DSYNC_TEST_ROLE"

// play has a program of the job that is served run this test in a role, in which it may die.
func play(t *testing.T, ctx context.Context, role string, dies bool) {
	t.Helper()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DSMTEST_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, roleEnv+"="+role)
	out, err := cmd.CombinedOutput()
	if ended := (*exec.ExitError)(nil); dies && errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		err = nil
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// joinServed joins the job that is served, in a role: the rank is its first digit.
func joinServed(t *testing.T, ctx context.Context, role string) *dsm.Cluster {
	t.Helper()
	c := kittest.Must[*dsm.Cluster](t)(dsm.Join(ctx, dsm.WithJob("served", 2), dsm.WithRank(int(role[0]-'0'))))
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// served is a rank of the job that is served. Rank 1 holds a permit and waits for others, and dies.
func served(t *testing.T, role string) {
	ctx := t.Context()
	c := joinServed(t, ctx, role)
	held, awaited := newSemaphore(t, ctx, c, "held", 2), newSemaphore(t, ctx, c, "awaited", 2)
	kittest.Barrier(t, ctx, c)
	if c.Rank() == 1 {
		check(t, "Acquire", held.Acquire(ctx, 1), nil)
		kittest.Barrier(t, ctx, c)
		go func() { _ = awaited.Acquire(ctx, 2) }()
		kittest.Barrier(t, ctx, c)
		die()
	}
	check(t, "Acquire", awaited.Acquire(ctx, 1), nil)
	kittest.Barrier(t, ctx, c)
	awaitClaim(t, ctx, awaited)
	kittest.Barrier(t, ctx, c)
	check(t, "Acquire of what a dead program holds", held.Acquire(ctx, 2), dsm.ErrOwnerDied)
	check(t, "Release for a dead program", awaited.Release(1), nil)
}

// TestReturn: a rank that has died and comes again waits for nothing any more. What its former
// goroutines have claimed is in nobody's way, and they take no signal.
func TestReturn(t *testing.T) {
	if role := os.Getenv(roleEnv); role != "" {
		returned(t, role)
		return
	}
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		play(t, ctx, fmt.Sprint(c.Rank()), c.Rank() == 1)
		if c.Rank() == 1 {
			play(t, ctx, "1 again", false)
		}
		kittest.Barrier(t, ctx, c)
	})
}

// returned is a rank of the job that is served. Rank 1 claims permits and waits for a signal, and
// dies; and then it comes again.
func returned(t *testing.T, role string) {
	ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	c := joinServed(t, ctx, role)
	claimed, lock := newSemaphore(t, ctx, c, "claimed", 3), dsm.NewMutex(c, "lock")
	changed := kittest.Must[*dsync.Cond](t)(dsync.NewCond(ctx, c, "changed", lock))
	waiting := share[atomic.Int64](t, ctx, c, "waiting")
	wait := func() error {
		if err := lock.Lock(ctx); err != nil {
			return err
		}
		waiting.Add(1)
		return errors.Join(changed.Wait(ctx), lock.Unlock())
	}
	awaitWaiting := func(n int64) { // and that they have given the lock back, and wait
		for waiting.Load() < n && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		check(t, "Lock", lock.Lock(ctx), nil)
		check(t, "Unlock", lock.Unlock(), nil)
	}
	if role == "0" {
		check(t, "Acquire", claimed.Acquire(ctx, 2), nil)
	}
	if role != "1 again" {
		kittest.Barrier(t, ctx, c)
	}
	var all sync.WaitGroup
	switch role {
	case "1":
		go func() { _ = claimed.Acquire(ctx, 2) }()
		awaitClaim(t, ctx, claimed)
		go func() { _ = wait() }()
		awaitWaiting(1)
		die()
	case "0":
		awaitWaiting(1)
		check(t, "Acquire behind a claim", claimed.Acquire(ctx, 1), nil)
	}
	kittest.Barrier(t, ctx, c)
	if role == "0" {
		for range 2 {
			all.Go(func() { check(t, "Wait", wait(), nil) })
		}
	} else {
		awaitWaiting(3)
		check(t, "Signal", errors.Join(changed.Signal(), changed.Signal()), nil)
		check(t, "Release of all", claimed.Release(3), nil)
		check(t, "Acquire of all", claimed.Acquire(ctx, 3), nil)
	}
	all.Wait()
	kittest.Barrier(t, ctx, c)
	check(t, "Free", errors.Join(changed.Free(ctx), claimed.Free(ctx)), nil)
}

// TestRestored: in a job that is restored nobody has what programs had that are no more.
func TestRestored(t *testing.T) {
	dsmtest.RunEach(t, []int{2}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		dir := os.Getenv("DSM_CHECKPOINT")
		s := newSemaphore(t, ctx, c, "permits", 1)
		if c.Rank() == 0 {
			check(t, "Acquire", s.Acquire(ctx, 1), nil)
			// Only this rank has it, and the others take checkpoints all the same.
			check(t, "Add", newWaitGroup(t, ctx, c, "group").Add(1), nil)
		}
		kittest.Barrier(t, ctx, c)
		check(t, "Checkpoint", c.Checkpoint(ctx, dir), nil)
		check(t, "Free", s.Free(ctx), nil)
		kittest.Barrier(t, ctx, c)
		kittest.Must[[]byte](t)(c.Restore(ctx, dir))
		s = newSemaphore(t, ctx, c, "permits", 1)
		kittest.Barrier(t, ctx, c)
		if c.Rank() == 1 {
			brief, cancel := context.WithTimeout(ctx, patience.Or(10*time.Second))
			defer cancel()
			check(t, "Acquire", s.Acquire(brief, 1), nil)
		}
	}, "--checkpoint", t.TempDir())
}
