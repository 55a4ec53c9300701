package launch

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// exit says how a process ended.
type exit struct {
	Code   int            `json:"code"`   // exit status, if Signal is 0
	Signal syscall.Signal `json:"signal"` // the signal that killed it, or 0
	// Starved is how many processes the kernel has killed on that machine since the job began
	// because memory was wanted that there was not. It is told of processes that were killed.
	Starved uint64 `json:"starved,omitempty"`
}

// failed tells a failure from success.
func (e exit) failed() bool { return e.Code != 0 || e.Signal != 0 }

// status is the exit status that a shell reports: 128 plus the number of the signal for a killed
// process.
func (e exit) status() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

func (e exit) String() string {
	if e.Signal != 0 {
		text := fmt.Sprintf("was killed by signal %d (%v)", int(e.Signal), e.Signal)
		if e.Starved > 0 {
			text += fmt.Sprintf(" for want of memory, it seems (since the job began the kernel has killed %d here for that)", e.Starved)
		}
		return text
	}
	return fmt.Sprintf("exited with status %d", e.Code)
}

// remedy is what to do about such an end, to stand at the end of a line about it; "" if nothing is
// known.
func (e exit) remedy() string {
	if e.Starved == 0 {
		return ""
	}
	return "; lower --memory, or give the machine or its control group more"
}

// childInfo is the part of siginfo_t that waitid(2) fills, as 64-bit Linux lays it out (SIGCHLD
// fields of include/uapi/asm-generic/siginfo.h). x/sys/unix keeps these fields private.
type childInfo struct {
	signo, errno, code, _ int32
	pid, uid, status      int32
}

// The view below is only sound if it is no larger than what the kernel writes to.
var _ [unsafe.Sizeof(unix.Siginfo{}) - unsafe.Sizeof(childInfo{})]byte

// peekExit waits for a child to end and leaves it a zombie, so that its process id, and the id of
// the group it leads, cannot be given to a stranger before the group has been killed. With
// unix.WNOHANG in options it does not wait: pid is 0 if no such child has ended. With unix.WSTOPPED
// a child that stands still counts too. The error is unix.ECHILD if there is none.
func peekExit(idType, id, options int) (pid int, e exit, err error) {
	var info unix.Siginfo
	for {
		err = unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return 0, exit{}, err
	}
	c := (*childInfo)(unsafe.Pointer(&info))
	const exited = 1 // CLD_EXITED; CLD_KILLED and CLD_DUMPED carry the signal instead
	if c.code == exited {
		return int(c.pid), exit{Code: int(c.status)}, nil
	}
	return int(c.pid), exit{Signal: syscall.Signal(c.status)}, nil
}
