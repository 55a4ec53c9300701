package testcluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/patience"
)

// Patience bounds every wait.
var Patience = patience.Or(45 * time.Second)

// DeadAfter is the --dead-after of clusters in which a silent daemon is to be found dead: short,
// but longer where everything may take longer, as daemons that get no processor for so long are
// dead to the others.
var DeadAfter = max(4*time.Second, Patience/10)

// Process is a running process that belongs to a test. Its methods that take t fail the test when
// what they wait for does not come.
type Process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout transcript
	stderr transcript
	ended  chan struct{} // closed when the process has ended and its output is complete
}

// transcript collects the lines that a process prints.
type transcript struct {
	mu      sync.Mutex
	text    strings.Builder // guarded by mu
	partial []byte          // a line without its end; guarded by mu
	lines   []string        // guarded by mu
	read    int             // lines that the test has taken; guarded by mu
	more    chan struct{}   // holds a token when lines were added
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(b)
	t.partial = append(t.partial, b...)
	for {
		line, rest, ok := strings.Cut(string(t.partial), "\n")
		if !ok {
			break
		}
		t.lines = append(t.lines, line)
		t.partial = []byte(rest)
	}
	select {
	case t.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}

// take returns the next line that was not taken.
func (t *transcript) take() (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read == len(t.lines) {
		return "", false
	}
	t.read++
	return t.lines[t.read-1], true
}

// Command says how to start a process that is not one of the usual ones.
type Command struct {
	Name  string // for messages
	Path  string
	Args  []string
	Env   []string // added to the test's own
	Files []*os.File
	User  *syscall.Credential // nil: the test's own
}

// Start starts a process, in a process group of its own. It is killed when the test ends, or the
// test binary.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p := &Process{name: c.Name, cmd: exec.Command(c.Path, c.Args...), ended: make(chan struct{})}
	p.stdout.more, p.stderr.more = make(chan struct{}, 1), make(chan struct{}, 1)
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// Under the race detector each process would sleep for a second before it ends.
	p.cmd.Env = append(append(os.Environ(), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")), c.Env...)
	p.cmd.ExtraFiles = c.Files
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: c.User}
	p.cmd.WaitDelay = Patience // an orphan that holds the output must not hold up the test
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", c.Name, err)
	}
	go func() { _ = p.cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.ended
		if strings.Contains(p.stderr.String(), "WARNING: DATA RACE") {
			t.Errorf("the race detector has found something in %s", p.name)
		}
		if t.Failed() {
			t.Logf("%s ended with %v, and printed\n%s%s", p.name, p.cmd.ProcessState, indented(p.stdout.String()), indented(p.stderr.String()))
		}
	})
	return p
}

func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("\t| " + strings.TrimSuffix(line, "\n") + "\n")
	}
	return b.String()
}

// PID is the id of the process and of its group.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process and its group. It does nothing if the process has ended.
func (p *Process) Signal(sig syscall.Signal) {
	select {
	case <-p.ended:
	default:
		_ = syscall.Kill(-p.PID(), sig)
	}
}

// SignalAlone sends a signal to the process, but not to its group.
func (p *Process) SignalAlone(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Stop stops the process with SIGSTOP and waits until all its threads have stopped; SIGCONT lets it
// go on.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.Signal(syscall.SIGSTOP)
	Eventually(t, p.name+" stops", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil || len(threads) == 0 {
			t.Fatalf("%s has no threads: %v", p.name, err)
		}
		return !slices.ContainsFunc(threads, func(path string) bool {
			// "tid (name) state …", and the name may contain anything
			stat, err := os.ReadFile(path)
			return err == nil && !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" T "))
		})
	})
}

// Kill kills the process and waits for its end.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Signal(syscall.SIGKILL)
	p.Wait(t)
}

// Say gives the process a line.
func (p *Process) Say(t testing.TB, format string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		t.Fatalf("%s does not listen: %v", p.name, err)
	}
}

// Hear returns the next line that the process prints.
func (p *Process) Hear(t testing.TB) string {
	t.Helper()
	line, err := p.hear(&p.stdout)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func (p *Process) hear(from *transcript) (string, error) {
	deadline := time.NewTimer(Patience)
	defer deadline.Stop()
	for {
		if line, ok := from.take(); ok {
			return line, nil
		}
		select {
		case <-from.more:
		case <-p.ended:
			if line, ok := from.take(); ok {
				return line, nil
			}
			return "", fmt.Errorf("%s ended (%v) instead of saying something", p.name, p.cmd.ProcessState)
		case <-deadline.C:
			return "", fmt.Errorf("%s has said nothing for %v", p.name, Patience)
		}
	}
}

// Pending reports whether the process has printed a line that the test has not taken.
func (p *Process) Pending() bool {
	p.stdout.mu.Lock()
	defer p.stdout.mu.Unlock()
	return p.stdout.read < len(p.stdout.lines)
}

// Expect fails the test if the next line is not this one.
func (p *Process) Expect(t testing.TB, want string) {
	t.Helper()
	if got := p.Hear(t); got != want {
		t.Fatalf("%s said %q, want %q", p.name, got, want)
	}
}

// Ask gives the process a line and returns its answer.
func (p *Process) Ask(t testing.TB, format string, args ...any) string {
	t.Helper()
	p.Say(t, format, args...)
	return p.Hear(t)
}

// Do gives the process a line, and fails the test if the answer is not want.
func (p *Process) Do(t testing.TB, want, format string, args ...any) {
	t.Helper()
	if got := p.Ask(t, format, args...); got != want {
		t.Fatalf("%s answered %q with %q, want %q", p.name, fmt.Sprintf(format, args...), got, want)
	}
}

// AwaitLog waits until a line on standard error contains text, and returns that line.
func (p *Process) AwaitLog(t testing.TB, text string) string {
	t.Helper()
	for {
		line, err := p.hear(&p.stderr)
		if err != nil {
			t.Fatalf("waiting for %q on standard error: %v", text, err)
		}
		if strings.Contains(line, text) {
			return line
		}
	}
}

// End ends the input of the process, which is how a program is told that nothing more comes.
func (p *Process) End() { _ = p.stdin.Close() }

// Wait waits for the end of the process and returns its exit status, 128 plus the signal if one
// killed it.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	return p.waitWithin(t, Patience)
}

func (p *Process) waitWithin(t testing.TB, limit time.Duration) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.Signal(syscall.SIGQUIT) // Go's runtime says where its goroutines are
		select {
		case <-p.ended:
		case <-time.After(time.Second):
		}
		t.Fatalf("%s has not ended within %v", p.name, limit)
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Output is everything on standard output so far.
func (p *Process) Output() string { return p.stdout.String() }

// Errors is everything on standard error so far.
func (p *Process) Errors() string { return p.stderr.String() }

// Succeed waits for the end of the process and fails the test if it failed.
func (p *Process) Succeed(t testing.TB) {
	t.Helper()
	p.succeedWithin(t, Patience)
}

func (p *Process) succeedWithin(t testing.TB, limit time.Duration) {
	t.Helper()
	p.End()
	if status := p.waitWithin(t, limit); status != 0 {
		t.Fatalf("%s ended with status %d", p.name, status)
	}
}

// Eventually waits until done returns true. It is for what can only be asked for, not waited for:
// counters and lists of processes.
func Eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for pause := time.Millisecond; !done(); pause = min(2*pause, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, Patience)
		}
		time.Sleep(pause)
	}
}
