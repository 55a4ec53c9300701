package e2e

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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

func itoa(n int) string { return strconv.Itoa(n) }

// member joins, meets all others, and then does what its argument says.
var member = testcluster.Define("member", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words, err := dsm.Alloc[uint64](s.Ctx, c, "words", c.Size()*c.PageBytes()/8)
	if err != nil {
		return err
	}
	words[c.Rank()*c.PageBytes()/8] = uint64(c.Rank())
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	for rank := range c.Size() {
		if v := words[rank*c.PageBytes()/8]; v != uint64(rank) {
			return fmt.Errorf("rank %d sees %d of rank %d", c.Rank(), v, rank)
		}
	}
	s.Say("met %d", c.Size())
	if err := c.Barrier(s.Ctx); err != nil { // all have said it before one fails
		return err
	}
	switch s.Args[0] {
	case "end":
		return c.Close()
	case "fail": // the last rank does; the others would wait for ever
		if c.Rank() == c.Size()-1 {
			os.Exit(23)
		}
	}
	select {}
})

// met waits until all members of a job have met.
func met(t *testing.T, job *testcluster.Process, nodes int) {
	t.Helper()
	for range nodes {
		if line := job.Hear(t); !strings.HasSuffix(line, "met "+itoa(nodes)) {
			t.Fatalf("the job printed %q", line)
		}
	}
}

// nothingLeft checks that no process with the job's variable in its environment is left.
func nothingLeft(t *testing.T, variable string) {
	t.Helper()
	testcluster.Eventually(t, "the processes of the job are gone", func() bool { return len(testcluster.Having(variable)) == 0 })
}

// variable is an environment variable that no other job has.
func variable(t *testing.T) string {
	return "DSMD_TEST_JOB=" + strings.ReplaceAll(t.Name(), "/", "-") + itoa(os.Getpid())
}

// TestRun starts jobs of several sizes.
func TestRun(t *testing.T) {
	uffdtest.Require(t)
	for _, nodes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			mark := variable(t)
			job := testcluster.Job{Nodes: nodes, Env: []string{mark}, Program: member, Args: []string{"end"}}.Run(t)
			met(t, job, nodes)
			job.Succeed(t)
			if left := testcluster.Having(mark); len(left) > 0 {
				t.Errorf("when the job had ended, these were still there: %q", left)
			}
			if log := job.Errors(); log != "" {
				t.Errorf("a job without failures printed %q", log)
			}
		})
	}
}

// TestRunEnds checks the status of a job that does not end well, and that nothing is left of it.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for _, test := range []struct {
		name, does string
		end        func(job *testcluster.Process, mark string) // once all have met
		status     int
	}{
		{"a program fails", "fail", func(*testcluster.Process, string) {}, 23},
		{"Ctrl-C", "wait", func(job *testcluster.Process, _ string) { job.SignalAlone(syscall.SIGINT) }, 128 + int(syscall.SIGINT)},
		{"kill -9", "wait", func(job *testcluster.Process, _ string) { job.SignalAlone(syscall.SIGKILL) }, 128 + int(syscall.SIGKILL)},
		{"a daemon dies", "wait", func(_ *testcluster.Process, mark string) { killOne(t, mark, "serve") }, 70},
		{"a program is killed", "wait", func(_ *testcluster.Process, mark string) { killOne(t, mark, "program wait") }, 128 + int(syscall.SIGKILL)},
	} {
		t.Run(test.name, func(t *testing.T) {
			mark := variable(t)
			job := testcluster.Job{Nodes: 2, Env: []string{mark}, Program: member, Args: []string{test.does}}.Run(t)
			met(t, job, 2)
			test.end(job, mark)
			if status := job.Wait(t); status != test.status {
				t.Errorf("the job ended with status %d, want %d", status, test.status)
			}
			nothingLeft(t, mark)
			if strings.Contains(job.Errors(), "program died") {
				t.Errorf("the daemons complain of programs that the launcher has ended:\n%s", job.Errors())
			}
		})
	}
}

// killOne kills one of a job's processes, whose command line contains the given words, or whose
// environment has them as a variable (NAME=VALUE).
func killOne(t *testing.T, mark, words string) {
	t.Helper()
	withVariable := testcluster.Having(words)
	for _, process := range testcluster.Having(mark) {
		id, line, _ := strings.Cut(process, " ")
		pid, err := strconv.Atoi(id)
		if err != nil || !strings.Contains(line, words) && !slices.Contains(withVariable, process) || strings.Contains(line, " run ") {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no process %q among %q", words, testcluster.Having(mark))
}

// greedy allocates most of the region, on rank 0, and then, when that has left, on rank 1. Files in
// the folder that the first argument names say how far each is. With a second argument rank 1 has
// the smaller memory while rank 0 has it, too.
var greedy = testcluster.Define("greedy", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	has, left := filepath.Join(s.Args[0], "has"), filepath.Join(s.Args[0], "left")
	shared := len(s.Args) > 1
	alloc := func(name string, bytes int) {
		if err == nil {
			_, err = dsm.Alloc[byte](s.Ctx, c, name, bytes)
		}
	}
	reach := func(file string) {
		if err == nil {
			err = os.WriteFile(file, nil, 0o600)
		}
	}
	await := func(file string) {
		for err == nil {
			if _, missing := os.Stat(file); missing == nil {
				return
			}
			time.Sleep(time.Millisecond)
			err = s.Ctx.Err()
		}
	}
	const small, large = 1 << 30, 40 << 30
	if c.Rank() == 0 {
		alloc("small", small)
		alloc("large", large)
		if shared {
			await(has)
		}
		err = errors.Join(err, c.Close())
		reach(left)
		return err
	}
	if shared {
		alloc("small", small)
		reach(has)
	}
	await(left)
	alloc("small", small)
	// Close does not wait until the cluster knows, so there may be no room at first.
	for alloc("large of rank 1", large); errors.Is(err, dsm.ErrNoSpace) && s.Ctx.Err() == nil; alloc("large of rank 1", large) {
		time.Sleep(time.Millisecond)
		err = nil
	}
	return errors.Join(err, c.Close())
})

// TestRunGreedy: a rank of a job finds room where another rank had memory that has left, also if it
// shares some of that.
func TestRunGreedy(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for _, more := range [][]string{nil, {"shared"}} {
		job := testcluster.Job{Nodes: 2, Flags: []string{"--memory", "unlimited"}, Program: greedy}
		job.Args = append([]string{t.TempDir()}, more...)
		job.Succeed(t)
	}
}

// TestRunIntoFiles: --output dir:DIR.
func TestRunIntoFiles(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	dir := filepath.Join(t.TempDir(), "logs")
	job := testcluster.Start(t, testcluster.Command{
		Name: "a job", Path: testcluster.Dsmd(t), Args: []string{"run", "-n", "2", "--output", "dir:" + dir, "--", "sh", "-c", `echo "$DSM_RANK"; echo to err >&2`},
	})
	job.Succeed(t)
	if job.Output() != "" {
		t.Errorf("it prints %q", job.Output())
	}
	want := map[string]string{"rank-0.stdout": "0\n", "rank-1.stdout": "1\n", "rank-0.stderr": "to err\n", "rank-1.stderr": "to err\n"}
	got := map[string]string{}
	for name := range want {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		got[name] = string(text)
	}
	if !maps.Equal(got, want) {
		t.Errorf("the files have %q, want %q", got, want)
	}
}

// TestRunFormats: what a job prints has the format that the flags name.
func TestRunFormats(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	const when = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)`
	for name, test := range map[string]struct {
		flags []string
		want  string // of each line
	}{
		"prefix":     {nil, `\[[01]\] "hi"`},
		"plain":      {[]string{"--output", "plain"}, `"hi"`},
		"json":       {[]string{"--output=json"}, `\{"time":"` + when + `","rank":[01],"stream":"stdout","text":"\\"hi\\""\}`},
		"timestamps": {[]string{"--timestamps"}, when + ` \[[01]\] "hi"`},
	} {
		t.Run(name, func(t *testing.T) {
			args := slices.Concat([]string{"run", "-n", "2"}, test.flags, []string{"--", "echo", `"hi"`})
			job := testcluster.Start(t, testcluster.Command{Name: "a job", Path: testcluster.Dsmd(t), Args: args})
			job.Succeed(t)
			if !regexp.MustCompile(`^(` + test.want + `\n){2}$`).MatchString(job.Output()) {
				t.Errorf("it prints\n%s\nwant twice\n%s", job.Output(), test.want)
			}
		})
	}
}
