package netio

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Forever is the timeout of a Wait without one.
const Forever time.Duration = -1

// Wait is Check, but sleeps up to timeout until something is ready. It is the one call of this
// package that may wait, so it tells Go's scheduler. Timeouts are exact to the nanosecond where the
// kernel has epoll_pwait2 (Linux 5.11), else rounded up to a millisecond.
func (p *Poller) Wait(timeout time.Duration) int {
	var ts *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		ts = &t
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), readyBatch, uintptr(unsafe.Pointer(ts)), 0, 0)
	if errno == unix.ENOSYS {
		return p.waitMilliseconds(timeout)
	}
	if errno != 0 {
		return 0 // EINTR: the caller looks around and comes back
	}
	return int(n)
}

func (p *Poller) waitMilliseconds(timeout time.Duration) int {
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.EpollWait(p.fd, p.events[:], ms)
	if err != nil {
		return 0
	}
	return n
}
