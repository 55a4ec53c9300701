package tcp

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

// errEnded is the reason of PeerDown when the peer, or its kernel, has ended the connection in order.
var errEnded = errors.New("it has closed the connection or its process has ended")

type peerState uint8

const (
	peerAwaited peerState = iota // no connection yet; frames are queued
	peerUp                       // PeerUp was reported
	peerLost                     // for good
)

// peer is another node as the reactor sees it. It is guarded by Transport.mu.
type peer struct {
	id    transport.NodeID
	state peerState
	fd    int // valid in state peerUp

	queue   sendQueue
	listed  bool // the peer is in Transport.unsent
	blocked bool // the socket took less than was offered, and epoll watches for room

	in       receiveBuffer
	hasFrame bool // a complete frame lies in the buffer, or one that is malformed

	// sendFailure is why sending has failed. The peer is lost only when what it has sent before is
	// received as well.
	sendFailure error
	reason      error // state peerLost: why
}

// welcome makes a peer one that frames are exchanged with.
func (t *Transport) welcome(p *peer, fd int) error {
	if err := t.wait.poller.Add(fd, int32(p.id)); err != nil {
		unix.Close(fd)
		return fmt.Errorf("tcp: node %d: %w", p.id, err)
	}
	p.fd, p.state, p.in = fd, peerUp, newReceiveBuffer(t.pageBytes)
	t.up = append(t.up, p)
	return nil
}

// adopt reports the peers that Connect's goroutines have connected, and sends what has waited for them.
func (t *Transport) adopt(h transport.Handler) {
	for _, a := range t.arrivals.take(t.wait.event) {
		p := t.peers[a.id]
		if p.state != peerAwaited { // Disconnect came before the connection.
			unix.Close(a.fd)
			continue
		}
		if err := t.welcome(p, a.fd); err != nil {
			t.lose(p, err)
			continue
		}
		h.PeerUp(p.id)
		t.flushPeer(p)
	}
}

// lose gives a peer up. Its PeerDown is reported by the Poll that runs or the next.
func (t *Transport) lose(p *peer, reason error) {
	if p.state == peerLost {
		return
	}
	if p.state == peerUp {
		// Epoll forgets a socket only when its last descriptor is closed, so it is told.
		if err := t.wait.poller.Remove(p.fd); err != nil {
			t.log(fmt.Sprintf("tcp: node %d: %v", p.id, err))
		}
		unix.Close(p.fd)
		t.up = slices.DeleteFunc(t.up, func(other *peer) bool { return other == p })
	}
	p.state, p.fd, p.reason = peerLost, -1, reason
	t.setHasFrame(p, false)
	t.setBlockedCount(p, false)
	t.discardQueue(p)
	if t.hot == p {
		t.hot = nil
	}
	t.lost = append(t.lost, p)
	t.log(fmt.Sprintf("tcp: node %d is lost: %v", p.id, reason))
}

func (t *Transport) discardQueue(p *peer) {
	t.counts.queuedBytes.Add(-int64(p.queue.bytes))
	p.queue.discard()
}

func (t *Transport) setHasFrame(p *peer, has bool) {
	if has == p.hasFrame {
		return
	}
	p.hasFrame = has
	if has {
		t.unread++
	} else {
		t.unread--
	}
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
		if p.queue.empty() {
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
	switch errno := t.sendQueued(p); errno {
	case 0:
		t.setBlocked(p, false)
	case unix.EAGAIN:
		t.setBlocked(p, true)
	default:
		t.failSending(p, errno)
	}
}

// sendQueued sends what waits for a peer. It returns 0 when nothing is left, EAGAIN when the socket takes no more
// now, and any other error when it never will.
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

// failSending ends sending to a peer. It may have sent us frames that we have not received, so the peer is
// not lost yet: the end of the input follows, because shutdown brings it about if nothing else does.
func (t *Transport) failSending(p *peer, err error) {
	p.sendFailure = fmt.Errorf("tcp: send to node %d: %w", p.id, err)
	t.discardQueue(p)
	t.setBlockedCount(p, false)
	if err := unix.Shutdown(p.fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		t.log(fmt.Sprintf("tcp: node %d: shut down the socket: %v", p.id, err))
	}
}

// serve delivers what is here of a peer, or else asks its socket.
func (t *Transport) serve(p *peer, h transport.Handler, max int) int {
	switch {
	case p.state != peerUp: // It was lost in this round, by what the handler did.
		return 0
	case p.hasFrame:
		return t.deliver(p, h, max)
	}
	return t.receive(p, h, max)
}

// receive asks a peer's socket once and delivers what came. Preconditions: p.hasFrame is false.
func (t *Transport) receive(p *peer, h transport.Handler, max int) int {
	n, errno := netio.Recv(p.fd, p.in.space())
	t.counts.receiveCalls.Add(1)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR || errno == unix.ENOMEM || errno == unix.ENOBUFS:
		return 0
	case errno != 0:
		t.lose(p, t.endReason(p, errno))
		return 0
	case n == 0:
		t.lose(p, t.endReason(p, errEnded))
		return 0
	}
	p.in.end += n
	t.counts.bytesReceived.Add(uint64(n))
	t.hot = p
	return t.deliver(p, h, max)
}

// endReason words why the connection to a peer has ended.
func (t *Transport) endReason(p *peer, err error) error {
	if p.sendFailure != nil {
		return p.sendFailure
	}
	if left := len(p.in.unread()); left > 0 {
		return fmt.Errorf("tcp: node %d: %w, %d bytes into a frame", p.id, err, left)
	}
	return fmt.Errorf("tcp: node %d: %w", p.id, err)
}

// deliver passes complete frames of a peer's receive buffer to the handler, at most max, and returns
// how many.
func (t *Transport) deliver(p *peer, h transport.Handler, max int) int {
	for delivered := 0; ; delivered++ {
		f, err := decodeFrame(p.in.unread(), t.pageBytes)
		switch {
		case err == nil && f.bytes == 0:
			t.setHasFrame(p, false)
			return delivered
		case delivered == max:
			t.setHasFrame(p, true)
			return delivered
		case err != nil:
			t.lose(p, fmt.Errorf("tcp: node %d: %w; is it a node of another version, or broken?", p.id, err))
			return delivered
		}
		p.in.start += f.bytes
		t.counts.framesReceived.Add(1)
		if f.page == nil {
			h.Frame(p.id, f.control, nil)
		} else {
			t.deliverPage(p, h, f)
		}
		if p.state != peerUp { // The handler has disconnected it.
			return delivered + 1
		}
	}
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
