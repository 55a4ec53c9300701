package tcp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// list makes the next flush look at a peer.
func (r *reactor) list(p *peer) {
	if !p.listed {
		p.listed = true
		r.unsent = append(r.unsent, p)
	}
}

// header queues the header of a frame, which confirms what has come from the peer.
func (r *reactor) header(p *peer, kind frameKind, controlBytes int) {
	p.told = p.received.Load()
	var header [frameHeaderBytes]byte
	p.queue.write(appendFrameHeader(header[:0], kind, controlBytes, p.told))
}

// note queues a frame that is between the transports alone.
func (r *reactor) note(p *peer, kind frameKind, text string) {
	r.header(p, kind, len(text))
	p.queue.write([]byte(text))
	r.counts.QueuedBytes.Add(int64(frameHeaderBytes + len(text)))
	r.list(p)
}

func (r *reactor) setBlockedCount(p *peer, blocked bool) {
	if blocked == p.blocked {
		return
	}
	p.blocked = blocked
	if blocked {
		r.blocked++
	} else {
		r.blocked--
	}
}

// setBlocked makes epoll watch for room in the socket, or no longer.
func (r *reactor) setBlocked(p *peer, blocked bool) {
	if blocked == p.blocked {
		return
	}
	r.setBlockedCount(p, blocked)
	if err := r.wait.Poller.Watch(p.fd, int32(p.id), blocked); err != nil {
		r.failSending(p, err)
	}
}

// flush sends to every peer that something waits for, and forgets those that nothing is left for.
func (r *reactor) flush() {
	left := r.unsent[:0]
	for _, p := range r.unsent {
		r.flushPeer(p)
		if p.flushed() {
			p.listed = false
		} else {
			left = append(left, p)
		}
	}
	clear(r.unsent[len(left):])
	r.unsent = left
}

// flushPeer sends what waits for a peer until the socket takes no more.
func (r *reactor) flushPeer(p *peer) {
	if p.state != peerUp || p.sendFailure != nil {
		return
	}
	var err error = unix.Errno(0)
	if p.tls != nil {
		err = r.sendSecurely(p)
	} else {
		err = r.sendQueued(p)
	}
	switch err {
	case unix.Errno(0):
		r.setBlocked(p, false)
	case unix.EAGAIN:
		r.setBlocked(p, true)
	default:
		r.failSending(p, err)
	}
}

// flushed reports whether nothing waits for a peer, or for its connection.
func (p *peer) flushed() bool { return p.queue.empty() && p.tls.idle() }

// sendSecurely is sendQueued under TLS. What TLS has encrypted counts as sent.
func (r *reactor) sendSecurely(p *peer) error {
	for !p.flushed() {
		n, err := p.tls.encrypt(&p.queue)
		r.counts.BytesSent.Add(uint64(n))
		r.counts.QueuedBytes.Add(-int64(n))
		if err != nil {
			return err
		}
		r.counts.SendCalls.Add(1)
		switch errno := p.tls.send(p.fd, &r.vector); errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return unix.EAGAIN
		default:
			return errno
		}
	}
	return unix.Errno(0)
}

// sendQueued sends what waits for a peer. It returns 0 when nothing is left, EAGAIN when the socket
// takes no more now, or why sending has failed.
func (r *reactor) sendQueued(p *peer) unix.Errno {
	for !p.queue.empty() {
		p.queue.gather(&r.vector)
		n, errno := r.vector.Send(p.fd)
		r.counts.SendCalls.Add(1)
		switch errno {
		case 0:
			p.queue.advance(n)
			r.counts.BytesSent.Add(uint64(n))
			r.counts.QueuedBytes.Add(-int64(n))
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return unix.EAGAIN
		default:
			return errno
		}
	}
	return 0
}

// failSending ends sending by a connection. The connection may have brought frames that were not
// received yet, so the peer is not severed now. Hanging up brings the end of the input about, and
// that severs it.
func (r *reactor) failSending(p *peer, err error) {
	p.sendFailure = fmt.Errorf("sending has failed: %w", err)
	r.setBlockedCount(p, false)
	r.hangUp(p)
}
