package tcp

import (
	"cmp"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

// confirmEvery is how many bytes of a peer's stream may be unconfirmed before they are confirmed
// without a frame that goes to the peer anyway. Pages go mostly to nodes that ask for the next one,
// so that such an extra frame, and the system call that it costs, is rare. A sender keeps what is
// unconfirmed: for an idle peer this much at most.
const confirmEvery = 64 << 10

// serve delivers what is here of a peer, or else asks its socket.
func (r *reactor) serve(p *peer, h transport.Handler, max int) int {
	switch {
	case p.state == peerLost: // in this round, by what the handler did
		return 0
	case p.hasFrame:
		return r.deliver(p, h, max)
	case p.state != peerUp:
		return 0
	}
	return r.receive(p, h, max)
}

// receive asks a peer's socket once and delivers what came. Preconditions: p.hasFrame is false,
// p.state is peerUp.
func (r *reactor) receive(p *peer, h transport.Handler, max int) int {
	space := p.in.space()
	if p.tls != nil {
		r.counts.ReceiveCalls.Add(1)
		n, err := p.tls.receive(p.fd, space)
		return r.receivedSecurely(p, h, max, n, err)
	}
	n, errno := netio.Recv(p.fd, space)
	r.counts.ReceiveCalls.Add(1)
	switch {
	case passes(errno):
		return 0
	case errno != 0:
		r.sever(p, errno)
		return 0
	case n == 0:
		r.sever(p, errEnded)
		return 0
	}
	return r.take(p, h, max, n)
}

// passes reports whether a receive has failed only for now.
func passes(errno unix.Errno) bool {
	return errno == unix.EAGAIN || errno == unix.EINTR || errno == unix.ENOMEM || errno == unix.ENOBUFS
}

// receivedSecurely is the end of receive under TLS: n bytes were decrypted into the space of p.in,
// or why none were.
func (r *reactor) receivedSecurely(p *peer, h transport.Handler, max, n int, err error) int {
	if !p.tls.idle() {
		r.flushPeer(p) // TLS has answered something by itself.
	}
	var errno unix.Errno
	switch {
	case err == nil:
		return r.take(p, h, max, n)
	case errors.As(err, &errno) && passes(errno):
	default:
		r.sever(p, err)
	}
	return 0
}

// take delivers frames when n more bytes lie in the space of p.in.
func (r *reactor) take(p *peer, h transport.Handler, max, n int) int {
	r.counts.BytesReceived.Add(uint64(n))
	if p.skip > 0 {
		n = p.skipKnown(p.in.buf[p.in.end:][:n])
	}
	p.in.end += n
	p.received.Store(p.received.Load() + uint64(n))
	r.hot = p
	return r.deliver(p, h, max)
}

// skipKnown removes from the front of what has come the bytes that an earlier connection has
// brought, and returns how many are left.
func (p *peer) skipKnown(b []byte) int {
	known := min(p.skip, uint64(len(b)))
	p.skip -= known
	return copy(b, b[known:])
}

// deliver passes complete frames of a peer's receive buffer to the handler, at most max, and
// returns how many.
func (r *reactor) deliver(p *peer, h transport.Handler, max int) int {
	delivered := 0
	for p.state != peerLost {
		f, err := decodeFrame(p.in.unread(), r.pageBytes)
		switch {
		case err == nil && f.bytes == 0:
			r.setHasFrame(p, false)
			r.confirm(p)
			if p.tls != nil && p.tls.ahead { // no socket tells of it
				p.tls.ahead = false
				n, err := p.tls.decrypt(p.in.space())
				delivered += r.receivedSecurely(p, h, max-delivered, n, err)
			}
			return delivered
		case delivered == max:
			r.setHasFrame(p, true)
			return delivered
		case err != nil:
			r.markLost(p, fmt.Errorf("tcp: node %d: %w; is it a node of another version, or broken?", p.id, err))
			return delivered
		}
		p.in.start += f.bytes
		if !r.takeConfirmation(p, f.confirmed) {
			return delivered
		}
		switch {
		case f.kind == frameGoodbye:
			r.farewell(p, printable(f.control))
		case f.kind == frameAck || r.draining:
		default:
			r.deliverFrame(p, h, f)
			delivered++
		}
	}
	return delivered // The handler has disconnected it, or it has said goodbye.
}

// takeConfirmation lets go of what the peer has, and reports whether that can be true. Frames that
// are sent once more carry old confirmations.
func (r *reactor) takeConfirmation(p *peer, confirmed uint64) bool {
	if confirmed > p.queue.reached {
		r.markLost(p, fmt.Errorf("tcp: node %d: %w: it confirms %d bytes, and %d were sent", p.id, ErrMalformed, confirmed, p.queue.reached))
		return false
	}
	p.queue.confirm(confirmed)
	return true
}

// confirm tells a peer what has come from it, when no frame has told it for long.
func (r *reactor) confirm(p *peer) {
	if p.received.Load()-p.told >= confirmEvery {
		r.note(p, frameAck, "")
		r.flushPeer(p)
	}
}

// farewell answers a goodbye, which the peer waits for. It says why; "": it was told to end.
func (r *reactor) farewell(p *peer, why string) {
	r.note(p, frameAck, "")
	r.flushPeer(p)
	r.markLost(p, fmt.Errorf("tcp: node %d: %w: %s", p.id, errGoodbye, cmp.Or(why, "it was told to")))
}

// deliverFrame passes on a frame.
func (r *reactor) deliverFrame(p *peer, h transport.Handler, f frame) {
	r.counts.FramesReceived.Add(1)
	if f.page == nil {
		h.Frame(p.id, f.control, nil)
		return
	}
	r.deliverPage(p, h, f)
}

// deliverPage passes on a frame with a payload, which the handler borrows.
func (r *reactor) deliverPage(p *peer, h transport.Handler, f frame) {
	r.counts.PayloadsReceived.Add(1)
	page := r.lender.Lend(f.page)
	h.Frame(p.id, f.control, page)
	r.lender.Return(page)
}
