package storage

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

// The bare programs wait in system calls, each on a thread of its own: the Go runtime's poller has
// no part in what they do.

// blocking takes a connection over as a descriptor whose system calls wait. As the daemons'
// connections it is not paced, which BBR would do (docs/decisions/0025): the floor must not be
// slower than what stands on it.
func blocking(conn net.Conn) (int, error) {
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return 0, fmt.Errorf("duplicating a connection's descriptor: %w", err)
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("duplicating a connection's descriptor: %w", err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return 0, fmt.Errorf("having a connection wait: %w", err)
	}
	_ = netio.Unpace(fd) // where that is not allowed it is not to the daemons either
	return fd, nil
}

// open opens a file for reading, past the page cache or by it.
func open(path string, direct bool) (int, error) {
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if direct {
		flags |= unix.O_DIRECT
	}
	fd, err := unix.Open(path, flags, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// load fills b from a place in a file.
func load(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, at)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("reading the file at %d: %w", at, err)
		case n == 0:
			return fmt.Errorf("reading the file at %d: %w", at, io.ErrUnexpectedEOF)
		default:
			b, at = b[n:], at+int64(n)
		}
	}
	return nil
}

// send writes all of b to a connection.
func send(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("sending: %w", err)
		}
		b = b[max(n, 0):]
	}
	return nil
}

// receive fills b from a connection. It returns io.EOF if that has ended.
func receive(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("receiving: %w", err)
		}
		if err == nil && n == 0 {
			return fmt.Errorf("receiving: %w", io.EOF)
		}
		b = b[max(n, 0):]
	}
	return nil
}
