package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"dsmd/internal/seccomptest"
	"dsmd/internal/systemtest/testcluster"
)

// The program "unsampled" turns into the command that its arguments are, as "forbidden" does, in an
// environment where nobody may sample faults, as in many containers.
var _ = testcluster.Define("unsampled", func(s *testcluster.Self) error {
	return becomeWithout(s, seccomptest.Forbid(unix.SYS_PERF_EVENT_OPEN))
})

// TestUnsampled: where perf_event_open is forbidden, a job that is looked at in every way runs as
// always, by either trap. Its profile has all waits for pages, by memory and cause but without
// stacks, and the end says so, and why; waits in calls have theirs.
func TestUnsampled(t *testing.T) {
	withEachTrap(t, func(t *testing.T, trap string) {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "profile")
		job := testcluster.Start(t, testcluster.Command{
			Name: "job without perf_event_open", Path: self,
			Args: []string{"wasteful", testcluster.Dsmd(t), "run", "-n", "2", "--trap", trap, "--stats", "--sharing",
				"--profile", file, "--trace", filepath.Join(dir, "trace.json"), "--", self, "false sharing"},
			Env: []string{envProgram + "=unsampled", envLimit + "=" + testcluster.Patience.String()},
		})
		job.Succeed(t)
		for _, want := range []string{
			"--profile: rank 0, 1: waits for pages have no stacks in the profile: perf: perf_event_open: operation not permitted",
			"the lines of the program are not known: the kernel lets nobody sample faults here (perf_event_open)",
			`false sharing: page 0 of "counts"`,
		} {
			if strings.Count(job.Errors(), want) != 1 {
				t.Errorf("nobody says once %q:\n%s", want, job.Errors())
			}
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := profile.ParseData(data)
		if err != nil {
			t.Fatal(err)
		}
		wantCauses(t, p)
		calls := 0
		for _, s := range p.Sample {
			switch inMemory := s.Label["cause"] != nil; {
			case inMemory && len(s.Location) != 1:
				t.Errorf("a wait for a page has a stack: %s", trace(s))
			case !inMemory && strings.Contains(trace(s), "stats_test.go"):
				calls++
			}
		}
		if calls == 0 {
			t.Errorf("no wait in a call has a line:\n%s", p)
		}
	})
}
