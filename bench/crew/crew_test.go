package crew

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/patience"
)

// The test executable plays `dsmd run`, which only starts the ranks here, and the workers, too.
const (
	playWorker = "play-worker"
	rankEnv    = "DSM_RANK"
	// deafEnv makes the fake `dsmd run` ignore requests to end.
	deafEnv = "CREW_TEST_DEAF"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "run":
		os.Exit(fakeDsmd(os.Args[2:]))
	case len(os.Args) > 1 && os.Args[1] == playWorker:
		if err := fakeWorker(os.Args[2], os.Args[len(os.Args)-1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeDsmd runs "-n N … -- PROG ARGS…": N processes that end with it, and the status of the first
// that fails.
func fakeDsmd(args []string) int {
	if os.Getenv(deafEnv) != "" {
		signal.Ignore(syscall.SIGTERM)
	}
	nodes, err := strconv.Atoi(args[1])
	if err != nil {
		return 2
	}
	at := 2
	for args[at] != "--" {
		fmt.Println("option", args[at])
		at++
	}
	status := make(chan int, nodes)
	for rank := range nodes {
		cmd := exec.Command(args[at+1], args[at+2:]...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", rankEnv, rank))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := cmd.Start(); err != nil {
			return 2
		}
		go func() {
			_ = cmd.Wait()
			status <- cmd.ProcessState.ExitCode()
		}()
	}
	for range nodes {
		if s := <-status; s != 0 {
			return s
		}
	}
	return 0
}

// question is what the tests ask workers.
type question struct{ Number int }

// fakeWorker behaves as its script says.
func fakeWorker(script, control string) error {
	rank, err := strconv.Atoi(os.Getenv(rankEnv))
	if err != nil {
		return err
	}
	if script == "never-connect" {
		time.Sleep(time.Hour)
	}
	line, err := Connect(context.Background(), control, rank)
	if err != nil {
		return err
	}
	defer line.Close()
	if err := line.Phase("thinking"); err != nil {
		return err
	}
	switch {
	case script == "answer":
		return answer(line, rank)
	case script == "fail" && rank == 1:
		// before the driver is told, which then waits only a while for more output
		fmt.Fprintln(os.Stderr, "the cause on standard error")
		return errors.Join(errors.New("failed"), line.Fail(errors.New("no idea")))
	case script == "die" && rank == 1:
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case script == "leave":
		return nil
	}
	line.Progress(3, 20)
	time.Sleep(time.Hour)
	return nil
}

// answer replies to each question with rank + number, until there are no more.
func answer(line *Line, rank int) error {
	for {
		var q question
		err := line.Next(&q)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := line.Reply(q.Number + rank); err != nil {
			return err
		}
	}
}

// start starts a crew of the given script. Its end is checked: no process is left, and no file.
func start(t *testing.T, nodes int, script string, change func(*Options)) *Crew {
	t.Helper()
	dir, err := os.MkdirTemp("", "crew") // t.TempDir's paths can be too long for a socket.
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Dsmd: os.Args[0], Nodes: nodes, Trap: "uffd", Transport: "tcp",
		Worker: []string{os.Args[0], playWorker, script}, Dir: dir,
	}
	if change != nil {
		change(&o)
	}
	c, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		c.Close()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left behind in its directory: %v, %v", left, err)
		}
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
		waitGone(t, dir)
	})
	return c
}

// waitGone waits until no process has the directory of the crew in its command line. The workers
// die with the fake dsmd by the kernel's doing, which takes a moment.
func waitGone(t *testing.T, dir string) {
	t.Helper()
	deadline := time.Now().Add(patience.Or(10 * time.Second))
	for {
		left := processesNaming(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left behind: %v", left)
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func processesNaming(text string) []string {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var found []string
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), text) {
			found = append(found, file)
		}
	}
	return found
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience.Or(20*time.Second))
	t.Cleanup(cancel)
	return ctx
}

func TestQuestionsAndAnswers(t *testing.T) {
	ctx := deadline(t)
	c := start(t, 3, "answer", nil)
	// Workers connect in their own time; asking them waits for nothing, so wait for what they say
	// first.
	waitPhase(t, c, "thinking")
	for number := range 5 {
		if err := c.Tell(question{number * 10}); err != nil {
			t.Fatal(err)
		}
		replies, err := c.Collect(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for rank, reply := range replies {
			var got int
			if err := json.Unmarshal(reply, &got); err != nil || got != number*10+rank {
				t.Errorf("rank %d replied %s, %v", rank, reply, err)
			}
		}
	}
	if err := c.Finish(ctx); err != nil {
		t.Fatal(err)
	}
}

// waitPhase waits until every rank has said that it is in the phase.
func waitPhase(t *testing.T, c *Crew, phase string) {
	t.Helper()
	ctx := deadline(t)
	for strings.Count(c.Doing(), phase) < c.options.Nodes {
		if ctx.Err() != nil {
			t.Fatalf("not all are %s: %s", phase, c.Doing())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestOptionsReachDsmd(t *testing.T) {
	c := start(t, 1, "answer", nil)
	waitPhase(t, c, "thinking")
	if err := c.Finish(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"--trap", "uffd", "--transport", "tcp"} {
		if !strings.Contains(c.output.String(), "option "+option+"\n") && !strings.HasSuffix(c.output.String(), "option "+option) {
			t.Errorf("dsmd run was not given %s: %s", option, c.output.String())
		}
	}
}

func TestFailures(t *testing.T) {
	for script, says := range map[string][]string{
		"fail": {"rank 1 failed while thinking", "no idea", "the cause on standard error"},
		// Which line's end is seen first is chance, and how far that rank has come: the others are
		// ended at once.
		"die":   {"ended while"},
		"leave": {"ended while thinking"},
	} {
		t.Run(script, func(t *testing.T) {
			_, err := start(t, 3, script, nil).Collect(deadline(t))
			if !errors.Is(err, ErrFailed) {
				t.Fatalf("Collect = %v, want ErrFailed", err)
			}
			for _, s := range says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("the error does not say %q: %v", s, err)
				}
			}
		})
	}
}

func TestDsmdThatCannotRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Start(Options{Dsmd: filepath.Join(dir, "none"), Nodes: 1, Dir: dir}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start without a dsmd = %v, want ErrNotExist", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err := start(t, 1, "", func(o *Options) { o.Dsmd = "/bin/false" }).Collect(deadline(t))
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("Collect from a dsmd that fails = %v", err)
	}
}

// TestHangIsExplained: a measurement that is cut off says what each rank was doing.
func TestHangIsExplained(t *testing.T) {
	for script, says := range map[string]string{
		"hang":          "rank 1 has been thinking (step 3 of 20) for",
		"never-connect": "rank 1 has been being started for",
	} {
		t.Run(script, func(t *testing.T) {
			cause := errors.New("took too long")
			progress := make(chan struct{}, 1)
			c := start(t, 2, script, func(o *Options) {
				o.OnProgress = func(_ string, done, _ int) {
					if done == 3 {
						progress <- struct{}{}
					}
				}
			})
			if script == "hang" {
				<-progress
				waitPhase(t, c, "step 3 of 20")
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			if _, err := c.Collect(ctx); !errors.Is(err, cause) || !strings.Contains(err.Error(), says) {
				t.Errorf("Collect = %v, want %q", err, says)
			}
		})
	}
}

// TestCloseKillsTheDeaf: a `dsmd run` that does not end when asked is killed.
func TestCloseKillsTheDeaf(t *testing.T) {
	t.Setenv(deafEnv, "1")
	c := start(t, 2, "hang", nil)
	waitPhase(t, c, "thinking")
	c.Close()
	select {
	case <-c.ended:
	default:
		t.Error("Close returned before dsmd run had ended")
	}
}

func TestSocketPathTooLong(t *testing.T) {
	if _, err := Start(Options{Dsmd: os.Args[0], Nodes: 1, Dir: "/" + strings.Repeat("d", maxPath)}); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("Start with a long directory = %v, want an error that names TMPDIR", err)
	}
}

func TestTailKeepsWholeLines(t *testing.T) {
	var out tail
	for i := range 1000 {
		fmt.Fprintf(&out, "line %d\n", i)
	}
	kept := strings.Split(out.String(), "\n")
	if first, last := kept[0], kept[len(kept)-1]; !strings.HasPrefix(first, "line ") || last != "line 999" || len(out.String()) > tailBytes {
		t.Errorf("kept %d bytes from %q to %q", len(out.String()), first, last)
	}
}
