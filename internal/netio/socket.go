package netio

import (
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Recv takes what has arrived on socket fd, at most len(b) bytes, without waiting. It
// returns EAGAIN when nothing has, and 0 bytes with errno 0 when the other side has ended the
// connection. Preconditions: len(b) > 0.
func Recv(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// MaxVector bounds the pieces of one Vector. A larger one gains nothing: with pages of 4 KiB, 64
// pairs of header and page are 256 KiB, about what a socket takes at once. The kernel's own limit
// is 1,024.
const MaxVector = 128

// Vector gathers pieces of memory that one system call sends. The zero value is empty.
type Vector struct {
	message unix.Msghdr
	pieces  [MaxVector]unix.Iovec
	count   int
}

// Reset empties the vector. It forgets the pieces only when they are overwritten, so up
// to MaxVector pieces stay reachable for the garbage collector.
func (v *Vector) Reset() { v.count = 0 }

// Add appends a piece and reports whether there was room. Empty pieces are left out.
func (v *Vector) Add(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if v.count == MaxVector {
		return false
	}
	v.pieces[v.count].Base = unsafe.SliceData(b)
	v.pieces[v.count].SetLen(len(b))
	v.count++
	return true
}

// Send hands the pieces to socket fd without waiting and returns how many bytes it took. It returns
// EAGAIN when the socket takes nothing now. A peer that is gone gives EPIPE, never a signal.
// Preconditions: the vector is not empty.
func (v *Vector) Send(fd int) (int, unix.Errno) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	var n uintptr
	var errno unix.Errno
	if v.count == 1 {
		// Small frames are the common case, and sendto skips copying a vector into the kernel.
		piece := &v.pieces[0]
		n, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd),
			uintptr(unsafe.Pointer(piece.Base)), uintptr(piece.Len), flags, 0, 0)
	} else {
		v.message.Iov = &v.pieces[0]
		v.message.SetIovlen(v.count)
		n, _, errno = unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&v.message)), flags)
	}
	runtime.KeepAlive(v)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// Detach takes the socket out of a Go connection: it returns a descriptor of its own,
// close-on-exec, and closes c, which leaves the connection itself as it is. When it fails c is
// closed too.
func Detach(c *net.TCPConn) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("netio: detach a socket: %w", err)
	}
	fd := -1
	var dupErr error
	err = raw.Control(func(own uintptr) {
		fd, dupErr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return -1, fmt.Errorf("netio: detach a socket: %w", err)
	}
	return fd, nil
}

// unansweredProbes is how many questions in a row whether there is room the other side's kernel
// must leave unanswered before it counts as silent. One may just be on its way.
const unansweredProbes = 3

// Silence is for how long the other side's kernel has not answered what was sent on TCP socket fd,
// and whether there is anything for it to answer. The time is 0 when there is nothing, when it was
// sent so shortly ago that our kernel has not sent it again, and also when the process there does
// not read: its kernel says so, as often as it is asked. Else it counts from the last answer, which
// may have come long before.
func Silence(fd int) (silent time.Duration, expects bool, err error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false, fmt.Errorf("netio: ask a socket what was not answered: %w", err)
	}
	if info.Unacked > 0 && info.Retransmits > 0 || info.Probes >= unansweredProbes {
		silent = time.Duration(info.Last_ack_recv) * time.Millisecond
	}
	return silent, info.Unacked > 0 || info.Notsent_bytes > 0 || info.Probes > 0, nil
}

// KeepAlive has the kernel ask the other side of TCP socket fd whether it is there when nothing has
// passed for idle, and again every interval, until it has not answered count times: then the socket
// fails. idle and interval are whole seconds.
func KeepAlive(fd int, idle, interval time.Duration, count int) error {
	for option, value := range map[int]int{
		unix.TCP_KEEPIDLE: int(idle / time.Second), unix.TCP_KEEPINTVL: int(interval / time.Second), unix.TCP_KEEPCNT: count,
	} {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value); err != nil {
			return fmt.Errorf("netio: have a socket kept alive: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1); err != nil {
		return fmt.Errorf("netio: have a socket kept alive: %w", err)
	}
	return nil
}

// paces is how the names of the congestion controls begin that spread what is sent over time.
const paces = "bbr"

// Unpace keeps TCP socket fd from spreading over time what it sends, if the machine's congestion
// control does that (BBR): it arms a timer for every 64 KiB and holds the next back until then, by
// an estimate of the connection's speed that many small frames keep low. It takes cubic instead, or
// reno, which needs no privilege. Every other congestion control stays as the machine has it.
func Unpace(fd int) error {
	name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		return fmt.Errorf("netio: ask for a socket's congestion control: %w", err)
	}
	if !strings.HasPrefix(name, paces) {
		return nil
	}
	if unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") == nil {
		return nil
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
		return fmt.Errorf("netio: choose another congestion control than %s: %w", name, err)
	}
	return nil
}

// RetryWithin has the kernel send what was not answered on TCP socket fd again at least every so
// often, a second or more. Without it the time between two attempts doubles with each, so that a
// network that has healed is noticed only after as long again as it was broken. It takes Linux
// 6.15; the error wraps unix.ENOPROTOOPT where it is older.
func RetryWithin(fd int, every time.Duration) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS, int(every/time.Millisecond)); err != nil {
		return fmt.Errorf("netio: bound the pause between attempts to send: %w", err)
	}
	return nil
}
