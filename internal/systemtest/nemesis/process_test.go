package nemesis

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// process is a process on a machine. What the test has started is nsenter, whose child is a shell,
// whose child is the process itself: a signal that stops nothing but the process is noticed neither
// by nsenter, which would stop too, nor by its parent.
type process struct {
	*testcluster.Process
	t    testing.TB
	name string
	pid  int // in the test's namespace
}

// underShell runs a command as a child, with the same standard input.
const underShell = `"$@" <&0 & wait $!`

// startOn starts a command on a machine.
func startOn(t testing.TB, m *netns.Machine, name string, env []string, command ...string) *process {
	t.Helper()
	line := m.Line("/bin/bash", append([]string{"-c", underShell, "run"}, command...)...)
	p := &process{t: t, name: name}
	p.Process = testcluster.Start(t, testcluster.Command{Name: name, Path: "/usr/bin/env", Args: line, Env: env})
	testcluster.Eventually(t, name+" is there", func() bool {
		shell := onlyChild(p.PID())
		p.pid = onlyChild(shell)
		return p.pid != 0 || !p.Running()
	})
	return p
}

// onlyChild is the only child of a process, or 0 if it has none (yet).
func onlyChild(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return 0 // it has ended, or is none
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return child
}

// signal sends a signal to the process itself, unless it has ended.
func (p *process) signal(sig syscall.Signal) {
	// The shell is there until it has waited for the process; only then may the number be
	// another's.
	if p.Running() && p.pid != 0 && onlyChild(onlyChild(p.PID())) == p.pid {
		_ = syscall.Kill(p.pid, sig)
	}
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	p.Wait(p.t)
}

// endsWithin reports whether the process ends by itself, within a limit.
func (p *process) endsWithin(limit time.Duration) bool {
	for end := time.Now().Add(limit); p.Running(); time.Sleep(tick) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
