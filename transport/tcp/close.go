package tcp

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

const (
	// drainTimeout bounds how long Close tries to deliver what was sent.
	drainTimeout = time.Second
	// drainPause is how long Close waits for a change before it looks again. The kernel does not
	// report that a peer has confirmed bytes, so there is nothing better to wait for.
	drainPause = time.Millisecond
)

// Close implements transport.Transport. It may be called more than once; later calls return at once.
func (t *Transport) Close() error {
	if t.closing.Swap(true) {
		return nil
	}
	c := &t.connect
	c.stop()
	t.wait.event.Signal()
	t.mu.Lock() // The reactor leaves the method it is in. Nobody unlocks: the transport stays closed.
	c.work.Wait()
	t.welcomeSilently()
	t.wait.event.Signal() // The first signal may have been cleared since. From here on nobody does that.
	t.drain()
	for _, p := range t.up {
		unix.Close(p.fd)
	}
	return nil
}

// welcomeSilently connects the peers that the reactor has not adopted, for what it has sent to them.
func (t *Transport) welcomeSilently() {
	for _, a := range t.arrivals.take(t.wait.event) {
		p := t.peers[a.id]
		if p.state != peerAwaited {
			unix.Close(a.fd)
			continue
		}
		if err := t.welcome(p, a.fd); err != nil {
			t.log(fmt.Sprintf("tcp: close: %v", err))
		}
	}
}

// drain sends what is queued and waits until the peers' kernels have it. What arrives meanwhile is thrown
// away, for two reasons: a peer that cannot send may not read either, and a socket closed with
// unread input resets the connection, which can take from the peer what it has not read.
func (t *Transport) drain() {
	deadline := time.Now().Add(drainTimeout)
	for _, p := range t.up {
		p.queue.orphaned = true
	}
	for {
		var undelivered []unix.PollFd
		for _, p := range t.up {
			if events := t.drainPeer(p); events != 0 {
				undelivered = append(undelivered, unix.PollFd{Fd: int32(p.fd), Events: events})
			}
		}
		if len(undelivered) == 0 || time.Now().After(deadline) {
			return
		}
		// An error here is EINTR, and then the loop looks again.
		unix.Poll(undelivered, int(drainPause/time.Millisecond))
	}
}

// drainPeer makes what progress it can and returns the poll events to wait for, or 0 when the peer has everything or
// can get nothing more.
func (t *Transport) drainPeer(p *peer) int16 {
	if p.sendFailure == nil {
		if errno := t.sendQueued(p); errno != 0 && errno != unix.EAGAIN {
			p.sendFailure = errno
		}
	}
	if p.sendFailure == nil {
		discardInput(p)
	}
	switch {
	case p.sendFailure != nil:
		return 0
	case !p.queue.empty():
		return unix.POLLOUT
	}
	// A kernel may confirm up to 40 ms late, in the hope of an answer to send along. Ending the stream would not hurry it:
	// Linux treats that like data.
	if left, err := netio.Unacknowledged(p.fd); err != nil || left == 0 {
		return 0
	}
	return unix.POLLRDHUP
}

// discardInput throws away what has come, and notes the end of the connection.
func discardInput(p *peer) {
	for {
		n, errno := netio.Recv(p.fd, p.in.buf)
		switch {
		case errno == unix.EAGAIN:
			return
		case errno == unix.EINTR || errno == 0 && n > 0:
		default: // It has ended, so nobody reads what is left.
			p.sendFailure = errEnded
			return
		}
	}
}
