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
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// sweepPasses bounds how often the guard looks for processes of the job. A process that forks while it is being looked
	// for may be missed by one pass; its child is found by the next, unless it forks faster than /proc can be read.
	sweepPasses = 20
	// emptyPasses is how many passes in a row, sweepPause apart, must find nothing. In the middle of execve a process has no
	// environment to read, and on a busy machine it may stay there for some milliseconds.
	emptyPasses = 3
	sweepPause  = 10 * time.Millisecond
)

// guard is the supervisor's side of the guard process.
type guard struct {
	cmd  *exec.Cmd
	tell *os.File
}

// startGuard starts the guard process. Its standard input is a pipe that only the supervisor's process holds open.
func startGuard(line []string, token string) (*guard, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("launch: making a pipe for the guard: %w", explainLimit(err))
	}
	defer r.Close()
	g := &guard{cmd: command(line), tell: w}
	g.cmd.Args = append(g.cmd.Args, token)
	g.cmd.Stdin = r
	// A session of its own: no signal of the terminal reaches it. Its outputs are /dev/null, so that it
	// does not keep a pipe open for which somebody waits. No parent-death signal, of course.
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := g.cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("launch: starting the guard: %w", explainLimit(err))
	}
	return g, nil
}

// add names a process group that must not outlive the supervisor. A guard that is gone is no reason to
// end the job: there are the parent-death signals.
func (g *guard) add(group int) { _, _ = fmt.Fprintf(g.tell, "+%d\n", group) }

// remove takes a group back, before its id can be given to a stranger.
func (g *guard) remove(group int) { _, _ = fmt.Fprintf(g.tell, "-%d\n", group) }

// dismiss ends the guard process without its doing anything.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	g.tell.Close()
}

// Guard is the whole life of the guard process: it reads groups from the pipe that the supervisor holds, and when
// that ends, which only the supervisor's death brings about, kills what is left of the job with the given token.
func Guard(from io.Reader, token string) {
	// Whoever signals everything called dsmd means the supervisor; the guard ends after it.
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
	mark := []byte(EnvSocket + "=" + SocketPrefix + token + "-")
	for pass, empty := 0, 0; pass < sweepPasses && empty < emptyPasses; pass++ {
		if sweep(mark) > 0 {
			empty = 0
			continue
		}
		empty++
		time.Sleep(sweepPause)
	}
}

// sweep kills every process that has the mark in its environment and returns how many it found. It finds programs that
// have left their group. Those of another user, which have become set-user-id, cannot be read, nor killed.
func sweep(mark []byte) (found int) {
	for _, pid := range processes() {
		if pid == os.Getpid() || !marked(pid, mark) {
			continue
		}
		// Hold on to the process, then look again: the id could have been given to another one.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		if marked(pid, mark) && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil {
			found++
		}
		_ = unix.Close(fd)
	}
	return found
}

func marked(pid int, mark []byte) bool {
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for entry := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.HasPrefix(entry, mark) {
			return true
		}
	}
	return false
}

// processes lists the ids in /proc.
func processes() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
