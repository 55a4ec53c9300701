package dsmtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"dsmd/dsm"
)

const (
	envCall  = "DSMTEST_CALL"  // in a rank: which call of Run it is for
	envEnd   = "DSMTEST_END"   // in a rank: when its test times out, as RFC 3339 has it
	envFlags = "DSMTEST_FLAGS" // flags for every `dsmd run`
	envTrap  = "DSMTEST_TRAP"  // the only one of RunEach's traps that is wanted
	// grace is how long `dsmd run` may take to end everything; its own --grace is shorter.
	grace = 10 * time.Second
)

// call is what this process is a rank for: "" if it is none. What the test starts is none.
var call = func() string {
	defer os.Unsetenv(envCall)
	return os.Getenv(envCall)
}()

// A rank times out at the moment that the test has said, however long it took to start.
func init() {
	defer os.Unsetenv(envEnd)
	if at, err := time.Parse(time.RFC3339Nano, os.Getenv(envEnd)); err == nil {
		left := max(time.Until(at), time.Millisecond) // 0 would be for ever
		os.Args = slices.Insert(os.Args, 1, "-test.timeout="+left.String())
	}
}

// margin is how long before the test's limit, which is so far off, its ranks time out; and how long
// before a rank's limit its context ends.
func margin(left time.Duration) time.Duration { return min(10*time.Second, left/5) }

// home is the folder in which tests of this package begin, also those that have left it.
var home, _ = os.Getwd() // "" is the folder of the moment

// IsRank reports whether this process is a rank, which a test has started by Run.
func IsRank() bool { return call != "" }

// running is whether body runs in this rank.
var running atomic.Bool

// Run runs body on n nodes, in one rank each, and returns when all have ended; see the package
// comment. flags are further ones for `dsmd run`, such as "--trap", "sigsegv". The test fails, and
// ends at once, if a rank fails. Run may be called by several tests at the same time, several times
// in one test, and in subtests; not by body.
func Run(t *testing.T, n int, body func(ctx context.Context, c *dsm.Cluster), flags ...string) {
	t.Helper()
	if running.Load() {
		t.Fatal("dsmtest: Run was called by the body of a Run")
	}
	this := fmt.Sprintf("%s#%d", t.Name(), count(t))
	switch call {
	case "":
		lead(t, this, n, flags)
	case this:
		take(t, body)
	}
}

// counts has how often each test has called Run. Copies of a test, which -count asks for, have the
// same name.
var counts = struct {
	sync.Mutex
	of map[*testing.T]int
}{of: map[*testing.T]int{}}

func count(t *testing.T) int {
	counts.Lock()
	defer counts.Unlock()
	if counts.of[t]++; counts.of[t] == 1 {
		t.Cleanup(func() {
			counts.Lock()
			defer counts.Unlock()
			delete(counts.of, t)
		})
	}
	return counts.of[t]
}

// lead runs the ranks and judges them.
func lead(t *testing.T, this string, n int, flags []string) {
	t.Helper()
	dsmd, err := daemon()
	if err != nil {
		t.Fatal("dsmtest: ", err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal("dsmtest: ", err)
	}
	args := slices.Concat([]string{"run", "--fail-on-early-exit", "--grace", "2s"}, strings.Fields(os.Getenv(envFlags)), flags,
		[]string{"--output", "prefix", "-n", strconv.Itoa(n), "--", self}, rankArgs(t.Name()))
	cmd := exec.Command(dsmd, args...)
	// By default each rank would sleep for a second at its end if it is built with -race. What the
	// user asks for comes later, and counts.
	cmd.Dir, cmd.Env = home, append(os.Environ(), envCall+"="+this, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var limit time.Duration // 0: without one
	if deadline, ok := t.Deadline(); ok && os.Getenv(envDebug) == "" {
		left := time.Until(deadline)
		limit = left - margin(left)/2
		cmd.Env = append(cmd.Env, envEnd+"="+deadline.Add(-margin(left)).Format(time.RFC3339Nano))
	}
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	failed := follow(cmd, limit)
	skipped, err := out.verdict(n, failed)
	switch {
	case err != nil:
		t.Fatalf("%v\n%s", err, out.text())
	case skipped:
		t.Skip("all ranks have skipped the test\n" + out.text())
	case testing.Verbose() && out.text() != "":
		t.Log("the ranks said:\n" + out.text())
	}
}

// rankArgs are the arguments of a test binary that runs one test as a rank.
func rankArgs(name string) []string {
	elements := strings.Split(name, "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	// -test.paniconexit0 makes os.Exit(0) in a test a failure.
	args := []string{"-test.run=" + strings.Join(elements, "/"), "-test.count=1", "-test.paniconexit0",
		fmt.Sprintf("-test.v=%t", testing.Verbose())}
	flag.Visit(func(f *flag.Flag) {
		own := !strings.HasPrefix(f.Name, "test.")
		if own || slices.Contains([]string{"test.short", "test.fullpath", "test.gocoverdir"}, f.Name) {
			args = append(args, fmt.Sprintf("-%s=%s", f.Name, f.Value))
		}
	})
	return append(append(args, "--"), flag.Args()...)
}

// follow runs `dsmd run` to its end, which it brings about after the limit, if there is one.
func follow(cmd *exec.Cmd, limit time.Duration) error {
	// A group of its own, so that a terminal's Ctrl-C is not the ranks' to handle. When this
	// process dies of it, or otherwise, the kernel asks `dsmd run` to end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.WaitDelay = grace
	// That signal is sent when the thread ends that has started the child (prctl(2),
	// PR_SET_PDEATHSIG): this one stays with us until the child has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("dsmtest: %w", err)
	}
	if limit == 0 {
		return cmd.Wait()
	}
	var late atomic.Bool
	end := time.AfterFunc(limit, func() {
		late.Store(true)
		// What has ended meanwhile needs no signal.
		_ = cmd.Process.Signal(syscall.SIGTERM)
	})
	kill := time.AfterFunc(limit+grace/2, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	defer end.Stop()
	err := cmd.Wait()
	if late.Load() {
		return errors.Join(fmt.Errorf("dsmtest: the ranks have not ended within %v", limit.Round(time.Millisecond)), err)
	}
	return err
}
