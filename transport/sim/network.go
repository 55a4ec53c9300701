package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"dsmd/internal/netio"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// name is this package's, in errors.
const name = "sim"

// ErrCut is wrapped by the reason of PeerDown after Network.Cut.
var ErrCut = errors.New("sim: the connection was cut")

// errPeerClosed is the reason of PeerDown when the peer was closed.
var errPeerClosed = errors.New("sim: the peer has closed its transport")

// errPeerParted is the reason of PeerDown when the peer has called Disconnect.
var errPeerParted = errors.New("sim: the peer has disconnected")

// defaultMaxQueuedBytes is Options.MaxQueuedBytes when none is given, the same as for
// transport/tcp.
const defaultMaxQueuedBytes = 64 << 20

// maxNodes is the largest network, the protocol's largest cluster.
const maxNodes = 1024

// Options are the properties of a network. The zero value has no delays.
type Options struct {
	// Seed is where everything random comes from.
	Seed uint64
	// MinDelay and MaxDelay bound the delay of a frame, in calls of Poll on the receiving node.
	// Each frame's delay is drawn anew, but no frame overtakes another of the same link.
	MinDelay, MaxDelay int
	// MaxQueuedBytes bounds what may be under way from one node to another, flushed or not; then
	// Send returns transport.ErrBacklog. 0: 64 MiB.
	MaxQueuedBytes int
}

// Network connects nodes.
type Network struct {
	options   Options
	pageBytes int

	mu    sync.Mutex // also held while two nodes are connected
	nodes []*node    // the last incarnation of each; guarded by mu
}

// NewNetwork makes a network whose nodes are connected: their first Poll reports PeerUp for all
// others. Preconditions: nodes in 1..1024, pageBytes > 0, 0 <= MinDelay <= MaxDelay. It panics when
// they don't hold, or when the process is out of descriptors, of which each node needs one.
func NewNetwork(nodes, pageBytes int, o Options) *Network {
	if nodes < 1 || nodes > maxNodes || pageBytes < 1 {
		panic(fmt.Sprintf("sim: a network of %d nodes with pages of %d bytes; 1 to %d nodes are possible", nodes, pageBytes, maxNodes))
	}
	if o.MaxQueuedBytes == 0 {
		o.MaxQueuedBytes = defaultMaxQueuedBytes
	}
	n := &Network{options: o, pageBytes: pageBytes, nodes: make([]*node, nodes)}
	for i := range n.nodes {
		n.nodes[i] = n.newNode(transport.NodeID(i), 1, false)
	}
	for i, a := range n.nodes {
		for _, b := range n.nodes[:i] {
			n.connectLocked(a, b) // Nobody else has the network yet.
		}
	}
	return n
}

// newNode makes an incarnation of a node that is connected to nobody.
func (n *Network) newNode(id transport.NodeID, incarnation uint64, joins bool) *node {
	event, err := netio.NewEvent()
	if err != nil {
		panic(fmt.Sprintf("sim: node %d: %v", id, err))
	}
	self := &node{
		network: n, id: id, incarnation: incarnation, joins: joins, event: event, refused: make(chan error, 1),
		random:  rand.New(rand.NewPCG(n.options.Seed, uint64(id)|(incarnation-1)<<32)),
		pending: make([]pendingFrames, len(n.nodes)),
		links:   make([]link, len(n.nodes)),
		pool:    chassis.Pool{Name: name, PageBytes: n.pageBytes},

		readmits: make([]int, len(n.nodes)), leases: map[*chassis.Payload]int{},
	}
	self.pool.Freed = func(p *chassis.Payload) {
		overwrite(p.Page())
		delete(self.leases, p)
	}
	for from := range self.links {
		l := &self.links[from]
		l.random = rand.New(rand.NewPCG(n.options.Seed, uint64(from+1)<<32|uint64(id)))
		l.setDelay(n.options.MinDelay, n.options.MaxDelay)
	}
	// The descriptor outlives Close, because somebody may sleep on it.
	runtime.AddCleanup(self, func(e *netio.Event) { e.Close() }, event)
	return self
}

// Node is the transport of node i, that of its last incarnation.
func (n *Network) Node(i int) transport.Transport { return n.node(transport.NodeID(i)) }

func (n *Network) node(id transport.NodeID) *node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.nodes[id]
}

// Restart kills a node, as Crash does, and starts it anew. It returns the transport of the new
// incarnation, which is connected to each other node as soon as that has readmitted it, or is a new
// incarnation itself. Preconditions: nobody restarts the node at the same time.
func (n *Network) Restart(id transport.NodeID) transport.Transport { return n.restart(id, true) }

// Found is Restart of a node that does not join the others, but founds a cluster. The channel has
// transport.ErrGoneOn when one of the others has readmitted the node.
func (n *Network) Found(id transport.NodeID) (transport.Transport, <-chan error) {
	self := n.restart(id, false)
	return self, self.refused
}

func (n *Network) restart(id transport.NodeID, joins bool) *node {
	former := n.node(id)
	self := n.newNode(id, former.incarnation+1, joins)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[id] = self // From here on nobody is connected to the former one.
	former.cutOff()
	for _, other := range n.nodes {
		n.connectLocked(self, other)
	}
	return self
}

// connectLocked connects two nodes if each waits for the other. Both inboxes are locked, so that no
// frame arrives before both know. Preconditions: mu is held, but by NewNetwork.
func (n *Network) connectLocked(a, b *node) {
	if a == b {
		return
	}
	a.inbox.Lock()
	defer a.inbox.Unlock()
	b.inbox.Lock()
	defer b.inbox.Unlock()
	ofA, ofB := &b.links[a.id], &a.links[b.id]
	if !ofA.awaits(a) || !ofB.awaits(b) {
		return
	}
	if a.founds(b.id) != b.founds(a.id) {
		for _, x := range []*node{a, b} {
			if !x.joins && len(x.refused) == 0 { // mu keeps others from filling it
				x.refused <- fmt.Errorf("sim: node %d: %w", x.id, transport.ErrGoneOn)
			}
		}
		return
	}
	ofA.from, ofB.from = a, b
	a.wakeLocked()
	b.wakeLocked()
}

// Cut ends the connection between two nodes, as a broken cable does: of the frames under way in
// each direction a random number, the last ones, are lost; the others still arrive, and then
// PeerDown is reported to both. The reason wraps ErrCut. It does nothing to nodes that are not
// connected.
func (n *Network) Cut(a, b transport.NodeID) {
	n.checkPair(a, b)
	n.node(a).cut(b)
}

// Crash cuts a node off from all others. To them it is dead; it finds itself alone.
func (n *Network) Crash(id transport.NodeID) {
	n.node(id).cutOff()
}

// Stall holds back all frames from one node to another until Resume. The other direction goes on.
func (n *Network) Stall(from, to transport.NodeID) { n.setStalled(from, to, true) }

// Resume lets frames arrive again after Stall.
func (n *Network) Resume(from, to transport.NodeID) { n.setStalled(from, to, false) }

func (n *Network) setStalled(from, to transport.NodeID, stalled bool) {
	n.checkPair(from, to)
	receiver := n.node(to)
	receiver.inbox.Lock()
	defer receiver.inbox.Unlock()
	l := &receiver.links[from]
	l.stalled = stalled && l.ended == nil
	receiver.wakeLocked()
}

// Delay changes the delay of frames that are flushed from now on. Preconditions: 0 <= least <=
// most.
func (n *Network) Delay(from, to transport.NodeID, least, most int) {
	n.checkPair(from, to)
	receiver := n.node(to)
	receiver.inbox.Lock()
	defer receiver.inbox.Unlock()
	receiver.links[from].setDelay(least, most)
}

func (n *Network) checkPair(a, b transport.NodeID) {
	if int(a) >= n.size() || int(b) >= n.size() || a == b {
		panic(fmt.Sprintf("sim: no link between nodes %d and %d of %d", a, b, n.size()))
	}
}

// size is the number of nodes.
func (n *Network) size() int { return len(n.nodes) }

// link is one direction between two nodes, seen from the receiver. It is guarded by the receiver's
// inbox.
type link struct {
	// from is the incarnation of the sender that is connected, or was at last; nil: none was, since
	// Readmit.
	from             *node
	readmitted       bool   // the sender takes the place of one that was lost
	former           uint64 // incarnations up to this one are lost, and not connected again
	up               bool   // PeerUp was called, or is about to be
	random           *rand.Rand
	minDelay, spread int
	frames           []*frame // under way, in order; their due times ascend
	bytes            int      // sum of frames' wire lengths
	stalled          bool     // invariant: not set when ended is
	ended            error    // why no more frames come after those under way; nil: the link is up
	reported         bool     // PeerDown was called, or is about to be
}

func (l *link) setDelay(least, most int) {
	if least < 0 || most < least {
		panic(fmt.Sprintf("sim: a delay of %d to %d polls", least, most))
	}
	l.minDelay, l.spread = least, most-least
}

// push puts a frame under way. now is the receiver's time.
func (l *link) push(f *frame, now uint64) {
	f.due = now + uint64(l.minDelay+l.random.IntN(l.spread+1))
	if last := len(l.frames) - 1; last >= 0 {
		f.due = max(f.due, l.frames[last].due)
	}
	l.frames = append(l.frames, f)
	l.bytes += f.wireBytes()
}

func (l *link) pop() *frame {
	f := l.frames[0]
	l.frames[0] = nil
	l.frames = l.frames[1:]
	l.bytes -= f.wireBytes()
	return f
}

// keepFirst loses all frames but the first n.
func (l *link) keepFirst(n int) {
	for _, f := range l.frames[n:] {
		l.bytes -= f.wireBytes()
	}
	clear(l.frames[n:])
	l.frames = l.frames[:n]
}

// awaits reports whether the receiver waits for an incarnation of the sender.
func (l *link) awaits(from *node) bool {
	return l.from == nil && l.ended == nil && from.incarnation > l.former
}

// due reports whether a frame has arrived that may be delivered.
func (l *link) due(now uint64) bool {
	return l.up && !l.stalled && len(l.frames) > 0 && l.frames[0].due <= now
}

// work reports whether polling, once or several times, will bring something.
func (l *link) work() bool {
	return !l.stalled && len(l.frames) > 0 || l.upDue() || l.downDue()
}

// upDue reports whether PeerUp is to be reported now.
func (l *link) upDue() bool { return l.from != nil && !l.up }

// downDue reports whether PeerDown is to be reported now.
func (l *link) downDue() bool {
	return l.ended != nil && !l.reported && len(l.frames) == 0 && !l.upDue()
}

// frameHeaderBytes is what a frame costs beside its contents, as on TCP, so that byte counts
// compare.
const frameHeaderBytes = 8

// frame is one frame under way.
type frame struct {
	control []byte
	page    []byte // nil: no payload
	due     uint64
}

func (f *frame) wireBytes() int {
	bytes := frameHeaderBytes + len(f.control)
	if f.page != nil {
		bytes += len(f.page)
	}
	return bytes
}
