package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"

	"dsmd/internal/netio"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// node is the transport.Transport of one node.
type node struct {
	network     *Network
	id          transport.NodeID
	incarnation uint64 // from 1
	joins       bool   // it was started to come into a cluster that runs
	event       *netio.Event
	refused     chan error // why it cannot found a cluster, once

	gate    chassis.Gate
	pending []pendingFrames // by receiver; guarded by gate
	random  *rand.Rand      // whose turn it is in Poll; guarded by gate
	// MaxSpare is 0: a payload serves one frame, so that its state tells every misuse
	pool chassis.Pool
	// readmits are how often each peer was readmitted, and leases, of payloads that are leased, how
	// often theirs was before. Both belong to the reactor.
	readmits []int
	leases   map[*chassis.Payload]int

	inbox     sync.Mutex
	links     []link // by sender; guarded by inbox
	polls     uint64 // the node's time; guarded by inbox
	signalled bool   // event is readable; guarded by inbox

	counts chassis.Counters
}

// pendingFrames are frames to one peer that were not flushed.
type pendingFrames struct {
	frames []*frame
	bytes  int
}

// Self implements transport.Transport.
func (n *node) Self() transport.NodeID { return n.id }

// Nodes implements transport.Transport.
func (n *node) Nodes() int { return n.network.size() }

// PageBytes implements transport.Transport.
func (n *node) PageBytes() int { return n.network.pageBytes }

// WaitFD implements transport.Transport. The descriptor stays open until the Network is garbage.
func (n *node) WaitFD() int { return n.event.FD() }

// Lease implements transport.Transport.
func (n *node) Lease(to transport.NodeID) transport.Payload {
	n.network.checkPair(n.id, to)
	p := n.pool.Lease(to)
	n.leases[p] = n.readmits[to]
	return p
}

// Send implements transport.Transport.
func (n *node) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	n.network.checkPair(n.id, to)
	chassis.CheckControl(name, control)
	page := n.pool.Check(to, payload)
	f := &frame{}
	if page != nil {
		if n.leases[page] != n.readmits[to] {
			panic(fmt.Sprintf("sim: Send to node %d of a payload that was leased before Readmit", to))
		}
		f.page = page.Page()
	}
	err := n.enqueue(to, f, control)
	switch {
	case page == nil:
	case err != nil:
		page.Free()
	default:
		page.Queue() // for good: the receiver has another payload
		delete(n.leases, page)
	}
	return err
}

func (n *node) enqueue(to transport.NodeID, f *frame, control []byte) error {
	if !n.gate.Enter() {
		return transport.ErrClosed
	}
	defer n.gate.Leave()
	if err := n.ended(to); err != nil {
		return fmt.Errorf("sim: send to node %d: %w: %w", to, transport.ErrPeerDown, err)
	}
	f.control = bytes.Clone(control)
	queue := &n.pending[to]
	underWay := queue.bytes
	if receiver := n.partner(to); receiver != nil {
		underWay += receiver.bytesFrom(n.id)
	}
	if limit := n.network.options.MaxQueuedBytes; underWay+f.wireBytes() > limit {
		return fmt.Errorf("sim: send to node %d: %w: %d bytes are under way, %d are allowed", to, transport.ErrBacklog, underWay, limit)
	}
	queue.frames = append(queue.frames, f)
	queue.bytes += f.wireBytes()
	n.counts.FramesSent.Add(1)
	n.counts.PayloadsSent.Add(payloads(f))
	n.counts.QueuedBytes.Add(int64(f.wireBytes()))
	return nil
}

// ended says why the connection to a peer has ended; nil if it has not.
func (n *node) ended(peer transport.NodeID) error {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	return n.links[peer].ended
}

// partner is the incarnation of a peer that this node is connected to, or was at last; nil: none.
func (n *node) partner(peer transport.NodeID) *node {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	return n.links[peer].from
}

// bytesFrom is how many bytes are under way from a peer to this node.
func (n *node) bytesFrom(peer transport.NodeID) int {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	return n.links[peer].bytes
}

func payloads(f *frame) uint64 {
	if f.page == nil {
		return 0
	}
	return 1
}

// Flush implements transport.Transport.
func (n *node) Flush() {
	if !n.gate.Enter() {
		return
	}
	defer n.gate.Leave()
	n.flush()
}

// flush puts what is pending under way.
func (n *node) flush() {
	for to := range n.pending {
		queue := &n.pending[to]
		if len(queue.frames) == 0 {
			continue
		}
		receiver := n.partner(transport.NodeID(to))
		if receiver == nil {
			continue // The frames wait for it.
		}
		receiver.arrive(n, queue.frames)
		n.counts.SendCalls.Add(1)
		n.counts.BytesSent.Add(uint64(queue.bytes))
		n.counts.QueuedBytes.Add(-int64(queue.bytes))
		clear(queue.frames)
		*queue = pendingFrames{frames: queue.frames[:0]}
	}
}

// arrive puts frames of a peer under way to this node. After the end of the connection they are
// lost.
func (n *node) arrive(from *node, frames []*frame) {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	l := &n.links[from.id]
	if l.from != from || l.ended != nil {
		return
	}
	for _, f := range frames {
		l.push(f, n.polls)
	}
	n.wakeLocked()
}

func (n *node) wakeLocked() {
	if !n.signalled {
		n.signalled = true
		n.event.Signal()
	}
}

// Poll implements transport.Transport. Each call advances the node's time by one.
func (n *node) Poll(h transport.Handler, max int) (int, error) {
	if !n.gate.EnterPoll() {
		return 0, transport.ErrClosed
	}
	defer n.gate.LeavePoll()
	n.advance()
	n.reportUp(h)
	delivered := 0
	for delivered < max {
		from, f := n.take()
		if f == nil {
			break
		}
		n.deliver(h, from, f)
		delivered++
	}
	n.reportDown(h)
	return delivered, nil
}

// advance moves the node's time on by one poll.
func (n *node) advance() {
	n.counts.ReceiveCalls.Add(1)
	n.inbox.Lock()
	defer n.inbox.Unlock()
	n.polls++
}

// reportUp tells the handler which peers are connected.
func (n *node) reportUp(h transport.Handler) {
	for peer := range n.links {
		if n.takeUp(peer) {
			h.PeerUp(transport.NodeID(peer))
		}
	}
}

func (n *node) takeUp(peer int) bool {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	l := &n.links[peer]
	due := l.upDue()
	l.up = l.up || due
	return due
}

// take removes one frame that has arrived, of a random sender.
func (n *node) take() (from transport.NodeID, f *frame) {
	turn := n.random.IntN(len(n.links))
	n.inbox.Lock()
	defer n.inbox.Unlock()
	for i := range n.links {
		peer := (turn + i) % len(n.links)
		if l := &n.links[peer]; l.due(n.polls) {
			return transport.NodeID(peer), l.pop()
		}
	}
	return 0, nil
}

// deliver passes a frame to the handler and takes back what the handler has not kept.
func (n *node) deliver(h transport.Handler, from transport.NodeID, f *frame) {
	n.counts.FramesReceived.Add(1)
	n.counts.PayloadsReceived.Add(payloads(f))
	n.counts.BytesReceived.Add(uint64(f.wireBytes()))
	if f.page == nil {
		h.Frame(from, f.control, nil)
	} else {
		lender := chassis.Lender{Pool: &n.pool}
		page := lender.Lend(f.page)
		h.Frame(from, f.control, page)
		lender.Return(page)
		overwrite(f.page)
	}
	overwrite(f.control)
}

// reportDown tells the handler which peers are lost.
func (n *node) reportDown(h transport.Handler) {
	for peer := range n.links {
		if err := n.takeDown(peer); err != nil {
			h.PeerDown(transport.NodeID(peer), err)
		}
	}
}

func (n *node) takeDown(peer int) error {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	l := &n.links[peer]
	if !l.downDue() {
		return nil
	}
	l.reported = true
	return l.ended
}

// Arm implements transport.Transport. Frames that are under way but not due are work: polling makes
// them due.
func (n *node) Arm() bool {
	if !n.gate.Enter() {
		return true
	}
	defer n.gate.Leave()
	n.flush()
	n.inbox.Lock()
	defer n.inbox.Unlock()
	for i := range n.links {
		if n.links[i].work() {
			return true
		}
	}
	if n.signalled {
		n.signalled = false
		n.event.Clear()
	}
	return false
}

// loss says what happens to the frames under way when a connection ends.
type loss uint8

const (
	loseNothing loss = iota // the sender has closed in order
	loseSome                // a random number of the last ones
	loseAll                 // the receiver has parted
)

// endWith ends the connection to an incarnation of a peer, as far as this node's side goes.
func (n *node) endWith(peer *node, reason error, lost loss) {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	if n.links[peer.id].from == peer {
		n.endLocked(peer.id, reason, lost)
	}
}

// cut ends the connection to a peer from outside, on both sides.
func (n *node) cut(peer transport.NodeID) {
	if other := n.partner(peer); other != nil {
		reason := fmt.Errorf("%w: nodes %d and %d", ErrCut, n.id, peer)
		n.endWith(other, reason, loseSome)
		other.endWith(n, reason, loseSome)
	}
}

// cutOff ends all its connections.
func (n *node) cutOff() {
	for peer := range n.links {
		n.cut(transport.NodeID(peer))
	}
}

// end parts with a peer, whether it is connected or not.
func (n *node) end(peer transport.NodeID, reason error) {
	n.inbox.Lock()
	defer n.inbox.Unlock()
	n.endLocked(peer, reason, loseAll)
}

func (n *node) endLocked(peer transport.NodeID, reason error, lost loss) {
	l := &n.links[peer]
	if l.ended != nil {
		return
	}
	keep := l.random.IntN(len(l.frames) + 1)
	switch {
	case lost == loseAll, lost == loseSome && l.stalled: // nobody has seen what a stall held back
		l.keepFirst(0)
	case lost == loseSome:
		l.keepFirst(keep)
	}
	l.ended, l.stalled = reason, false
	n.wakeLocked()
}

// Disconnect implements transport.Transport.
func (n *node) Disconnect(peer transport.NodeID, reason error) {
	n.network.checkPair(n.id, peer)
	if !n.gate.Enter() {
		return
	}
	defer n.gate.Leave()
	n.end(peer, fmt.Errorf("sim: disconnected from node %d: %w", peer, reason))
	n.drop(&n.pending[peer])
	if other := n.partner(peer); other != nil {
		other.endWith(n, fmt.Errorf("%w: node %d: %v", errPeerParted, n.id, reason), loseSome)
	}
}

// Readmit implements transport.Transport.
func (n *node) Readmit(peer transport.NodeID) {
	n.network.checkPair(n.id, peer)
	if !n.gate.Enter() {
		return
	}
	defer n.gate.Leave()
	n.readmits[peer]++
	n.forget(peer)
	n.network.mu.Lock()
	defer n.network.mu.Unlock()
	if n.network.nodes[n.id] == n { // else this node was killed
		n.network.connectLocked(n, n.network.nodes[peer])
	}
}

// founds reports whether this node takes a peer for one with which it founds a cluster.
// Preconditions: inbox is locked.
func (n *node) founds(peer transport.NodeID) bool { return !n.joins && !n.links[peer].readmitted }

// forget makes a peer that is lost one that was never connected.
func (n *node) forget(peer transport.NodeID) {
	n.drop(&n.pending[peer])
	n.inbox.Lock()
	defer n.inbox.Unlock()
	l := &n.links[peer]
	if !l.reported {
		panic(fmt.Sprintf("sim: Readmit of node %d, whose PeerDown was not reported; the end: %v", peer, l.ended))
	}
	if l.from != nil {
		l.former = l.from.incarnation
	}
	l.from, l.up, l.ended, l.reported, l.readmitted = nil, false, nil, false, true
}

// drop loses frames that were not flushed.
func (n *node) drop(queue *pendingFrames) {
	n.counts.QueuedBytes.Add(-int64(queue.bytes))
	clear(queue.frames)
	*queue = pendingFrames{frames: queue.frames[:0]}
}

// Stats implements transport.Transport.
func (n *node) Stats() transport.Stats { return n.counts.Stats() }

// Close implements transport.Transport.
func (n *node) Close() error {
	if !n.gate.Close(n.event.Signal) {
		return nil
	}
	n.flush()
	for i := range n.links {
		peer := transport.NodeID(i)
		if peer == n.id {
			continue
		}
		n.end(peer, transport.ErrClosed)
		if other := n.partner(peer); other != nil {
			other.endWith(n, fmt.Errorf("%w: node %d", errPeerClosed, n.id), loseNothing)
		}
	}
	return nil
}
