package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// survivor joins, meets all others, and then the survivors again and again until as many ranks as
// its argument says are lost. Then those that are left find each one's value or that it is lost,
// and nothing else, and meet once more.
var survivor = testcluster.Define("survivor", func(s *testcluster.Self) error {
	losses, err := strconv.Atoi(s.Args[0])
	if err != nil {
		return err
	}
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", c.Size()*c.PageBytes()/8)
	if err != nil {
		return err
	}
	word := func(rank int) *uint64 { return &words[rank*c.PageBytes()/8] }
	*word(c.Rank()) = uint64(c.Rank()) + 100
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	s.Say("met %d", c.Size())
	var left *dsm.Survivors
	for left == nil || left.Size() > c.Size()-losses {
		if left, err = c.Survivors(s.Ctx); err != nil {
			return err
		}
		if err := left.Barrier(s.Ctx); err != nil && !errors.Is(err, dsm.ErrNodeLost) {
			return err
		} else if err != nil {
			left = nil
		}
		time.Sleep(time.Millisecond) // leaves the cores to others
	}
	for rank := range c.Size() {
		var value uint64
		err := dsm.Guard(func() { value = *word(rank) })
		isLost := errors.Is(err, dsm.ErrPageLost) && !slices.Contains(left.Ranks(), rank)
		if !isLost && (err != nil || value != uint64(rank)+100) {
			return fmt.Errorf("the value of rank %d is %d, %v", rank, value, err)
		}
	}
	sum, err := dsm.Reduce(s.Ctx, left, "sum", 1, dsm.Sum[int])
	if err != nil {
		return err
	}
	s.Say("left %v %d", left.Ranks(), sum)
	return nil
})

// survivingJob starts a job of survivors of so many losses, and waits until all have met.
func survivingJob(t *testing.T, mark string, nodes, losses int) *testcluster.Process {
	t.Helper()
	job := testcluster.Job{Nodes: nodes, Flags: []string{"--survive"}, Env: []string{mark}, Program: survivor, Args: []string{itoa(losses)}}.Run(t)
	met(t, job, nodes)
	return job
}

// TestRunSurvives kills daemons and programs of a job: the others finish, and it says what was
// lost, and succeeds.
func TestRunSurvives(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	const nodes = 4
	daemon := func(id int) string { return fmt.Sprintf(" --id %d ", id) }
	rank := func(rank int) string { return fmt.Sprintf("DSM_RANK=%d", rank) }
	byKill := "was killed by signal 9 (killed)"
	for _, test := range []struct {
		name string
		// words of the command lines of what is killed, one after the other, or variables of their
		// environments
		kills []string
		says  []string // after each
	}{
		{"the daemon that is preferred", []string{daemon(0)}, []string{"dsmd: the daemon of node 0 " + byKill + ", and with it rank 0, at "}},
		{"a program", []string{"program 1"}, []string{byKill + " at "}},
		{"programs and a daemon", []string{rank(0), rank(2), daemon(3)}, []string{"rank 0 " + byKill, "2 of 4 ranks are left", "the daemon of node 3 " + byKill}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mark := variable(t)
			job := survivingJob(t, mark, nodes, len(test.kills))
			for i, words := range test.kills {
				killOne(t, mark, words)
				job.AwaitLog(t, test.says[i])
			}
			left := nodes - len(test.kills)
			for range left {
				if line := job.Hear(t); !strings.Contains(line, " left [") || !strings.HasSuffix(line, "] "+itoa(left)) {
					t.Fatalf("the job printed %q", line)
				}
			}
			job.Succeed(t)
			for _, want := range []string{"s after the start: " + itoa(left) + " of 4 ranks are left", "dsmd: " + itoa(left) + " of 4 ranks have succeeded, without rank ", ": exit status 0"} {
				if log := job.Errors(); !strings.Contains(log, want) {
					t.Errorf("the job does not say %q:\n%s", want, log)
				}
			}
			nothingLeft(t, mark)
		})
	}
}

// TestSurvivingRunEnds ends jobs that would go on: by what asks the whole job to end, and by the
// loss of too much.
func TestSurvivingRunEnds(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	for _, test := range []struct {
		name   string
		end    func(job *testcluster.Process, mark string)
		status int
		says   string
	}{
		{"Ctrl-C", func(job *testcluster.Process, _ string) { job.SignalAlone(syscall.SIGINT) }, 128 + int(syscall.SIGINT), "dsmd: interrupt: rank "},
		{"Ctrl-C after a loss", func(job *testcluster.Process, mark string) {
			killOne(t, mark, " --id 2 ")
			job.AwaitLog(t, "2 of 3 ranks are left")
			job.SignalAlone(syscall.SIGINT)
		}, 128 + int(syscall.SIGINT), "dsmd: interrupt: rank "},
		{"kill -9", func(job *testcluster.Process, _ string) { job.SignalAlone(syscall.SIGKILL) }, 128 + int(syscall.SIGKILL), ""},
		{"all programs are killed", func(job *testcluster.Process, mark string) {
			for left := range 3 {
				killOne(t, mark, "program 9")
				job.AwaitLog(t, itoa(2-left)+" of 3 ranks are left")
			}
		}, 128 + int(syscall.SIGKILL), "dsmd: 0 of 3 ranks have succeeded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			mark := variable(t)
			job := survivingJob(t, mark, 3, 9)
			test.end(job, mark)
			if status := job.Wait(t); status != test.status || !strings.Contains(job.Errors(), test.says) {
				t.Errorf("the job ended with status %d, want %d, and said:\n%s", status, test.status, job.Errors())
			}
			nothingLeft(t, mark)
		})
	}
}

// TestRunWithoutQuorum kills the one of two daemons without which the other may not go on: it says
// so, and the job ends.
func TestRunWithoutQuorum(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	mark := variable(t)
	job := survivingJob(t, mark, 2, 1)
	killOne(t, mark, " --id 0 ")
	if status := job.Wait(t); status != 70 {
		t.Errorf("the job ended with status %d, want 70", status)
	}
	for _, want := range []string{"dsmd: the daemon of node 0 was killed", "node: too few nodes are left to go on", "dsmd: 0 of 2 ranks have succeeded, without rank 0, rank 1: exit status 70"} {
		if log := job.Errors(); !strings.Contains(log, want) {
			t.Errorf("the job does not say %q:\n%s", want, log)
		}
	}
	nothingLeft(t, mark)
}
