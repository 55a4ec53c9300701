package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the length of sockaddr_un.sun_path less the zero that ends it.
const maxSocketPath = 107

// CheckSocket tells whether a socket's name can be used, before the kernel says "invalid argument".
func CheckSocket(socket string) error {
	switch {
	case socket == "" || socket == "@":
		return errors.New("attach: the socket's name is empty")
	case len(socket) > maxSocketPath:
		return fmt.Errorf("attach: the socket's name %q has %d bytes; the kernel allows %d, use a shorter path or an abstract name (@NAME)",
			socket, len(socket), maxSocketPath)
	case strings.IndexByte(socket, 0) >= 0:
		return fmt.Errorf("attach: the socket's name %q has a zero byte", socket)
	}
	return nil
}

// Conn is a program's end of a connection. ReadFrame and TakeFD belong to one goroutine at a time;
// Write and Close may be called from any.
type Conn struct {
	c      *net.UnixConn
	own    *own // after Unpoll; c is closed then
	stream Stream
	// write keeps frames whole. It is held while Write may block; nothing else is taken under it.
	write sync.Mutex
}

// fullPause is how long Dial waits before it tries again at a socket that has no room.
const fullPause = 10 * time.Millisecond

// Dial connects to the daemon at socket. A daemon that waits for its peers accepts nobody yet. Then
// as many programs wait as its socket has room for, and others wait here for room, until ctx ends.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	if err := CheckSocket(socket); err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	for errors.Is(err, unix.EAGAIN) {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("attach: connect to %s, which has no room for more connections: %w", socket, ctx.Err())
		case <-time.After(fullPause):
		}
		c, err = d.DialContext(ctx, "unix", socket)
	}
	if err != nil {
		return nil, fmt.Errorf("attach: connect: %w", err)
	}
	return NewConn(c.(*net.UnixConn)), nil
}

// NewConn makes a Conn of a connected stream socket, which it owns from here on.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// ReadFrame waits for the next frame. It is valid until the next call. The error is io.EOF when the
// peer has closed between frames, and io.ErrUnexpectedEOF when it did within one.
func (c *Conn) ReadFrame() (Frame, error) {
	for {
		f, ok, err := c.stream.Next()
		if ok || err != nil {
			return f, err
		}
		if err := c.receive(); err != nil {
			return Frame{}, err
		}
	}
}

// receive waits until something has come.
func (c *Conn) receive() error {
	if c.own != nil {
		return c.own.receive(&c.stream)
	}
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	var received error
	err = raw.Read(func(fd uintptr) bool {
		received = Receive(int(fd), &c.stream)
		return received != unix.EAGAIN
	})
	return cmp.Or(err, received)
}

// TakeFD hands over the descriptor that came with the frame last read.
func (c *Conn) TakeFD() (int, error) { return c.stream.TakeFD() }

// Write sends whole frames, and descriptors with the first of them. The descriptors stay the
// caller's.
func (c *Conn) Write(frames []byte, fds ...int) error {
	c.write.Lock()
	defer c.write.Unlock()
	if c.own != nil {
		return c.own.write(frames, fds)
	}
	if len(fds) > 0 {
		n, _, err := c.c.WriteMsgUnix(frames, syscall.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		if frames = frames[n:]; len(frames) == 0 {
			return nil // writing nothing would fail if the peer has closed since
		}
	}
	_, err := c.c.Write(frames) // returns early only with an error
	return err
}

// ErrForeign is wrapped by the error of CheckDaemon about a daemon of another user.
var ErrForeign = errors.New("attach: the daemon belongs to another user")

// CheckDaemon reports whether the daemon at the other end is this user's or root's. One of another
// user has only put its socket where this one's was expected, and would read and write the
// program's memory. The kernel tells whose it is.
func (c *Conn) CheckDaemon() error {
	var uid uint32
	var failed error
	err := c.Socket(func(fd int) { _, uid, failed = Peer(fd) })
	switch {
	case err != nil || failed != nil:
		return fmt.Errorf("attach: whose daemon is it: %w", errors.Join(err, failed))
	case uid != 0 && int(uid) != os.Geteuid():
		return fmt.Errorf("%w: to user %d, and this program runs as user %d; run both as the same", ErrForeign, uid, os.Geteuid())
	}
	return nil
}

// Socket calls f with the socket's descriptor, which stays open until f returns.
func (c *Conn) Socket(f func(fd int)) error {
	if c.own != nil {
		return c.own.do(func(socket, _ int) error { f(socket); return nil })
	}
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// Shutdown ends both directions of the connection, but what has already arrived can still be read.
// It closes nothing.
func (c *Conn) Shutdown() {
	if c.own != nil {
		_ = c.Socket(func(fd int) { unix.Shutdown(fd, unix.SHUT_RDWR) })
		return
	}
	c.c.CloseRead()
	c.c.CloseWrite()
}

// ShutdownStuck is Shutdown if a Write is under way. Preconditions: every Write that does not wait
// for the peer has ended by now.
func (c *Conn) ShutdownStuck() {
	if c.write.TryLock() {
		c.write.Unlock()
		return
	}
	c.Shutdown()
}

// Close closes the connection; a ReadFrame that waits returns an error, but after Unpoll, when it
// has to be interrupted first. Descriptors that nobody took are closed by the reading goroutine's
// Discard.
func (c *Conn) Close() error {
	if c.own != nil {
		return errors.Join(c.own.file.Close(), c.own.stop.Close())
	}
	return c.c.Close()
}

// Discard closes the descriptors that have arrived and nobody took. The reading goroutine calls it
// last.
func (c *Conn) Discard() { c.stream.Close() }
