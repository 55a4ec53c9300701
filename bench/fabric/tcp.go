package fabric

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

// streamBuffer is how much a receiver of a stream reads at once.
const streamBuffer = 256 << 10

// tcpEnd is an end of TCP connections. The serving end listens, and the driving one connects.
type tcpEnd struct {
	spec     Spec
	dial     string           // the driving end: the other's host
	listener *net.TCPListener // the serving end
	conns    []*net.TCPConn
	polled   *os.File // the first connection without Go's poller, for latencies
	fd       int      // of polled
	buffer   []byte
}

func newTCPEnd(spec Spec, m *maker) (*tcpEnd, error) {
	e := &tcpEnd{spec: spec, dial: m.remoteHost, buffer: make([]byte, max(spec.Bytes, spec.Request))}
	if m.remoteHost != "" {
		return e, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(m.localHost, "0"))
	if err != nil {
		return nil, fmt.Errorf("listening for a measurement: %w", err)
	}
	e.listener = l.(*net.TCPListener)
	return e, nil
}

func (e *tcpEnd) hello() hello {
	if e.listener == nil {
		return hello{}
	}
	return hello{Port: e.listener.Addr().(*net.TCPAddr).Port}
}

func (e *tcpEnd) connect(peer hello) error {
	for range e.spec.Connections {
		conn, err := e.next(peer)
		if err != nil {
			return fmt.Errorf("connecting for a measurement: %w", err)
		}
		e.conns = append(e.conns, conn)
		if err := unpace(conn); err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(e.spec.Time + Patience)); err != nil {
			return err
		}
	}
	if e.spec.Measure == Bandwidth {
		return nil
	}
	var err error
	if e.polled, err = e.conns[0].File(); err != nil {
		return fmt.Errorf("duplicating a connection's descriptor: %w", err)
	}
	e.fd = int(e.polled.Fd()) // Fd makes it block, so it is asked once.
	return unix.SetNonblock(e.fd, true)
}

// unpace has a connection not paced, as those of transport/tcp (docs/decisions/0025).
func unpace(conn *net.TCPConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	// Where that is not allowed it is not to the daemons either.
	return raw.Control(func(fd uintptr) { _ = netio.Unpace(int(fd)) })
}

func (e *tcpEnd) next(peer hello) (*net.TCPConn, error) {
	if e.listener != nil {
		if err := e.listener.SetDeadline(time.Now().Add(Patience)); err != nil {
			return nil, err
		}
		return e.listener.AcceptTCP()
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(e.dial, fmt.Sprint(peer.Port)), Patience)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

func (e *tcpEnd) drive() (Point, error) {
	if e.spec.Measure == Bandwidth {
		return e.pour()
	}
	out, in, parts := e.buffer[:e.spec.Bytes], e.buffer[:e.spec.Bytes], 2
	if e.spec.Operation.isFetch() {
		out, parts = e.buffer[:e.spec.Request], 1
	}
	return sample(e.spec, parts, func() error {
		if err := e.write(nil, out); err != nil {
			return err
		}
		return e.read(nil, in)
	})
}

func (e *tcpEnd) serve(stop *atomic.Bool) (served, error) {
	if e.spec.Measure == Bandwidth {
		return e.drain()
	}
	in, out := e.buffer[:e.spec.Bytes], e.buffer[:e.spec.Bytes]
	if e.spec.Operation.isFetch() {
		in = e.buffer[:e.spec.Request]
	}
	for n := uint64(0); ; n++ {
		err := e.read(stop, in)
		if err == nil {
			err = e.write(stop, out)
		}
		switch {
		case errors.Is(err, errStopped) || errors.Is(err, io.EOF):
			return served{Messages: n}, nil
		case err != nil:
			return served{}, err
		}
	}
}

// write writes all of b, polling.
func (e *tcpEnd) write(stop *atomic.Bool, b []byte) error {
	return e.transfer(stop, b, unix.Write)
}

// read fills b, polling.
func (e *tcpEnd) read(stop *atomic.Bool, b []byte) error {
	return e.transfer(stop, b, func(fd int, b []byte) (int, error) {
		n, err := unix.Read(fd, b)
		if n == 0 && err == nil {
			return 0, io.EOF
		}
		return n, err
	})
}

func (e *tcpEnd) transfer(stop *atomic.Bool, b []byte, call func(int, []byte) (int, error)) error {
	return spin(stop, Patience, func() (bool, error) {
		n, err := call(e.fd, b)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		b = b[n:]
		return len(b) == 0, nil
	})
}

// pour writes messages to all connections for a time, and waits until all have been read.
func (e *tcpEnd) pour() (Point, error) {
	var sent atomic.Uint64
	began := time.Now()
	err := e.onEach(func(conn *net.TCPConn) error {
		for n := 0; ; n++ {
			if n >= minSamples && time.Since(began) >= e.spec.Time {
				break
			}
			if _, err := conn.Write(e.buffer[:e.spec.Bytes]); err != nil {
				return err
			}
			sent.Add(1)
		}
		if err := conn.CloseWrite(); err != nil {
			return err
		}
		var last [1]byte
		_, err := io.ReadFull(conn, last[:])
		return err
	})
	return newBandwidth(e.spec, sent.Load(), time.Since(began)), err
}

// drain reads all that comes on all connections, and says when that was all.
func (e *tcpEnd) drain() (served, error) {
	var bytes atomic.Uint64
	err := e.onEach(func(conn *net.TCPConn) error {
		buffer := make([]byte, streamBuffer)
		for {
			n, err := conn.Read(buffer)
			bytes.Add(uint64(n))
			if errors.Is(err, io.EOF) {
				_, err := conn.Write(buffer[:1])
				return err
			}
			if err != nil {
				return err
			}
		}
	})
	return served{Messages: bytes.Load() / uint64(e.spec.Bytes)}, err
}

// onEach runs f for each connection at the same time.
func (e *tcpEnd) onEach(f func(*net.TCPConn) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(e.conns))
	for i, conn := range e.conns {
		all.Go(func() { errs[i] = f(conn) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (e *tcpEnd) close() error {
	var errs []error
	if e.listener != nil {
		errs = append(errs, e.listener.Close())
	}
	if e.polled != nil {
		errs = append(errs, e.polled.Close())
	}
	for _, conn := range e.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
