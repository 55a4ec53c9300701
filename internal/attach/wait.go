package attach

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrInterrupted is the error of a ReadFrame that waits, or would wait, when the connection was
// interrupted.
var ErrInterrupted = errors.New("attach: the connection was interrupted")

// own is a connection that Go's network poller does not know any more.
//
// A goroutine waits for its reply in the kernel. With the network poller, the arrival would wake
// the thread that happens to wait there. That makes the reading goroutine ready, which makes the
// waiting one ready, and each of the two may wake a further thread to share the work with. These
// are three or four switches of threads, on cores that the daemons need.
type own struct {
	file *os.File // blocking; keeps the descriptor open while somebody is in a system call with it
	stop *os.File // an eventfd: readable once the connection is interrupted
}

// Unpoll takes the connection from Go's network poller: from here on a goroutine that waits in
// ReadFrame or Write keeps its thread. It is called once, when nobody else uses the connection.
func (c *Conn) Unpoll() error {
	fd, failed := -1, error(nil)
	err := c.Socket(func(old int) { fd, failed = unix.FcntlInt(uintptr(old), unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(err, failed); err != nil {
		return os.NewSyscallError("F_DUPFD_CLOEXEC", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		unix.Close(fd)
		unix.Close(stop)
		return os.NewSyscallError("eventfd", err)
	}
	c.c.Close()
	c.own = &own{file: os.NewFile(uintptr(fd), "dsmd"), stop: os.NewFile(uintptr(stop), "eventfd")}
	return nil
}

// do calls f with the two descriptors, which stay open until it returns.
func (o *own) do(f func(socket, stop int) error) error {
	socket, err := o.file.SyscallConn()
	if err != nil {
		return err
	}
	stop, err := o.stop.SyscallConn()
	if err != nil {
		return err
	}
	var inner, result error
	outer := socket.Control(func(fd uintptr) {
		inner = stop.Control(func(stopFD uintptr) { result = f(int(fd), int(stopFD)) })
	})
	if outer != nil {
		return outer
	}
	if inner != nil {
		return inner
	}
	return result
}

// receive reads once into s, and waits until there is something.
func (o *own) receive(s *Stream) error {
	return o.do(func(socket, stop int) error {
		for {
			if err := Receive(socket, s); err != unix.EAGAIN {
				return err
			}
			if err := await(socket, unix.POLLIN, stop); err != nil {
				return err
			}
		}
	})
}

// await waits until something has happened to the socket, or the connection is interrupted.
func await(socket int, events int16, stop int) error {
	fds := []unix.PollFd{{Fd: int32(socket), Events: events}, {Fd: int32(stop), Events: unix.POLLIN}}
	for {
		switch _, err := unix.Poll(fds, -1); {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("poll", err)
		case fds[1].Revents != 0:
			return ErrInterrupted
		default:
			return nil
		}
	}
}

// AwaitEnd waits until the peer has closed the connection, or it is interrupted. It reads nothing,
// and what arrives does not wake it. Preconditions: Unpoll.
func (c *Conn) AwaitEnd() error {
	return c.own.do(func(socket, stop int) error { return await(socket, unix.POLLRDHUP, stop) })
}

// Interrupt ends the waiting in ReadFrame and AwaitEnd, for good, with ErrInterrupted.
// Preconditions: Unpoll.
func (c *Conn) Interrupt() error {
	_, err := c.own.stop.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	if errors.Is(err, os.ErrClosed) {
		return nil // nobody waits any more
	}
	return err
}

// write sends frames, and descriptors with the first byte of them.
func (o *own) write(frames []byte, fds []int) error {
	if len(fds) > 0 {
		n := 0
		err := o.do(func(socket, _ int) (err error) {
			n, err = unix.SendmsgN(socket, frames, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
			return err
		})
		if frames = frames[n:]; err != nil || len(frames) == 0 {
			return err
		}
	}
	_, err := o.file.Write(frames)
	return err
}
