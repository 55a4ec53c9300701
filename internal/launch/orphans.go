package launch

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// reapOrphans reaps processes of the job that became children of this one because their parent died, so that they do
// not pile up as zombies during a long job. The job's own children are left to child.watch, which hides
// orphans behind them only until it has reaped them.
func (s *supervisor) reapOrphans() {
	for {
		pid, _, err := peekExit(unix.P_ALL, 0, unix.WNOHANG)
		if err != nil || pid == 0 || s.isOwn(pid) {
			return
		}
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}
}

// isOwn tells the job's own children from orphans.
func (s *supervisor) isOwn(pid int) bool {
	if pid == s.guard.cmd.Process.Pid {
		return true
	}
	for _, c := range s.children {
		if c.pid == pid && !c.reaped {
			return true
		}
	}
	return false
}

// endOrphans kills and reaps every child of this process, and what becomes its child by that, until there is none
// or the deadline has come: only a process in uninterruptible sleep or one that forks without end is left then.
// Preconditions: all children of the job have been reaped and the guard was dismissed.
func endOrphans(deadline time.Time) (left int) {
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
		children := childrenOf(os.Getpid())
		if time.Now().After(deadline) {
			return len(children)
		}
		for _, pid := range children {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		// The killed need a moment to die. This is the end of a job that left something behind, not its normal end.
		time.Sleep(time.Millisecond)
	}
}

// childrenOf lists the children of a process.
func childrenOf(parent int) (children []int) {
	for _, pid := range processes() {
		if parentOf(pid) == parent {
			children = append(children, pid)
		}
	}
	return children
}

// parentOf is 0 for a process that is gone.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// "pid (name) state ppid …", where the name may contain anything.
	_, rest, ok := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(string(fields[1]))
	return parent
}
