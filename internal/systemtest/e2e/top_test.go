package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// waiting is a program of two ranks that wait for ever: rank 1 for a lock that rank 0 has, and rank
// 0 at a barrier. They have fought for a page before. Each says where its daemon is.
var waiting = testcluster.Define("waiting", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	counts, err := dsm.Alloc[uint64](s.Ctx, c, "counts", 2)
	if err != nil {
		return err
	}
	m := dsm.NewMutex(c, "accounts")
	for range 20 {
		if err := m.Lock(s.Ctx); err != nil {
			return err
		}
		counts[0]++
		if err := m.Unlock(); err != nil {
			return err
		}
	}
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	if c.Rank() == 0 {
		err = m.Lock(s.Ctx)
	}
	if err = errors.Join(err, c.Barrier(s.Ctx)); err != nil {
		return err
	}
	fmt.Println("at", os.Getenv("DSM_SOCKET"))
	if c.Rank() == 1 {
		return m.Lock(s.Ctx)
	}
	return dsm.NewBarrier(c, "phase").Wait(s.Ctx)
})

// TestTop: dsmd top says what each rank waits for, and what for, while it waits, of the job that is
// named; with --socket, of one node alone.
func TestTop(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	job := testcluster.Job{Nodes: 2, Program: waiting}.Run(t)
	sockets := regexp.MustCompile(`(?m)at (@dsmd-([0-9a-f]+)-([01]))$`)
	testcluster.Eventually(t, "both ranks wait", func() bool { return len(sockets.FindAllString(job.Output(), -1)) == 2 })
	at := map[string]string{}
	var number string
	for _, m := range sockets.FindAllStringSubmatch(job.Output(), -1) {
		at[m[3]], number = m[1], m[2]
	}
	for _, test := range []struct {
		args      []string
		has, lack []string
	}{
		{[]string{number}, []string{`0/2 +0 .* +(9\d|1\d\d)\.\d% +0\.0%  \S+$`, `1/2 +1 .* +(9\d|1\d\d)\.\d% +0\.0% +0\.0%  \S+$`, `barrier    "phase"`, `lock +"accounts"`, `(?s)MEMORY.* 0/2 .* 1/2 `}, nil},
		{[]string{"--socket", at["0"]}, []string{`barrier    "phase"`}, []string{`"accounts"`, `1/2`}},
		{[]string{"--socket", at["1"], "--sort", "locks"}, []string{`lock +"accounts"`}, []string{`"phase"`, `0/2`}},
	} {
		var text string
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("dsmd top %v:\n%s", test.args, text)
			}
		})
		testcluster.Eventually(t, fmt.Sprintf("dsmd top %v has what it should", test.args), func() bool {
			out, err := exec.Command(testcluster.Dsmd(t), append([]string{"top", "--once", "--interval", "300ms"}, test.args...)...).Output()
			if text = string(out); err != nil {
				t.Fatalf("dsmd top %v: %v\n%s", test.args, err, text)
			}
			for _, line := range test.has {
				if !regexp.MustCompile(`(?m)` + line).MatchString(text) {
					return false
				}
			}
			return true
		})
		for _, line := range test.lack {
			if strings.Contains(text, line) {
				t.Errorf("dsmd top %v says %q:\n%s", test.args, line, text)
			}
		}
	}
	job.SignalAlone(syscall.SIGINT)
	job.Wait(t)
}
