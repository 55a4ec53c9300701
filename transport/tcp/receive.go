package tcp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

// confirmEvery is how many bytes of a peer's stream may be unconfirmed before they are confirmed without a frame
// that goes to the peer anyway. Pages go mostly to nodes that ask for the next one, so that such an extra frame, and the
// system call that it costs, is rare. A sender keeps what is unconfirmed: for an idle peer this much at most.
const confirmEvery = 64 << 10

// serve delivers what is here of a peer, or else asks its socket.
func (t *Transport) serve(p *peer, h transport.Handler, max int) int {
	switch {
	case p.state == peerLost: // in this round, by what the handler did
		return 0
	case p.hasFrame:
		return t.deliver(p, h, max)
	case p.state != peerUp:
		return 0
	}
	return t.receive(p, h, max)
}

// receive asks a peer's socket once and delivers what came. Preconditions: p.hasFrame is false, p.state is peerUp.
func (t *Transport) receive(p *peer, h transport.Handler, max int) int {
	space := p.in.space()
	if p.tls != nil {
		t.counts.receiveCalls.Add(1)
		n, err := p.tls.receive(p.fd, space)
		return t.receivedSecurely(p, h, max, n, err)
	}
	n, errno := netio.Recv(p.fd, space)
	t.counts.receiveCalls.Add(1)
	switch {
	case passes(errno):
		return 0
	case errno != 0:
		t.sever(p, errno)
		return 0
	case n == 0:
		t.sever(p, errEnded)
		return 0
	}
	return t.take(p, h, max, n)
}

// passes says whether a receive has failed only for now.
func passes(errno unix.Errno) bool {
	return errno == unix.EAGAIN || errno == unix.EINTR || errno == unix.ENOMEM || errno == unix.ENOBUFS
}

// receivedSecurely is the end of receive under TLS: n bytes were decrypted into the space of p.in, or why none were.
func (t *Transport) receivedSecurely(p *peer, h transport.Handler, max, n int, err error) int {
	if !p.tls.idle() {
		t.flushPeer(p) // TLS has answered something by itself.
	}
	var errno unix.Errno
	switch {
	case err == nil:
		return t.take(p, h, max, n)
	case errors.As(err, &errno) && passes(errno):
	default:
		t.sever(p, err)
	}
	return 0
}

// take delivers frames when n more bytes lie in the space of p.in.
func (t *Transport) take(p *peer, h transport.Handler, max, n int) int {
	t.counts.bytesReceived.Add(uint64(n))
	if p.skip > 0 {
		n = p.skipKnown(p.in.buf[p.in.end:][:n])
	}
	p.in.end += n
	p.received.Store(p.received.Load() + uint64(n))
	t.hot = p
	return t.deliver(p, h, max)
}

// skipKnown removes from the front of what has come the bytes that an earlier connection has brought, and returns how many are left.
func (p *peer) skipKnown(b []byte) int {
	known := min(p.skip, uint64(len(b)))
	p.skip -= known
	return copy(b, b[known:])
}

// deliver passes complete frames of a peer's receive buffer to the handler, at most max, and returns
// how many.
func (t *Transport) deliver(p *peer, h transport.Handler, max int) int {
	delivered := 0
	for p.state != peerLost {
		f, err := decodeFrame(p.in.unread(), t.pageBytes)
		switch {
		case err == nil && f.bytes == 0:
			t.setHasFrame(p, false)
			t.confirm(p)
			return delivered
		case delivered == max:
			t.setHasFrame(p, true)
			return delivered
		case err != nil:
			t.lose(p, fmt.Errorf("tcp: node %d: %w; is it a node of another version, or broken?", p.id, err))
			return delivered
		}
		p.in.start += f.bytes
		if !t.takeConfirmation(p, f.confirmed) {
			return delivered
		}
		switch {
		case f.kind == frameGoodbye:
			t.farewell(p)
		case f.kind == frameAck || t.draining:
		default:
			t.deliverFrame(p, h, f)
			delivered++
		}
	}
	return delivered // The handler has disconnected it, or it has said goodbye.
}

// takeConfirmation lets go of what the peer has, and says whether that can be true. Frames that are sent once more carry old
// confirmations.
func (t *Transport) takeConfirmation(p *peer, confirmed uint64) bool {
	if confirmed > p.queue.reached {
		t.lose(p, fmt.Errorf("tcp: node %d: %w: it confirms %d bytes, and %d were sent", p.id, ErrMalformed, confirmed, p.queue.reached))
		return false
	}
	p.queue.confirm(confirmed)
	return true
}

// confirm tells a peer what has come from it, when no frame has told it for long.
func (t *Transport) confirm(p *peer) {
	if p.received.Load()-p.told >= confirmEvery {
		t.note(p, frameAck)
		t.flushPeer(p)
	}
}

// farewell answers a goodbye, which the peer waits for.
func (t *Transport) farewell(p *peer) {
	t.note(p, frameAck)
	t.flushPeer(p)
	t.lose(p, fmt.Errorf("tcp: node %d: %w", p.id, errGoodbye))
}

// deliverFrame passes on a frame.
func (t *Transport) deliverFrame(p *peer, h transport.Handler, f frame) {
	t.counts.framesReceived.Add(1)
	if f.page == nil {
		h.Frame(p.id, f.control, nil)
		return
	}
	t.deliverPage(p, h, f)
}

// deliverPage passes on a frame with a payload, which the handler borrows.
func (t *Transport) deliverPage(p *peer, h transport.Handler, f frame) {
	t.counts.payloadsReceived.Add(1)
	borrowed := t.borrowed
	if borrowed == nil {
		borrowed = t.pool.get()
	}
	borrowed.state, borrowed.data = pageBorrowed, f.page
	t.borrowed = nil
	h.Frame(p.id, f.control, borrowed)
	if borrowed.state == pageBorrowed {
		borrowed.state, borrowed.data = pageSpare, nil
		t.borrowed = borrowed
	}
}
