package e2e

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// standing is a program of three ranks: rank 0 holds a lock and reads its input, and the others
// wait for the lock. It says where it is attached.
var standing = testcluster.Define("standing", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	lock := dsm.NewMutex(c, "accounts")
	if c.Rank() == 0 {
		err = errors.Join(lock.Lock(s.Ctx), c.Barrier(s.Ctx))
		s.Say("at %s", os.Getenv("DSM_SOCKET"))
		s.Next()
	} else {
		err = errors.Join(c.Barrier(s.Ctx), lock.Lock(s.Ctx))
	}
	return errors.Join(err, lock.Unlock(), c.Close())
})

// stacksOf runs dsmd stacks.
func stacksOf(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(testcluster.Dsmd(t), append([]string{"stacks"}, args...)...).CombinedOutput()
	if err != nil {
		t.Logf("dsmd stacks %q: %v", args, err)
	}
	return string(out)
}

// TestStacks: stacks that are the same are shown once, with whose they are and what is waited for,
// and the job goes on to its end.
func TestStacks(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	job := testcluster.Job{Nodes: 3, Program: standing}.Run(t)
	_, socket, _ := strings.Cut(job.Hear(t), "at @dsmd-")
	name, _, _ := strings.Cut(socket, "-")
	said := func() string { return stacksOf(t, name) }
	eventuallySays(t, said, `2 goroutines of ranks 1-2 \[[^]]+\] waits for lock "accounts" since \S+s\n    dsmd/dsm.\(\*Mutex\).Lock\n`)
	if all := said(); !strings.Contains(all, ".(*Self).Next") || strings.Contains(all, "watchEnd") {
		t.Errorf("the stack of rank 0 is not there, or one of the library's is:\n%s", all)
	}
	if all := stacksOf(t, name, "--all"); !strings.Contains(all, "3 goroutines of ranks 0-2") || !strings.Contains(all, "watchEnd") {
		t.Errorf("with --all the library's are missing:\n%s", all)
	}
	if all := stacksOf(t, name+"x"); !strings.Contains(all, "no job") || !strings.Contains(all, name+": 3 of 3 ranks here") {
		t.Errorf("of a job that does not run:\n%s", all)
	}
	job.End()
	job.Succeed(t)
}

// toucher is a program of two ranks: rank 1 stores, and rank 0 loads what it has stored when told.
var toucher = testcluster.Define("toucher", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	counts, err := dsm.Alloc[int](s.Ctx, c, "counts", 1<<16)
	if err != nil {
		return err
	}
	if c.Rank() == 1 {
		for i := range counts {
			counts[i] = 1
		}
	}
	err = c.Barrier(s.Ctx)
	s.Say("ready")
	s.Next()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	s.Say("sum %d", sum)
	return errors.Join(err, c.Barrier(s.Ctx), c.Close())
})

// TestStacksOfBlocked: a program whose thread waits for a page is not stopped, and the daemon says
// which page that is; it also says so in its log when that has lasted for long.
func TestStacksOfBlocked(t *testing.T) {
	t.Parallel()
	for _, trap := range []string{"uffd", "sigsegv"} {
		t.Run(trap, func(t *testing.T) {
			if trap == "uffd" {
				uffdtest.Require(t)
			} else {
				requireCgo(t)
			}
			t.Parallel()
			c := testcluster.Serve(t, 2, 2, "--trap", trap)
			ranks := []*testcluster.Process{c.Program(t, toucher, 0, 0), c.Program(t, toucher, 1, 1)}
			for _, p := range ranks {
				p.Expect(t, "ready")
			}
			c.Daemons[1].Stop(t)
			ranks[0].Say(t, "go")
			eventuallySays(t, func() string { return stacksOf(t, "--socket", c.Socket(0)) },
				`rank 0 \(process \d+\) cannot be stopped for its stacks: threads wait for page \d+ of "counts" for \S+s \(asked of node \d\)`)
			c.Daemons[0].AwaitLog(t, "a thread has waited long for a page")
			c.Daemons[1].Signal(syscall.SIGCONT)
			ranks[0].Expect(t, "sum 65536")
			ranks[1].Say(t, "go")
			for _, p := range ranks {
				p.Succeed(t)
			}
		})
	}
}
