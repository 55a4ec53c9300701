package e2e

import (
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"dsmd/internal/sigsegv"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// The variables by which package testcluster tells a copy of the test binary which program it is,
// and for how long.
const (
	envProgram = "DSMD_TEST_PROGRAM"
	envLimit   = "DSMD_TEST_LIMIT"
)

// The program "forbidden" turns into the command that its arguments are, in an environment without
// userfaultfd. The first is the program that copies of this binary are from then on.
var _ = testcluster.Define("forbidden", func(s *testcluster.Self) error {
	return becomeWithout(s, uffdtest.Forbid())
})

// becomeWithout turns into the command that the arguments are, once something is forbidden.
func becomeWithout(s *testcluster.Self, forbidden error) error {
	if err := errors.Join(forbidden, os.Setenv(envProgram, s.Args[0])); err != nil {
		return err
	}
	return syscall.Exec(s.Args[1], s.Args[1:], os.Environ())
}

// runForbidden starts a job of members under `dsmd run` where userfaultfd is forbidden.
func runForbidden(t *testing.T, flags ...string) *testcluster.Process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat([]string{"member", testcluster.Dsmd(t), "run"}, flags, []string{"--", self, "end"})
	return testcluster.Start(t, testcluster.Command{
		Name: "job without userfaultfd", Path: self, Args: args,
		Env: []string{envProgram + "=forbidden", envLimit + "=" + testcluster.Patience.String()},
	})
}

// requireCgo skips a test where programs can't trap by SIGSEGV.
func requireCgo(t *testing.T) {
	t.Helper()
	if err := sigsegv.Available(); err != nil {
		t.Skip(err)
	}
}

// withEachTrap runs a test with one trap after the other. Dear tests don't use it: they run with
// the trap of testcluster.FlagsEnv. With a trap in there they are left out: they are the
// same as without.
func withEachTrap(t *testing.T, test func(t *testing.T, trap string)) {
	t.Helper()
	if strings.Contains(os.Getenv(testcluster.FlagsEnv), "--trap") {
		t.Skip("it tries both traps by itself, also where none is named")
	}
	for _, trap := range []string{"uffd", "sigsegv"} {
		t.Run(trap, func(t *testing.T) {
			if trap == "sigsegv" {
				requireCgo(t)
			}
			test(t, trap)
		})
	}
}

// withEachWay is withEachTrap, and then with daemons of several reactors, by the flags that say so.
func withEachWay(t *testing.T, test func(t *testing.T, flags []string)) {
	t.Helper()
	withEachTrap(t, func(t *testing.T, trap string) { test(t, []string{"--trap", trap}) })
	t.Run("reactors", func(t *testing.T) {
		requireSeveral(t)
		test(t, []string{"--trap", "uffd", "--reactors", "3", "--stripe", "1"})
	})
}

// TestAutoWithoutUserfaultfd: where userfaultfd is forbidden, daemons and programs fall back by
// themselves, and say so.
func TestAutoWithoutUserfaultfd(t *testing.T) {
	t.Parallel()
	requireCgo(t)
	job := runForbidden(t, "-n", "3", "--trap", "auto", "--log-level", "info")
	met(t, job, 3)
	job.Succeed(t)
	if log := job.Errors(); strings.Count(log, `"trap": "sigsegv"`) != 3 || !strings.Contains(log, "userfaultfd is not available") || !strings.Contains(log, "seccomp profile") {
		t.Errorf("the daemons do not say that, and why, they trap by SIGSEGV:\n%s", log)
	}
}

// TestUffdForcedWhereForbidden: a program that can't do what the daemon was told to do says what to
// change.
func TestUffdForcedWhereForbidden(t *testing.T) {
	t.Parallel()
	job := runForbidden(t, "-n", "1", "--trap", "uffd")
	if status := job.Wait(t); status != 1 {
		t.Errorf("the job ended with status %d", status)
	}
	if said := job.Errors(); !strings.Contains(said, "--trap sigsegv") || !strings.Contains(said, "page faults can't be trapped") {
		t.Errorf("the program said:\n%s", said)
	}
}
