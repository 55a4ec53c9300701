package attach

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// backlog is how many programs may be connecting at once. Each node has few.
const backlog = 128

// Listen opens a non-blocking listening socket. A socket file that a daemon which no longer runs
// has left at the path is replaced; one that somebody listens at is not, also not one of two that
// begin at the same moment. A socket file is made for its owner only: whoever may connect may read
// and write the shared memory. It must not be in a directory where others can put another in its
// place. An abstract socket has no mode: there, whom to talk to, either side decides by Peer.
func Listen(socket string) (*Listener, error) {
	if err := CheckSocket(socket); err != nil {
		return nil, err
	}
	if socket[0] == '@' {
		fd, err := bind(socket)
		if err != nil {
			return nil, err
		}
		return &Listener{FD: fd}, nil
	}
	if err := checkDirectory(filepath.Dir(socket)); err != nil {
		return nil, err
	}
	lock, err := claim(socket)
	if err != nil {
		return nil, err
	}
	l := &Listener{FD: -1, path: socket, lock: lock}
	// One that does not know of locks may listen there.
	if err = removeStale(socket); err == nil {
		l.FD, err = bind(socket)
	}
	if err == nil {
		err = unix.Lstat(socket, &l.socket)
	}
	if err != nil {
		if l.FD >= 0 {
			unix.Close(l.FD)
		}
		return nil, errors.Join(err, l.removeLock(), lock.Close())
	}
	return l, nil
}

// bind makes a socket and listens.
func bind(socket string) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// On Linux the mode of the socket's inode becomes the mode of the file that bind makes, so
	// there is no moment at which others can connect. An abstract socket has no mode.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach: listen at %s: %w", socket, os.NewSyscallError("bind", err))
	}
	if err := unix.Listen(fd, backlog); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("attach: listen at %s: %w", socket, os.NewSyscallError("listen", err))
	}
	return fd, nil
}

// checkDirectory refuses a directory in which another user could replace the socket by one of his
// own, at which programs would then attach. In a sticky one, like /tmp, he cannot. Members of the
// own group can be let in: many systems give each user one of his own.
func checkDirectory(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("attach: listen in %s: %w", dir, os.NewSyscallError("stat", err))
	}
	writable := uint32(unix.S_IWOTH)
	if int(st.Gid) != os.Getegid() {
		writable |= unix.S_IWGRP
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("attach: listen in %s: the directory belongs to user %d, who could put another socket there; choose one of your own", dir, st.Uid)
	case st.Mode&writable != 0 && st.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("attach: listen in %s: others could put another socket there; run: chmod go-w %[1]s, or choose another directory", dir)
	}
	return nil
}

// removeStale removes a socket file at which nobody listens.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("attach: listen: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("attach: listen at %s: there is a file of another kind (%v); remove it or choose another path", path, info.Mode().Type())
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		c.Close()
		return fmt.Errorf("attach: listen at %s: %w: another daemon serves there", path, unix.EADDRINUSE)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("attach: listen at %s: %w", path, err)
	}
	return os.Remove(path)
}

// Accept takes a program's connection from a listening socket: a non-blocking descriptor that the
// caller closes. The error is unix.EAGAIN when nobody is waiting.
func Accept(listener int) (fd int, err error) {
	for {
		fd, _, err = unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			return fd, nil
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return -1, err
		}
	}
}

// Peer is who is at the other end of a connection, as the kernel knows it.
func Peer(fd int) (pid int, uid uint32, err error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, 0, os.NewSyscallError("SO_PEERCRED", err)
	}
	return int(cred.Pid), cred.Uid, nil
}

// errTruncated: the peer sent too many descriptors, or this process may not open more.
var errTruncated = fmt.Errorf("%w: descriptors were lost on the way: too many came, or the limit of open files is reached (ulimit -n)", ErrMalformed)

// Receive reads once from a non-blocking socket into s. The error is unix.EAGAIN when nothing has
// come, io.EOF when the peer has closed (io.ErrUnexpectedEOF: within a frame), and anything else is
// the end of the connection too.
func Receive(fd int, s *Stream) error {
	// more than maxWaitingFDs descriptors: too many must be seen as an error of the peer
	var oob [128]byte
	space := s.Space()
	n, oobn, flags, errno := recvmsg(fd, space, oob[:])
	if errno != 0 {
		return errno
	}
	fds, err := parseFDs(oob[:oobn])
	if err != nil {
		return err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		s.discard(fds)
		return errTruncated
	}
	if err := s.AddFDs(fds); err != nil {
		return err
	}
	if n == 0 {
		if s.Buffered() > 0 {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	s.Advance(n)
	return nil
}

// Send writes once to a non-blocking socket, with descriptors, which stay the caller's. It returns
// how many bytes the kernel took; the descriptors went with the first of them. The error is
// unix.EAGAIN when it took none, unix.EPIPE or unix.ECONNRESET when the peer is gone. It raises no
// SIGPIPE.
func Send(fd int, frames []byte, attached ...int) (n int, err error) {
	if len(frames) == 0 {
		return 0, nil
	}
	var oob []byte
	if len(attached) > 0 {
		oob = unix.UnixRights(attached...)
	}
	n, errno := sendmsg(fd, frames, oob)
	if errno != 0 {
		return 0, errno
	}
	return n, nil
}
