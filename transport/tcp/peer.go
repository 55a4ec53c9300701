package tcp

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

var (
	// errGoodbye is the reason of PeerDown when the peer has closed in order. Behind it is why, in
	// the words of the peer.
	errGoodbye = errors.New("it has ended")
	// errEnded is why a connection is made again that the other side, or something on the way, has
	// ended.
	errEnded = errors.New("the connection has ended")
)

type peerState uint8

const (
	peerAwaited peerState = iota // no connection yet; frames are queued
	peerUp                       // PeerUp was reported, and there is a connection
	peerSevered                  // PeerUp was reported, and the connection is being made again
	peerLost                     // for good: a peer that is readmitted is another one
)

// peer is another node as the reactor sees it, from the start or Readmit until it is lost. It is
// guarded by Transport.gate, except received.
type peer struct {
	id    transport.NodeID
	state peerState
	fd    int     // valid in state peerUp
	tls   *secure // in state peerUp: what encrypts and decrypts; nil: the connection is plain
	call  uint64  // number of the connection, or of the last one

	queue   sendQueue
	listed  bool // the peer is in Transport.unsent
	blocked bool // the socket took less than was offered, and epoll watches for room

	in       receiveBuffer
	hasFrame bool // a complete frame lies in the buffer, or one that is malformed

	// received is how many bytes of the peer's stream have come. Only the reactor writes it;
	// greetings quote it.
	received atomic.Uint64
	// told is up to where the last frame to this peer has confirmed its stream. Invariant: told <=
	// received.
	told uint64
	// skip is how many of the next bytes have come by an earlier connection already.
	skip uint64

	// passed is how many bytes were known to have come, in both directions, when the last
	// connection ended that had brought any. Those since then were fruitless: pause is the pause
	// after the last one, and said is when one was last logged.
	passed uint64
	pause  time.Duration
	said   time.Time
	quiet  bool // neither the end of the last connection is logged nor the one after it

	// sendFailure is why sending has failed. The connection is given up only when what it has
	// brought is received as well.
	sendFailure error
	reason      error // state peerLost: why
	reported    bool  // state peerLost: PeerDown was called, or is about to be
}

// adopt acts on what goroutines have found out.
func (r *reactor) adopt(news []arrival, h transport.Handler) {
	for _, a := range news {
		switch p := a.peer; a.kind {
		case arrivedTick:
			r.breakSilent()
		case arrivedConnection:
			r.adoptConnection(p, a, h)
		case arrivedEnd:
			if p.state == peerSevered { // else it has called in the last moment
				r.markLost(p, a.err)
			}
		case arrivedBreak:
			if p.state == peerUp && p.call == a.call {
				r.hangUp(p)
			}
		case arrivedDoubt:
			if p.state == peerUp {
				r.note(p, frameAck, "") // If the connection is dead, the answer to this says so.
				r.flushPeer(p)
			}
		}
	}
}

// adoptConnection goes on with a peer where the last connection has left off.
func (r *reactor) adoptConnection(p *peer, a arrival, h transport.Handler) {
	if p.state == peerLost || a.call <= p.call {
		unix.Close(a.fd)
		return
	}
	if a.sendFrom < p.queue.confirmed || a.sendFrom > p.queue.reached {
		unix.Close(a.fd)
		r.markLost(p, fmt.Errorf("tcp: node %d: %w: it wants to go on at byte %d of a stream of which it has confirmed %d and was sent %d",
			p.id, ErrMalformed, a.sendFrom, p.queue.confirmed, p.queue.reached))
		return
	}
	before := p.state
	if before == peerUp {
		r.unplug(p)
	}
	r.plug(p, a)
	if before == peerAwaited {
		h.PeerUp(p.id)
	} else if !p.quiet {
		r.log(fmt.Sprintf("tcp: node %d is connected again; %d bytes are sent once more", p.id, p.queue.unsent()))
	}
	r.flushPeer(p)
	if p.tls != nil && p.state == peerUp {
		p.tls.ahead = true
		if !p.hasFrame {
			r.deliver(p, h, 0)
		}
	}
}

// plug gives a peer a connection.
func (r *reactor) plug(p *peer, a arrival) {
	if p.in.buf == nil {
		p.in = newReceiveBuffer(r.pageBytes)
	}
	before := p.queue.unsent()
	p.queue.resume(a.sendFrom)
	r.counts.QueuedBytes.Add(int64(p.queue.unsent() - before))
	r.list(p)
	p.fd, p.tls, p.call, p.state = a.fd, a.secure, a.call, peerUp
	p.skip = p.received.Load() - a.recvAt
	r.up = append(r.up, p)
	r.connect.answered.Store(notAll) // the handshake's last bytes
}

// unplug takes a peer's connection away. Preconditions: p.state is peerUp.
func (r *reactor) unplug(p *peer) {
	// Epoll forgets a socket only when its last descriptor is closed, so it is told.
	if err := r.wait.Poller.Remove(p.fd); err != nil {
		r.log(fmt.Sprintf("tcp: node %d: %v", p.id, err))
	}
	unix.Close(p.fd)
	r.up = slices.DeleteFunc(r.up, func(other *peer) bool { return other == p })
	r.setBlockedCount(p, false)
	p.fd, p.tls, p.sendFailure = -1, nil, nil
	if r.hot == p {
		r.hot = nil
	}
	p.weigh()
}

// rarely says why the end of a connection may not be logged when it comes to that again.
func (p *peer) rarely() string {
	if p.pause == 0 {
		return ""
	}
	return fmt.Sprintf("; it had brought nothing, and while that is so it is said once in %v", fruitlessSaid)
}

// weigh sees whether a connection that has ended has brought anything.
func (p *peer) weigh() {
	passed := p.received.Load() + p.queue.known
	if passed > p.passed {
		p.passed, p.pause, p.quiet = passed, 0, false
		return
	}
	p.pause = longer(p.pause)
	p.quiet = time.Since(p.said) < fruitlessSaid
	if !p.quiet {
		p.said = time.Now()
	}
}

// sever gives up a peer's connection, but not the peer. Preconditions: p.state is peerUp,
// p.hasFrame is false.
func (r *reactor) sever(p *peer, why error) {
	if p.sendFailure != nil {
		why = p.sendFailure
	}
	r.unplug(p)
	p.state = peerSevered
	if !p.quiet {
		r.log(fmt.Sprintf("tcp: node %d: %v; the connection is made again%s", p.id, why, p.rarely()))
	}
	r.connect.restore(p.id, p.call, p.pause)
}

// hangUp ends a connection at once. What it has brought is still received, and then the peer is
// severed.
func (r *reactor) hangUp(p *peer) {
	if err := unix.Shutdown(p.fd, unix.SHUT_RDWR); err != nil && !errors.Is(err, unix.ENOTCONN) {
		r.log(fmt.Sprintf("tcp: node %d: shut down the socket: %v", p.id, err))
	}
}

// newPeer is a peer of which nothing was heard yet.
func (r *reactor) newPeer(id transport.NodeID) *peer {
	return &peer{id: id, fd: -1, queue: sendQueue{chunks: &r.chunks}}
}

// markLost gives a peer up. Its PeerDown is reported by the Poll that runs or the next.
func (r *reactor) markLost(p *peer, reason error) {
	if p.state == peerLost {
		return
	}
	if p.state == peerUp {
		r.unplug(p)
	}
	p.state, p.reason = peerLost, reason
	p.in = receiveBuffer{}
	r.setHasFrame(p, false)
	r.counts.QueuedBytes.Add(-int64(p.queue.unsent()))
	p.queue.discard()
	r.connect.end(p.id, fmt.Sprintf("node %d has parted with it: %v", r.self, reason))
	r.lost = append(r.lost, p)
	r.log(fmt.Sprintf("tcp: node %d is lost: %v", p.id, reason))
}

func (r *reactor) setHasFrame(p *peer, has bool) {
	if has == p.hasFrame {
		return
	}
	p.hasFrame = has
	if has {
		r.unread++
	} else {
		r.unread--
	}
}
