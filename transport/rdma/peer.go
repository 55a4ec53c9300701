package rdma

import (
	"fmt"
	"slices"
	"time"

	"dsmd/transport"
)

// path is how frames to a peer travel.
type path uint8

const (
	pathNone   path = iota // nothing is known of it yet; frames wait
	pathPlain              // the base transport, as if this package did not exist: the peer does not know it
	pathChoose             // it knows RDMA, and it is not decided yet whether that works; frames wait
	pathBase               // messages on the base transport
	pathLink               // messages on a queue pair
)

// peer is another node as the reactor sees it. It is guarded by Transport.mu.
//
// Messages are numbered in each direction, across all paths. So a change of path needs no agreement: the sender sends again
// what is not acknowledged, and the receiver takes each number once, in order.
//
// Invariants: acked <= last, safe <= last, sent <= last; sent <= acked + window whenever something was posted to a queue pair.
type peer struct {
	id    transport.NodeID
	index int // among the peers, from 0: where its blocks and slots lie

	path     path
	plain    bool  // path is pathPlain. It is the reactor's, also after Close
	reported bool  // PeerUp was reported
	cut      bool  // Disconnect was called: nothing of it is delivered any more
	lost     error // the base transport has lost it, or Disconnect has; nil: not
	gone     bool  // PeerDown was reported

	// Sending.
	queue  messageQueue // without a number yet
	ring   []flight     // by number modulo its length: messages that have a block
	last   uint64       // the last number given
	sent   uint64       // the last message handed to the path that is used now
	acked  uint64       // the last one that the peer has dealt with
	safe   uint64       // the last one given to the base transport, which does not lose it
	queued int          // bytes of the queue, and of the ring as far as not sent
	listed bool         // the peer is in Transport.unsent

	// Receiving.
	received uint64 // the last message delivered, or being delivered
	dealt    uint64 // the last one whose block and slot are free again
	ackSent  uint64 // the last acknowledgement that was sent
	pages    int    // that came since then
	wantAck  bool   // the peer waits for the next one
	partial  []byte // pieces of a control part that is not complete
	held     []held // messages that have come before their predecessors, on another path
	owed     bool   // the peer is in Transport.owed
	isReady  bool   // the peer is in Transport.ready

	// The queue pair.
	link       *link
	generation uint32
	due        time.Time // when to try again, or to give up trying; zero: nothing is due
	pause      time.Duration
	since      time.Time // when the base transport was connected
	decide     bool      // no queue pair will come soon: the base transport may have to do
	complaint  string    // the last attempt's failure that was logged
	complaints int       // how many were, since the last queue pair worked
}

// flight is a message in the ring.
type flight struct {
	number uint64
	bytes  int    // in its block, with the room for its header
	flags  uint32 // of its header
	page   *page
}

// held is a message that waits for its predecessors.
type held struct {
	block  uint64 // the receive that it has used up
	header header
	piece  []byte // in the block
}

// link is one queue pair to a peer.
type link struct {
	peer  *peer
	end   endpoint
	terms terms // of the peer, once known
	mine  bool  // this node has made the offer
	up    bool  // messages can be sent

	posted, retired uint64    // requests
	unsignalled     int       // requests since the last one with a completion
	pages           int       // written there and not acknowledged
	acks            uint64    // how many acknowledgements alone were posted
	said, heard     past      // what was sent, and what was received
	seen, asked     uint64    // the last look: what was acknowledged; and up to where an acknowledgement was asked for
	silent          int       // looks since something was acknowledged
	drained         bool      // after a failure: nothing completes any more
	until           time.Time // after a failure: when to stop waiting for that
}

func newPeer(id, self transport.NodeID, window int) *peer {
	p := &peer{id: id, index: int(id), ring: make([]flight, window), pause: firstPause}
	if id > self {
		p.index--
	}
	return p
}

// initiates says whether this node is the one of the pair that makes queue pairs.
func (t *Transport) initiates(p *peer) bool { return t.self > p.id }

// setPath changes the path and keeps count of those who use the base transport.
func (t *Transport) setPath(p *peer, to path) {
	if was, is := p.path != pathLink && p.path != pathNone, to != pathLink && to != pathNone; is != was {
		if is {
			t.indirect++
		} else {
			t.indirect--
		}
	}
	p.path = to
}

// report calls PeerUp, once.
func (t *Transport) report(p *peer) {
	if p.reported || p.cut {
		return
	}
	p.reported = true
	t.handler.PeerUp(p.id)
	t.list(p)
}

// list notes that something may wait for the peer.
func (t *Transport) list(p *peer) {
	if !p.listed {
		p.listed = true
		t.unsent = append(t.unsent, p)
	}
}

// oweAck notes that an acknowledgement is due.
func (t *Transport) oweAck(p *peer) {
	if !p.owed {
		p.owed = true
		t.owed = append(t.owed, p)
	}
}

// reportLost reports the peers that are gone, after everything that they have sent was delivered.
func (t *Transport) reportLost() {
	if t.next < t.end || len(t.ready) > 0 || t.refill() {
		return // Some of it may be theirs.
	}
	for _, p := range t.ending {
		t.unlink(p)
		t.discardQueue(p)
		t.setPath(p, pathNone)
		p.gone, p.due = true, time.Time{}
		t.handler.PeerDown(p.id, p.lost)
	}
	t.ending = t.ending[:0]
}

// Readmit implements transport.Transport. The queue pair of the lost incarnation has ended when PeerDown is reported (unlink), so its
// blocks and slots can be its successor's. Completions that are still to come belong to the former peer, and give their receives back.
func (t *Transport) Readmit(id transport.NodeID) {
	lost := t.peer(id)
	if !t.enter() {
		return
	}
	defer t.leave()
	if !lost.gone {
		panic(fmt.Sprintf("rdma: Readmit of node %d, whose PeerDown was not reported", id))
	}
	if lost.plain {
		t.counts.plain.Add(-1)
	}
	t.peers[id] = newPeer(id, t.self, t.sizes.Window)
	t.base.Readmit(id)
	t.sinceBase = basePause
}

func (t *Transport) discardQueue(p *peer) {
	for !p.queue.empty() {
		t.recycle(p.queue.pop())
	}
	for i := range p.ring {
		t.freeFlight(&p.ring[i])
	}
	t.counts.queuedBytes.Add(-int64(p.queued))
	p.queued, p.sent = 0, p.last
	for _, h := range p.held {
		t.spend(h.block)
	}
	p.held = nil
	if p.isReady {
		p.isReady = false
		t.ready = slices.DeleteFunc(t.ready, func(other *peer) bool { return other == p })
	}
}

func (t *Transport) freeFlight(f *flight) {
	if f.page != nil && !t.closing.Load() {
		t.pool.put(f.page)
	}
	*f = flight{}
}

// misbehaves parts with a peer that has sent what it must not.
func (t *Transport) misbehaves(p *peer, err error) {
	reason := fmt.Errorf("rdma: node %d: %w; is it a node of another version, or broken?", p.id, err)
	t.log(reason.Error())
	t.disconnect(p, reason)
}
