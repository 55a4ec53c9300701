package dsmtest_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
	"dsmd/internal/patience"
	"dsmd/internal/systemtest/testcluster"
)

// envVictim lets TestVictim fail. It has a value that is in the environment of nothing else.
const envVictim = "DSMTEST_TEST_VICTIM"

var echo = flag.String("dsmtest.echo", "", "what a rank of TestVictim/flags has to get")

func TestMain(m *testing.M) {
	// A rank of a victim that has its own idea of which tests to run runs none.
	if dsmtest.IsRank() && strings.HasSuffix(os.Getenv(envVictim), "absent") {
		os.Exit(0)
	}
	patience.Beside(12) // tests wait for victims that hang
	os.Exit(m.Run())
}

// TestChdir: a test may leave its folder before Run, and begins in it on each rank, too. It is the
// first test here, so that it builds dsmd.
func TestChdir(t *testing.T) {
	if _, err := os.Stat("dsmtest_test.go"); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	dsmtest.Run(t, 1, func(ctx context.Context, c *dsm.Cluster) {
		if _, err := os.Stat("dsmtest_test.go"); err == nil {
			t.Error("the rank has not left the folder")
		}
	})
}

// TestRun: what the ranks store all see, and the test's own process is none of them.
func TestRun(t *testing.T) {
	dsmtest.RunEach(t, []int{1, 2, 4}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if !dsmtest.IsRank() {
			t.Error("the body runs in the process of go test")
		}
		squares, err := dsm.Alloc[int](ctx, c, "squares", 1000)
		if err != nil {
			t.Fatal(err)
		}
		for i := c.Rank(); i < len(squares); i += c.Size() {
			squares[i] = i * i
		}
		if err := c.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		for i, s := range squares {
			if s != i*i {
				t.Fatalf("rank %d sees %d in place of %d", c.Rank(), s, i*i)
			}
		}
	})
}

// TestTwice: each Run of a test is one of its own, and a rank goes no further than its own.
func TestTwice(t *testing.T) {
	runs := 0
	defer func() {
		if !dsmtest.IsRank() && runs != 2 {
			t.Errorf("went on after %d Runs of 2", runs)
		}
	}()
	for _, n := range []int{2, 1} {
		dsmtest.Run(t, n, func(ctx context.Context, c *dsm.Cluster) {
			if c.Size() != n {
				t.Errorf("the Run of %d nodes has %d ranks", n, c.Size())
			}
		})
		runs++
	}
}

// TestLoseNode: a test can lose a node, and passes if the others say so.
func TestLoseNode(t *testing.T) {
	dsmtest.Run(t, 3, func(ctx context.Context, c *dsm.Cluster) {
		if err := c.Barrier(ctx); err != nil {
			t.Fatal(err)
		}
		if c.Rank() == 2 {
			dsmtest.LoseNode(t, c)
		}
		if err := c.Barrier(ctx); !errors.Is(err, dsm.ErrNodeLost) {
			t.Errorf("the barrier returned %v, want ErrNodeLost", err)
		}
		if left, err := c.Survivors(ctx); err != nil || !slices.Equal(left.Ranks(), []int{0, 1}) {
			t.Errorf("survivors: %v, %v", left, err)
		}
	}, "--survive")
}

// victims are tests that do not pass, by name.
var victims = map[string]func(t *testing.T){
	"fatal": onRanks(3, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 1 {
			t.Fatal("no idea")
		}
		t.Log("barrier: ", c.Barrier(ctx))
	}),
	"panic": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			panic("all is lost")
		}
		_ = c.Barrier(ctx)
	}),
	"goroutine": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 1 {
			go panic("in a goroutine")
			<-ctx.Done() // else the test may be over before that
		}
		_ = c.Barrier(ctx)
	}),
	"exit": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		os.Exit(0)
	}),
	"killed": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 1 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		_ = c.Barrier(ctx)
	}),
	"left": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			t.Log("barrier: ", c.Barrier(ctx))
		}
	}),
	"absent": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {}),
	"nested": onRanks(1, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		dsmtest.Run(t, 1, func(context.Context, *dsm.Cluster) {})
	}),
	"each": func(t *testing.T) {
		dsmtest.RunEach(t, []int{1}, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {})
	},
	"skip": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		t.Skip("nothing to see here")
	}),
	"skip some": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			t.Skip("not here")
		}
	}),
	"barrier": onRanks(2, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		if c.Rank() == 0 {
			if err := c.Barrier(ctx); err != nil {
				t.Fatal(err)
			}
		}
		<-ctx.Done()
		time.Sleep(time.Minute)
	}),
	"hang": onRanks(1, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		select {}
	}),
	"lost": func(t *testing.T) {
		dsmtest.Run(t, 3, func(ctx context.Context, c *dsm.Cluster) {
			if err := c.Barrier(ctx); err != nil {
				t.Fatal(err)
			}
			if c.Rank() == 2 {
				dsmtest.LoseNode(t, c)
			}
			t.Fatal("a survivor fails: ", c.Barrier(ctx))
		}, "--survive")
	},
	"survivor": func(t *testing.T) {
		dsmtest.Run(t, 3, func(ctx context.Context, c *dsm.Cluster) {
			if c.Rank() == 2 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			if err := c.Barrier(ctx); c.Rank() == 0 {
				t.Fatal("a survivor fails: ", err)
			}
		}, "--survive")
	},
	"flags": onRanks(1, func(t *testing.T, ctx context.Context, c *dsm.Cluster) {
		t.Fatalf("got %q and %q, short is %t", *echo, flag.Args(), testing.Short())
	}),
	"flag of dsmd": func(t *testing.T) {
		dsmtest.Run(t, 1, func(context.Context, *dsm.Cluster) {}, "--no-such-flag")
	},
}

func onRanks(n int, body func(t *testing.T, ctx context.Context, c *dsm.Cluster)) func(t *testing.T) {
	return func(t *testing.T) {
		dsmtest.Run(t, n, func(ctx context.Context, c *dsm.Cluster) { body(t, ctx, c) })
		t.Log("went on after Run")
	}
}

// TestVictim is what the tests below run.
func TestVictim(t *testing.T) {
	if os.Getenv(envVictim) == "" {
		t.Skip("it is run by other tests, to fail")
	}
	for name, victim := range victims {
		t.Run(name, victim)
	}
}

// builtDsmd is the dsmd of all victims. If each built it, one would wait for the other, longer than
// some of them may take.
var builtDsmd = sync.OnceValues(dsmtest.Build)

// victim is a run of TestVictim: everything of it has a mark in its environment, and a place of its
// own for temporary files.
func victim(t *testing.T, name string, args ...string) (cmd *exec.Cmd, mark string) {
	t.Helper()
	run := "^TestVictim$/^" + strings.ReplaceAll(name, " ", "_") + "$"
	cmd = exec.Command(os.Args[0], append([]string{"-test.run", run}, args...)...)
	mark = envVictim + "=" + t.TempDir() + name
	dsmd, err := builtDsmd()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "DSMTEST_DSMD="+dsmd, mark, "TMPDIR="+t.TempDir())
	cmd.WaitDelay = patience.Or(time.Minute)
	t.Cleanup(func() {
		tmp := cmd.Env[len(cmd.Env)-1][len("TMPDIR="):]
		if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
		awaitNone(t, mark)
	})
	return cmd, mark
}

// awaitNone waits until no process has the mark.
func awaitNone(t *testing.T, mark string) {
	t.Helper()
	for end := time.Now().Add(patience.Or(time.Minute)); ; time.Sleep(5 * time.Millisecond) {
		left := testcluster.Having(mark)
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %q", left)
		}
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		victim string
		args   []string
		says   []string
	}{
		{"fatal", nil, []string{"rank 1 has failed", "dsmtest_test.go:", "no idea"}},
		{"panic", nil, []string{"rank 0 has failed", "all is lost", "dsmtest_test.go:"}},
		{"goroutine", nil, []string{"rank 1 has failed", "in a goroutine"}},
		{"exit", nil, []string{"has failed", "os.Exit(0) during test"}},
		{"killed", nil, []string{"rank 1 has failed", "killed by signal 9"}},
		{"left", nil, []string{"rank 0", "rank 1"}},
		{"absent", nil, []string{"rank 0 has ended before the body did", "rank 1 has ended before the body did"}},
		{"nested", nil, []string{"Run was called by the body of a Run"}},
		{"skip some", nil, []string{"1 of 2 ranks have skipped"}},
		{"lost", nil, []string{"a survivor fails"}},
		{"survivor", nil, []string{"rank 0 has failed", "a survivor fails"}},
		{"flags", []string{"-dsmtest.echo=a b", "-test.short", "c", "d"}, []string{`got "a b" and ["c" "d"], short is true`}},
		{"flag of dsmd", nil, []string{"no-such-flag"}},
	} {
		t.Run(tt.victim, func(t *testing.T) {
			t.Parallel()
			cmd, _ := victim(t, tt.victim, tt.args...)
			if wrong := failure(cmd, append(tt.says, "--- FAIL: TestVictim/"+strings.ReplaceAll(tt.victim, " ", "_"))...); wrong != nil {
				t.Error(wrong)
			}
		})
	}
}

// failure runs a victim. The error says how that differs from a failure that says all of these.
func failure(victim *exec.Cmd, says ...string) (wrong error) {
	said, err := victim.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		wrong = fmt.Errorf("the test ended with %v, want status 1", err)
	}
	for _, want := range says {
		if !strings.Contains(string(said), want) {
			wrong = errors.Join(wrong, fmt.Errorf("the test did not say %q", want))
		}
	}
	if strings.Contains(string(said), "went on after") {
		wrong = errors.Join(wrong, errors.New("the test went on after Run"))
	}
	if wrong != nil {
		return fmt.Errorf("%w; it said:\n%s", wrong, said)
	}
	return nil
}

// TestTimeOut: who waits when the time is over says so.
func TestTimeOut(t *testing.T) {
	t.Parallel()
	for name, says := range map[string][]string{
		"barrier": {"rank 0 has failed", "rank 1", "--- FAIL: TestVictim/barrier"},
		"hang":    {"rank 0 has failed", "test timed out", "select (no cases)", "--- FAIL: TestVictim/hang"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timesOut(t, func(time.Duration) (*exec.Cmd, []string) {
				cmd, _ := victim(t, name)
				return cmd, says
			})
		})
	}
}

// timesOut runs a victim that takes all the time that it has, and says as much as it should. On a
// slow or busy machine a part of that time may be too short to start in, or to say anything. So the
// limit is a short one at first, and then ever longer.
func timesOut(t *testing.T, victim func(limit time.Duration) (cmd *exec.Cmd, says []string)) {
	t.Helper()
	for limit := 10 * time.Second; ; limit *= 2 {
		cmd, says := victim(limit)
		cmd.Args = append(cmd.Args, "-test.timeout="+limit.String())
		switch wrong := failure(cmd, says...); {
		case wrong == nil:
			return
		case limit >= patience.Or(time.Minute):
			t.Fatalf("with a limit of %v: %v", limit, wrong)
		default:
			t.Logf("a limit of %v is too short, or: %v", limit, wrong)
		}
	}
}

// TestSlowStart: a rank that hangs says so in time although its start has taken most of the time.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	dsmd, err := builtDsmd()
	if err != nil {
		t.Fatal(err)
	}
	timesOut(t, func(limit time.Duration) (*exec.Cmd, []string) {
		slow := t.TempDir() + "/dsmd"
		if err := os.WriteFile(slow, fmt.Appendf(nil, "#!/bin/sh\nsleep %.1f\nexec '%s' \"$@\"\n", limit.Seconds()/2, dsmd), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd, _ := victim(t, "hang")
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-2, "DSMTEST_DSMD="+slow)
		return cmd, []string{"rank 0 has failed", "test timed out", "select (no cases)"}
	})
}

// TestSettings: the environment says which dsmd is run, and with what.
func TestSettings(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{
		"DSMTEST_DSMD=/no/such/dsmd":          "/no/such/dsmd",
		"DSMTEST_FLAGS=--spin 1s --no-such-x": "no-such-x",
	} {
		cmd, _ := victim(t, "hang")
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-2, setting)
		if said, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(said), want) {
			t.Errorf("with %s the test ended with %v, and said:\n%s", setting, err, said)
		}
	}
}

// TestTrap: the environment chooses RunEach's trap, and cannot choose none.
func TestTrap(t *testing.T) {
	t.Parallel()
	for trap, want := range map[string]string{"sigsegv": "--- PASS: TestVictim/each/sigsegv/1", "segv": "set it to one of [auto sigsegv]"} {
		cmd, _ := victim(t, "each", "-test.v")
		cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-2, "DSMTEST_TRAP="+trap)
		said, err := cmd.CombinedOutput()
		if (err == nil) != (trap == "sigsegv") || !strings.Contains(string(said), want) || strings.Contains(string(said), "each/auto") {
			t.Errorf("with %s the test ended with %v, and said:\n%s", trap, err, said)
		}
	}
}

// TestSkip: a test that all ranks skip is skipped.
func TestSkip(t *testing.T) {
	t.Parallel()
	cmd, _ := victim(t, "skip", "-test.v")
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(said), "nothing to see here") || !strings.Contains(string(said), "--- SKIP: TestVictim/skip") {
		t.Errorf("the test ended with %v, and said:\n%s", err, said)
	}
}

// TestNothingStaysBehind: what a test has started ends with the test, however that ends.
func TestNothingStaysBehind(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd, mark := victim(t, "hang", "-test.timeout=5m")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// The test, dsmd run, a daemon and a rank.
			for end := time.Now().Add(patience.Or(time.Minute)); len(testcluster.Having(mark)) < 4; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("no rank was started")
				}
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("the test has passed")
			}
			awaitNone(t, mark)
		})
	}
}

// TestDebugger: a rank waits for a debugger, and says its process number.
func TestDebugger(t *testing.T) {
	t.Parallel()
	cmd, mark := victim(t, "fatal", "-test.timeout=0")
	cmd.Env = slices.Insert(cmd.Env, len(cmd.Env)-2, "DSMTEST_DEBUG=1")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience.Or(time.Minute), func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	var pid int
	seen := make([]byte, 0, 4096)
	for pid == 0 {
		n, err := said.Read(seen[len(seen):cap(seen)])
		if err != nil {
			t.Fatalf("no rank waits for a debugger; the test said %q", seen)
		}
		seen = seen[:len(seen)+n]
		if _, at, ok := strings.Cut(string(seen), "dlv attach "); ok && strings.Contains(at, "\n") {
			fmt.Sscan(at, &pid)
		}
	}
	if !slices.ContainsFunc(testcluster.Having(mark), func(p string) bool { return strings.HasPrefix(p, fmt.Sprint(pid, " ")) }) {
		t.Errorf("process %d is none of the test's", pid)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

// TestUsersModule: a module of its own tests its package on a cluster, and what the ranks cover
// counts.
func TestUsersModule(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module user\n\ngo 1.26.0\n\nrequire (\n\tdsmd v0.0.0\n\tgolang.org/x/sys v0.49.0\n)\n\nreplace dsmd => " + root + "\n",
		"user.go": `package user

func Twice(i int) int {
	if i%2 == 1 {
		return i + i
	}
	return 2 * i
}
`,
		"user_test.go": `package user

import (
	"context"
	"testing"

	"dsmd/dsm"
	"dsmd/dsm/dsmtest"
)

func TestTwice(t *testing.T) {
	dsmtest.Run(t, 2, func(ctx context.Context, c *dsm.Cluster) {
		sum, err := dsm.Reduce(ctx, c, "sum", Twice(c.Rank()), dsm.Sum)
		if err != nil || sum != 2 {
			t.Error(sum, err)
		}
		t.Log("this is rank", c.Rank())
	})
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "test", "-mod=mod", "-v", "-count=1", "-cover", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go test: %v\n%s", err, said)
	}
	for _, want := range []string{"this is rank 0", "this is rank 1", "coverage: 100.0%"} {
		if !strings.Contains(string(said), want) {
			t.Errorf("go test did not say %q:\n%s", want, said)
		}
	}
}
