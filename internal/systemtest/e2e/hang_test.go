package e2e

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// hanging is a program of two ranks that hangs in the way that its argument says.
var hanging = testcluster.Define("hanging", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	phase := dsm.NewBarrier(c, "phase")
	first, second := dsm.NewMutex(c, "accounts"), dsm.NewMutex(c, "index")
	if c.Rank() == 1 {
		first, second = second, first
	}
	switch {
	case s.Args[0] == "deadlock":
		err = errors.Join(first.Lock(s.Ctx), c.Barrier(s.Ctx), second.Lock(s.Ctx))
	case s.Args[0] == "ended" && c.Rank() == 1:
		return c.Close()
	case s.Args[0] == "elsewhere" && c.Rank() == 1:
		_, err = dsm.Reduce(s.Ctx, c, "sum", 1, dsm.Sum[int])
	default:
		err = phase.Wait(s.Ctx)
	}
	return errors.Join(err, c.Close())
})

// TestHang: when nothing moves, the launcher says who waits for what, at which line, and who has it
// or is missing; once.
func TestHang(t *testing.T) {
	uffdtest.Require(t)
	for does, want := range map[string][]string{
		"deadlock": {
			`rank 0 waits for lock "index" (hang_test.go:27), which rank 1 has`, `rank 1 waits for lock "accounts" (hang_test.go:27), which rank 0 has`,
			`ranks 0, 1 wait for each other, for the locks "index", "accounts"`,
		},
		"ended":     {`rank 0 waits at barrier "phase" (hang_test.go:33), where rank 1 has ended`},
		"elsewhere": {`rank 0 waits at barrier "phase" (hang_test.go:33), where rank 1 is not`, `rank 1 waits at barrier "sum" (hang_test.go:31), where rank 0 is not`},
	} {
		t.Run(does, func(t *testing.T) {
			t.Parallel() // they do nothing
			job := testcluster.Job{Nodes: 2, Program: hanging, Args: []string{does}}.Run(t)
			for _, line := range want {
				testcluster.Eventually(t, line, func() bool { return strings.Contains(job.Errors(), "dsmd: "+line) })
			}
			job.SignalAlone(syscall.SIGINT)
			job.Wait(t)
			if n := strings.Count(job.Errors(), "nothing moves"); n != 1 {
				t.Errorf("it is said %d times:\n%s", n, job.Errors())
			}
		})
	}
}
