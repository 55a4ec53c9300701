package launch

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

const (
	// sweepPasses bounds how often the guard looks for processes of the job. One pass may miss a
	// process that forks meanwhile. The next pass finds its child, unless it forks faster than
	// /proc can be read.
	sweepPasses = 20
	// emptyPasses is how many passes in a row, sweepPause apart, must find nothing. In the middle
	// of execve a process has no environment to read, and on a busy machine it may stay there for
	// some milliseconds.
	emptyPasses = 3
	sweepPause  = 10 * time.Millisecond
	// mostRenewals bounds how often a guard is replaced. One that nobody lets live is of no use.
	mostRenewals = 100
)

// guard is the supervisor's side of the guard process.
type guard struct {
	cmd    *exec.Cmd
	tell   *os.File
	groups map[int]bool // that it knows
}

// startGuard starts the guard process of the programs that attach at some sockets. Its standard
// input is a pipe that only the supervisor's process holds open.
func startGuard(line []string, sockets []string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("launch: making a pipe for the guard: %w", explainLimit(err))
	}
	defer r.Close()
	g := &guard{cmd: command(line), tell: w, groups: map[int]bool{}}
	g.cmd.Args = append(g.cmd.Args, strings.Join(sockets, ","))
	g.cmd.Stdin = r
	// A session of its own: no signal of the terminal reaches it. Its outputs are /dev/null, so
	// that it does not keep a pipe open for which somebody waits. No parent-death signal, of
	// course.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := g.cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("launch: starting the guard: %w", explainLimit(err))
	}
	return g, nil
}

// add names a process group that must not outlive the supervisor. A guard that is gone is no reason
// to end the job: there are the parent-death signals.
func (g *guard) add(group int) {
	g.groups[group] = true
	_, _ = fmt.Fprintf(g.tell, "+%d\n", group)
}

// remove takes a group back, before its id can be given to a stranger.
func (g *guard) remove(group int) {
	delete(g.groups, group)
	_, _ = fmt.Fprintf(g.tell, "-%d\n", group)
}

// renewGuard starts another guard in the place of one that has ended, because somebody has killed
// it, say. Where that cannot be, the next death of a child is the next attempt.
func (l *local) renewGuard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.guard == nil || l.renewals == 0 {
		return
	}
	if pid, _, err := peekExit(unix.P_PID, l.guard.cmd.Process.Pid, unix.WNOHANG); pid == 0 || err != nil {
		return
	}
	l.renewals--
	g, err := startGuard(l.commands.Guard, l.endpoints.sockets())
	if err != nil {
		return
	}
	for group := range l.guard.groups {
		g.add(group)
	}
	l.guard.dismiss()
	l.guard = g
}

// dismiss ends the guard process without its doing anything.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.tell.Close()
}

// Guard is the whole life of the guard process. It reads groups from the pipe that the supervisor
// holds. When the pipe ends, which only the supervisor's death brings about, it kills what is left
// of them, and of programs that attach at the given sockets, whose names are separated by commas.
// Another part of the same job may go on, and on the same machine.
func Guard(from io.Reader, sockets string) {
	// A user who signals everything called dsmd means the supervisor; the guard ends after it.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	groups := map[int]bool{}
	for lines := bufio.NewScanner(from); lines.Scan(); {
		line := lines.Text()
		if group, err := strconv.Atoi(line[1:]); err == nil && group > 1 {
			groups[group] = line[0] == '+'
		}
	}
	for group, alive := range groups {
		if alive {
			_ = unix.Kill(-group, unix.SIGKILL)
		}
	}
	marks := map[string]bool{}
	for socket := range strings.SplitSeq(sockets, ",") {
		marks[EnvSocket+"="+socket] = true
	}
	for pass, empty := 0, 0; pass < sweepPasses && empty < emptyPasses; pass++ {
		if sweep(marks) > 0 {
			empty = 0
			continue
		}
		empty++
		time.Sleep(sweepPause)
	}
}

// sweep kills every process that has one of the marks in its environment and returns how many it
// found. It finds programs that have left their group. Those of another user, which have become
// set-user-id, cannot be read, nor killed.
func sweep(marks map[string]bool) (found int) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if p.PID == os.Getpid() || !marked(p.PID, marks) {
			continue
		}
		// Hold on to the process, then look again: the id could have been given to another one.
		fd, err := unix.PidfdOpen(p.PID, 0)
		if err != nil {
			continue
		}
		if marked(p.PID, marks) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			found++
		}
		_ = unix.Close(fd)
	}
	return found
}

// marked reports whether one of the variables, NAME=VALUE, is in a process's environment.
func marked(pid int, marks map[string]bool) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if marks[string(entry)] {
			return true
		}
	}
	return false
}
