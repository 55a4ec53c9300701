package rdma

import (
	"fmt"
	"time"

	"dsmd/transport"
	"dsmd/transport/chassis"
)

// path is how frames to a peer travel.
type path uint8

const (
	pathNone path = iota // nothing is known of it yet; frames wait
	// pathPlain is the base transport, as if this package did not exist: the peer does not know it.
	pathPlain
	// pathChoose: it knows RDMA, and it is not decided yet whether that works; frames wait.
	pathChoose
	pathBase // messages on the base transport
	pathLink // messages on a queue pair
)

// peer is another node as the reactor sees it. It is guarded by Transport.gate.
//
// Messages are numbered in each direction, across all paths. So a change of path needs no
// agreement: the sender sends again what is not acknowledged, and the receiver takes each number
// once, in order.
//
// Invariants: acked <= last, safe <= last, sent <= last; sent <= acked + window whenever something
// was posted to a queue pair.
type peer struct {
	id    transport.NodeID
	index int // among the peers, from 0: where its blocks and slots lie

	path     path
	plain    bool  // path is pathPlain. It is the reactor's, also after Close
	reported bool  // PeerUp was reported
	cut      bool  // Disconnect was called: nothing of it is delivered any more
	lost     error // the base transport has lost it, or Disconnect has; nil: not
	gone     bool  // PeerDown was reported

	outgoing
	incoming
	attempts
	link *link
}

// outgoing is what goes to a peer.
type outgoing struct {
	queue  messageQueue // without a number yet
	ring   []flight     // by number modulo its length: messages that have a block
	last   uint64       // the last number given
	sent   uint64       // the last message handed to the path that is used now
	acked  uint64       // the last one that the peer has dealt with
	safe   uint64       // the last one given to the base transport, which does not lose it
	queued int          // bytes of the queue, and of the ring as far as not sent
	listed bool         // the peer is in sender.unsent
}

// incoming is what comes from a peer.
type incoming struct {
	received uint64          // the last message delivered, or being delivered
	dealt    uint64          // the last one whose block and slot are free again
	ackSent  uint64          // the last acknowledgement that was sent
	pages    int             // that came since then
	wantAck  bool            // the peer waits for the next one
	partial  []byte          // pieces of a control part that is not complete
	parked   []parkedMessage // messages that have come before their predecessors, on another path
	owed     bool            // the peer is in sender.owed
	isReady  bool            // the peer is in router.ready
}

// attempts are those to have a queue pair with a peer.
type attempts struct {
	generation uint32 // of the last one
	// silent: the peer has said nothing on the base transport since the last offer. It gets no
	// other one, else it would find all of them at once when it goes on after a long stop.
	silent     bool
	due        time.Time // when to try again, or to give up trying; zero: nothing is due
	pause      time.Duration
	since      time.Time // when the base transport was connected
	decide     bool      // no queue pair will come soon: the base transport may have to do
	complaint  string    // the last attempt's failure that was logged
	complaints int       // how many were, since a queue pair has lasted
	brief      bool      // the last queue pair that worked did not last
	said       time.Time // when that was last logged
	quiet      bool      // neither its end is logged nor the next one that works
}

// flight is a message in the ring.
type flight struct {
	number uint64
	bytes  int    // in its block, with the room for its header
	flags  uint32 // of its header
	page   *chassis.Payload
}

// parkedMessage is one that waits for its predecessors.
type parkedMessage struct {
	block  uint64 // the receive that it has used up
	header header
	piece  []byte // in the block
}

// link is one queue pair to a peer.
type link struct {
	peer  *peer
	end   endpoint
	terms terms     // of the peer, once known
	mine  bool      // this node has made the offer
	up    bool      // it carries packets in both directions, so messages are sent
	began time.Time // when it was up
	// answered: the peer has said its terms, which it does once.
	answered bool

	posted, retired uint64 // requests
	unsignalled     int    // requests since the last one with a completion
	pages           int    // written there and not acknowledged
	acks            uint64 // how many acknowledgements alone were posted
	said, heard     past   // what was sent, and what was received
	// seen is what was acknowledged at the last look; asked is up to where an acknowledgement was
	// asked for.
	seen, asked uint64
	silent      int       // looks since something was acknowledged
	drained     bool      // after a failure: nothing completes any more
	since       uint64    // how many completions were dealt with when that was known
	until       time.Time // after a failure: when to stop waiting for that
}

func newPeer(id, self transport.NodeID, window int) *peer {
	p := &peer{id: id, index: int(id)}
	p.ring, p.pause = make([]flight, window), firstPause
	if id > self {
		p.index--
	}
	return p
}

// Readmit implements transport.Transport. The queue pair of the lost incarnation has ended when
// PeerDown is reported (unlink), so the next one can have its blocks and slots. Completions that
// are still to come belong to the former peer, and give their receives back.
func (t *Transport) Readmit(id transport.NodeID) {
	lost := t.peer(id)
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
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
