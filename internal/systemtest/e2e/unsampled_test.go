package e2e

import (
	"os"
	"path/filepath"
	"regexp"
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
// always, by either trap. Its profile has all waits for pages, by memory and cause, and with the
// line that waited but not who has called it, and the end says so, and why; waits in calls have
// their stacks. The lines are in the sharing report, too.
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
				"--profile", file, "--trace", filepath.Join(dir, "trace.json"), "--", self, "seldom false sharing"},
			Env: []string{envProgram + "=unsampled", envLimit + "=" + testcluster.Patience.String()},
		})
		job.Succeed(t)
		for _, want := range []string{
			"--profile: rank 0, 1: waits for pages have the line that waited in the profile, and not who has called it: perf: perf_event_open: operation not permitted",
			`false sharing: page 0 of "counts"`,
		} {
			if strings.Count(job.Errors(), want) != 1 {
				t.Errorf("nobody says once %q:\n%s", want, job.Errors())
			}
		}
		// A rank that seldom had a processor may never have been looked at while it waited.
		if !regexp.MustCompile(`rank [01] writes counts\[[01]\] \(stats_test\.go:`).MatchString(job.Errors()) {
			t.Errorf("no rank has a line:\n%s", job.Errors())
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
		calls, pages := 0, 0
		for _, s := range p.Sample {
			switch inMemory, line := s.Label["cause"] != nil, strings.Contains(trace(s), "stats_test.go"); {
			case inMemory && len(s.Location) > 2:
				t.Errorf("a wait for a page has callers: %s", trace(s))
			case inMemory && line:
				pages++
			case line:
				calls++
			}
		}
		if calls == 0 || pages == 0 {
			t.Errorf("%d waits in calls have lines, and %d for pages:\n%s", calls, pages, p)
		}
	})
}
