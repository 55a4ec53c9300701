package launch

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// reapOrphans reaps processes of the job that became children of this one because their parent
// died, so that they do not pile up as zombies during a long job. The job's own processes are left
// to local.watch; they hide orphans behind them only until it has reaped them.
func (l *local) reapOrphans() {
	// Nothing is started meanwhile, so every process of our own is known.
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		pid, _, err := peekExit(unix.P_ALL, 0, unix.WNOHANG)
		if err != nil || pid == 0 || l.isOwnLocked(pid) {
			return
		}
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

// isOwnLocked tells the job's own processes from orphans. The guard, and before it is known
// everything, counts as own.
func (l *local) isOwnLocked(pid int) bool {
	if l.guard == nil || pid == l.guard.cmd.Process.Pid {
		return true
	}
	return slices.ContainsFunc(l.processes, func(p *process) bool { return p.pid == pid && p.exists() })
}

// endOrphans ends what the programs left behind, and then the guard: if this process is killed
// meanwhile, the guard does the rest. Preconditions: all children of the job have been reaped, or
// the deadline has come.
func (l *local) endOrphans(deadline time.Time) (left int) {
	l.mu.Lock()
	guard := l.guard
	l.renewals = 0 // another one would not be spared
	l.mu.Unlock()
	if guard != nil {
		endOrphans(deadline, guard.cmd.Process.Pid)
		l.dismissGuard()
	}
	return endOrphans(deadline, 0) // whom a look at /proc has missed
}

// endOrphans kills and reaps every child of this process, and what becomes its child by that, until
// there is none or the deadline has come: only a process in uninterruptible sleep or one that forks
// without end is left then. A child that is spared, if it is not 0, lives on.
func endOrphans(deadline time.Time, spared int) (left int) {
	for {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return 0 // ECHILD: there is none
			}
			if pid == 0 {
				break
			}
		}
		children := slices.DeleteFunc(childrenOf(os.Getpid()), func(pid int) bool { return pid == spared })
		if time.Now().After(deadline) || spared != 0 && len(children) == 0 {
			return len(children)
		}
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		// The killed need a moment to die. This is the end of a job that left something behind, not
		// its normal end.
		time.Sleep(time.Millisecond)
	}
}

// childrenOf lists the children of a process.
func childrenOf(parent int) (children []int) {
	all, _ := procfs.AllProcs()
	for _, p := range all {
		if stat, err := p.Stat(); err == nil && stat.PPID == parent {
			children = append(children, p.PID)
		}
	}
	return children
}

// Positions in what stat returns (proc_pid_stat(5) counts from the process id on).
const (
	statFlags    = 6
	statExitCode = 49
)

// stat returns the fields of /proc/PID/stat behind the name, nil for a process that is gone.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// "pid (name) state …", where the name may contain anything.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= statExitCode {
		return nil
	}
	return fields
}

// exiting reports whether a child of this process has begun to exit, or has, and how. The kernel
// notes both before it closes the process's descriptors, so whoever has seen its connection end
// finds them; and it may be a while, for the memory has to be given back, before the process can be
// waited for.
func exiting(pid int) (exit, bool) {
	const pfExiting = 0x4
	fields := stat(pid)
	if fields == nil {
		return exit{}, false
	}
	flags, _ := strconv.ParseUint(fields[statFlags], 10, 64)
	code, _ := strconv.ParseUint(fields[statExitCode], 10, 32)
	ws := syscall.WaitStatus(code)
	switch {
	case flags&pfExiting == 0:
		return exit{}, false
	case ws.Signaled():
		return exit{Signal: ws.Signal()}, true
	default:
		return exit{Code: ws.ExitStatus()}, true
	}
}
