package tcp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// list makes the next flush look at a peer.
func (t *Transport) list(p *peer) {
	if !p.listed {
		p.listed = true
		t.unsent = append(t.unsent, p)
	}
}

// header queues the header of a frame, which confirms what has come from the peer.
func (t *Transport) header(p *peer, kind frameKind, controlBytes int) {
	p.told = p.received.Load()
	var header [frameHeaderBytes]byte
	p.queue.write(appendFrameHeader(header[:0], kind, controlBytes, p.told))
}

// note queues a frame that is between the transports alone.
func (t *Transport) note(p *peer, kind frameKind) {
	t.header(p, kind, 0)
	t.counts.queuedBytes.Add(frameHeaderBytes)
	t.list(p)
}

func (t *Transport) setBlockedCount(p *peer, blocked bool) {
	if blocked == p.blocked {
		return
	}
	p.blocked = blocked
	if blocked {
		t.blocked++
	} else {
		t.blocked--
	}
}

// setBlocked makes epoll watch for room in the socket, or no longer.
func (t *Transport) setBlocked(p *peer, blocked bool) {
	if blocked == p.blocked {
		return
	}
	t.setBlockedCount(p, blocked)
	if err := t.wait.poller.Watch(p.fd, int32(p.id), blocked); err != nil {
		t.failSending(p, err)
	}
}

// flush sends to every peer that something waits for, and forgets those that nothing is left for.
func (t *Transport) flush() {
	left := t.unsent[:0]
	for _, p := range t.unsent {
		t.flushPeer(p)
		if p.flushed() {
			p.listed = false
		} else {
			left = append(left, p)
		}
	}
	clear(t.unsent[len(left):])
	t.unsent = left
}

// flushPeer sends what waits for a peer until the socket takes no more.
func (t *Transport) flushPeer(p *peer) {
	if p.state != peerUp || p.sendFailure != nil {
		return
	}
	var err error = unix.Errno(0)
	if p.tls != nil {
		err = t.sendSecurely(p)
	} else {
		err = t.sendQueued(p)
	}
	switch err {
	case unix.Errno(0):
		t.setBlocked(p, false)
	case unix.EAGAIN:
		t.setBlocked(p, true)
	default:
		t.failSending(p, err)
	}
}

// flushed says whether nothing waits for a peer, or for its connection.
func (p *peer) flushed() bool { return p.queue.empty() && p.tls.idle() }

// sendSecurely is sendQueued under TLS. What TLS has encrypted counts as sent.
func (t *Transport) sendSecurely(p *peer) error {
	for !p.flushed() {
		n, err := p.tls.encrypt(&p.queue)
		t.counts.bytesSent.Add(uint64(n))
		t.counts.queuedBytes.Add(-int64(n))
		if err != nil {
			return err
		}
		t.counts.sendCalls.Add(1)
		switch errno := p.tls.send(p.fd, &t.vector); errno {
		case 0, unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return unix.EAGAIN
		default:
			return errno
		}
	}
	return unix.Errno(0)
}

// sendQueued sends what waits for a peer. It returns 0 when nothing is left, EAGAIN when the socket takes no more
// now, or why sending has failed.
func (t *Transport) sendQueued(p *peer) unix.Errno {
	for !p.queue.empty() {
		p.queue.gather(&t.vector)
		n, errno := t.vector.Send(p.fd)
		t.counts.sendCalls.Add(1)
		switch errno {
		case 0:
			p.queue.advance(n)
			t.counts.bytesSent.Add(uint64(n))
			t.counts.queuedBytes.Add(-int64(n))
		case unix.EINTR:
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
			return unix.EAGAIN
		default:
			return errno
		}
	}
	return 0
}

// failSending ends sending by a connection. It may have brought frames that we have not received, so the peer is
// not severed yet: the end of the input follows, because hanging up brings it about if nothing else does.
func (t *Transport) failSending(p *peer, err error) {
	p.sendFailure = fmt.Errorf("sending has failed: %w", err)
	t.setBlockedCount(p, false)
	t.hangUp(p)
}
