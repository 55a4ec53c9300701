package attach

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvmsg and sendmsg never block (MSG_DONTWAIT), so they need not tell Go's scheduler that the
// thread may be away: RawSyscall saves that on the daemon's fast path.

// recvmsg returns the flags of the message also, to tell whether descriptors were lost.
func recvmsg(fd int, b, oob []byte) (n, oobn, flags int, errno unix.Errno) {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	msg := unix.Msghdr{Iov: &iov, Control: &oob[0]}
	msg.SetIovlen(1)
	msg.SetControllen(len(oob))
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		switch errno {
		case 0:
			return int(r), int(msg.Controllen), int(msg.Flags), 0
		case unix.EINTR:
		default:
			return 0, 0, 0, errno
		}
	}
}

func sendmsg(fd int, b, oob []byte) (n int, errno unix.Errno) {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	msg := unix.Msghdr{Iov: &iov}
	msg.SetIovlen(1)
	if len(oob) > 0 {
		msg.Control = &oob[0]
		msg.SetControllen(len(oob))
	}
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch errno {
		case 0:
			return int(r), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
