package tcp

import (
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// DefaultMaxQueuedBytes is Config.MaxQueuedBytes when none is given. A node owes a peer at most one
	// page for each fault that is outstanding there; 64 MiB are 16,000 pages of 4 KiB, more
	// than a node has threads. A peer that leaves more behind has stopped reading, or is out of reach.
	DefaultMaxQueuedBytes = 64 << 20
	// MaxPageBytes is the largest page: that of a huge page on amd64 and arm64.
	MaxPageBytes = 2 << 20
	// MaxNodes is the largest cluster, that of the protocol.
	MaxNodes = 1024
	// directPeers is up to how many peers Poll asks each socket instead of epoll. Asking an idle socket
	// costs about as much as asking epoll, but epoll then costs another call for each socket
	// that has something.
	directPeers = 4
	// maxStreak is how often in a row Poll may look only at what is here already and at the peer that was
	// busy last. It bounds how long a flood from one peer can hold back the others.
	maxStreak = 8
	// eventToken is the token of the arrivals' eventfd in epoll; peers have their number, from 0.
	eventToken = -1
)

// Config says who this node is and where the others are.
type Config struct {
	// Self is this node.
	Self transport.NodeID
	// Listener accepts the peers with higher numbers, and lets those with lower ones find out whether this node is alive. It
	// listens already and may be inherited from the parent process. The transport closes it. The node with the highest number needs
	// none, but then its death is noticed only after GiveUp.
	Listener net.Listener
	// Peers has the address of every node, by number ("host:port"); that of Self is not used.
	Peers []string
	// Cluster names the cluster, in at most MaxClusterBytes bytes. Nodes of other clusters are refused.
	Cluster string
	// Hello is what this node tells each peer of itself when they connect, at most MaxHelloBytes; the peer gets it by PeerHello. What
	// it means is not this package's business: a layer above says by it that it is there.
	Hello []byte
	// PageBytes is the size of every payload, 1 to MaxPageBytes.
	PageBytes int
	// MaxQueuedBytes bounds what is kept for one peer because it was not sent or not confirmed, headers included; then Send
	// returns transport.ErrBacklog. It must hold the longest frame and 64 KiB more. 0: DefaultMaxQueuedBytes.
	MaxQueuedBytes int
	// GiveUp is how long a peer that was connected may be out of reach before it is lost, MinGiveUp to MaxGiveUp. A peer whose
	// process has ended is lost sooner, as soon as its machine says that nobody listens at its address. 0: DefaultGiveUp.
	GiveUp time.Duration
	// TLS makes connections mutually authenticated and encrypted. It has this node's certificate, for servers and for clients, and in both
	// RootCAs and ClientCAs the authorities whose certificates peers must show. The transport sets the rest: TLS 1.3 alone,
	// both sides must show a certificate, and names in certificates mean nothing but what VerifyPeer makes of them. nil: connections
	// are plain, and so must be those of all peers.
	TLS *tls.Config
	// Joining says that this node is started into a cluster that runs, under the number of a node that the others have lost. Then
	// Connect returns as soon as one peer is connected, and a peer that does not know yet that it may let this node in (Readmit) is
	// called again. See Connect.
	Joining bool
	// VerifyPeer decides, after the certificate of a peer was verified and the peer has said which node it is, whether it
	// may be that node. Its error is what this node logs and the peer is told. It is called from several goroutines.
	// nil: every certificate that the authorities have signed will do. Without TLS it is never called.
	VerifyPeer func(node transport.NodeID, state tls.ConnectionState) error
	// Log receives one line for each event that an operator may want to know of: refused and lost
	// connections. It is called from several goroutines. nil: nobody wants to know.
	Log func(line string)
}

func (c *Config) check() error {
	switch {
	case len(c.Peers) < 1 || len(c.Peers) > MaxNodes:
		return fmt.Errorf("tcp: %d addresses of nodes given, a cluster has 1 to %d", len(c.Peers), MaxNodes)
	case int(c.Self) >= len(c.Peers):
		return fmt.Errorf("tcp: this is node %d, but only %d addresses are given; numbers start at 0", c.Self, len(c.Peers))
	case c.PageBytes < 1 || c.PageBytes > MaxPageBytes:
		return fmt.Errorf("tcp: a page size of %d bytes; it must be 1 to %d", c.PageBytes, MaxPageBytes)
	case len(c.Cluster) > MaxClusterBytes:
		return fmt.Errorf("tcp: the cluster's name has %d bytes; it must have at most %d", len(c.Cluster), MaxClusterBytes)
	case len(c.Hello) > MaxHelloBytes:
		return fmt.Errorf("tcp: Hello has %d bytes; it must have at most %d", len(c.Hello), MaxHelloBytes)
	case c.MaxQueuedBytes < 0:
		return fmt.Errorf("tcp: MaxQueuedBytes is %d; it must not be negative", c.MaxQueuedBytes)
	case c.MaxQueuedBytes != 0 && c.MaxQueuedBytes < maxFrameBytes(c.PageBytes)+confirmEvery:
		// A peer may leave almost confirmEvery bytes unconfirmed for ever, and then a frame must still be possible.
		return fmt.Errorf("tcp: MaxQueuedBytes is %d; it must hold the longest frame, %d bytes, and %d bytes that are not confirmed",
			c.MaxQueuedBytes, maxFrameBytes(c.PageBytes), confirmEvery)
	case c.GiveUp != 0 && (c.GiveUp < MinGiveUp || c.GiveUp > MaxGiveUp):
		return fmt.Errorf("tcp: GiveUp is %v; it must be %v to %v", c.GiveUp, MinGiveUp, MaxGiveUp)
	case c.Listener == nil && int(c.Self) < len(c.Peers)-1:
		return fmt.Errorf("tcp: node %d of %d needs a listener, for the nodes with higher numbers", c.Self, len(c.Peers))
	}
	return checkTLS(c.TLS)
}

// Transport is a transport.Transport over TCP. Make one with New.
type Transport struct {
	self      transport.NodeID
	pageBytes int
	maxQueued int
	log       func(line string)

	wait   *waiting
	counts counters

	// closing is set before Close waits for mu. mu is held by the reactor while it is inside a method, and by
	// Close for ever. The fields from here to handling belong to whoever holds it.
	closing atomic.Bool
	mu      sync.Mutex

	peers   []*peer // by node; nil at self
	up      []*peer // those in state peerUp, in no order
	unsent  []*peer // those whose queue may not be empty (peer.listed)
	lost    []*peer // those whose PeerDown was not reported yet
	unread  int     // how many peers have a complete frame in their receive buffer (peer.hasFrame)
	blocked int     // how many peers are waited for until their socket has room (peer.blocked)
	hot     *peer   // the one that sent last; nil: none
	streak  int     // how often in a row Poll has not asked everyone
	turn    int     // where in up Poll begins, so that everyone is first in turn
	vector  netio.Vector
	chunks  chunkPool
	// draining is true when Close has begun: frames that come are thrown away.
	draining bool

	// handling is true while Poll runs, so that methods called by the Handler don't take mu
	// again. It belongs to the reactor's goroutine, also after Close.
	handling bool
	pool     pagePool
	borrowed *page // the payload that is passed to Handler.Frame next; nil: take a new one

	arrivals arrivals
	connect  connecting
}

// waiting is what a reactor sleeps on. It outlives Close, because closing a descriptor that somebody sleeps
// on does not wake him: the descriptors go when the Transport itself is garbage.
type waiting struct {
	poller *netio.Poller
	event  *netio.Event
}

func newWaiting() (*waiting, error) {
	poller, err := netio.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	event, err := netio.NewEvent()
	if err != nil {
		poller.Close()
		return nil, fmt.Errorf("tcp: %w", err)
	}
	w := &waiting{poller: poller, event: event}
	if err := poller.Add(event.FD(), eventToken); err != nil {
		w.close()
		return nil, fmt.Errorf("tcp: %w", err)
	}
	return w, nil
}

func (w *waiting) close() {
	w.event.Close()
	w.poller.Close()
}

// counters are transport.Stats that any goroutine may read.
type counters struct {
	framesSent, framesReceived     atomic.Uint64
	payloadsSent, payloadsReceived atomic.Uint64
	bytesSent, bytesReceived       atomic.Uint64
	sendCalls, receiveCalls        atomic.Uint64
	queuedBytes                    atomic.Int64
}

// New makes the transport of one node. It connects to nobody yet: Connect does. The caller closes it. New takes
// over the listener, also when it fails.
func New(c Config) (*Transport, error) {
	t, err := newTransport(c)
	if err != nil && c.Listener != nil {
		c.Listener.Close()
	}
	return t, err
}

func newTransport(c Config) (*Transport, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	wait, err := newWaiting()
	if err != nil {
		return nil, err
	}
	t := &Transport{
		self: c.Self, pageBytes: c.PageBytes, maxQueued: c.MaxQueuedBytes, log: c.Log, wait: wait,
		peers: make([]*peer, len(c.Peers)),
	}
	if c.GiveUp == 0 {
		c.GiveUp = DefaultGiveUp
	}
	runtime.AddCleanup(t, (*waiting).close, wait)
	if t.maxQueued == 0 {
		t.maxQueued = DefaultMaxQueuedBytes
	}
	if t.log == nil {
		t.log = func(string) {}
	}
	t.pool.pageBytes = c.PageBytes
	for i := range t.peers {
		if id := transport.NodeID(i); id != c.Self {
			t.peers[i] = t.newPeer(id)
		}
	}
	t.connect.init(c, t.peers)
	return t, nil
}

// Self implements transport.Transport.
func (t *Transport) Self() transport.NodeID { return t.self }

// Nodes implements transport.Transport.
func (t *Transport) Nodes() int { return len(t.peers) }

// PageBytes implements transport.Transport.
func (t *Transport) PageBytes() int { return t.pageBytes }

// WaitFD implements transport.Transport. The descriptor is an epoll instance and stays open until the
// Transport is garbage.
func (t *Transport) WaitFD() int { return t.wait.poller.FD() }

// enter begins a method of the reactor and reports whether it may go on: not after Close.
func (t *Transport) enter() bool {
	if t.handling {
		return true
	}
	if t.closing.Load() {
		return false
	}
	if t.mu.TryLock() {
		return true
	}
	// Close sets closing before it takes mu, and nobody but it competes with the reactor.
	if !t.closing.Load() {
		panic("tcp: two goroutines use one Transport at once; its methods belong to one, the reactor's")
	}
	return false
}

func (t *Transport) leave() {
	if !t.handling {
		t.mu.Unlock()
	}
}

// peer returns a peer by its number, which must be another node of the cluster.
func (t *Transport) peer(id transport.NodeID) *peer {
	if int(id) >= len(t.peers) || id == t.self {
		panic(fmt.Sprintf("tcp: node %d of %d has no peer %d", t.self, len(t.peers), id))
	}
	return t.peers[id]
}

// Lease implements transport.Transport. On TCP a lease is a buffer of this node's pool.
func (t *Transport) Lease(to transport.NodeID) transport.Payload {
	t.peer(to)
	p := t.pool.get()
	p.reserve()
	p.state, p.data, p.to = pageLeased, p.own, to
	return p
}

// Send implements transport.Transport.
func (t *Transport) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	p := t.peer(to)
	if len(control) == 0 || len(control) > transport.MaxControlBytes {
		panic(fmt.Sprintf("tcp: Send of a control part of %d bytes; it must have 1 to %d",
			len(control), transport.MaxControlBytes))
	}
	page := t.takeBack(to, payload)
	err := t.enqueue(p, control, page)
	if err != nil && page != nil {
		t.pool.put(page)
	}
	return err
}

// takeBack checks that payload is one that the caller may send to the peer; nil if there is none.
func (t *Transport) takeBack(to transport.NodeID, payload transport.Payload) *page {
	if payload == nil {
		return nil
	}
	p, ok := payload.(*page)
	if !ok || p.pool != &t.pool {
		panic(fmt.Sprintf("tcp: Send to node %d of a payload (%T) that this transport has not leased", to, payload))
	}
	if p.state != pageLeased || p.to != to {
		panic(fmt.Sprintf("tcp: Send to node %d of a payload that is %s (for node %d); lease one for this peer",
			to, pageStateNames[p.state], p.to))
	}
	return p
}

// enqueue appends a frame to the peer's queue. page is the caller's again when it fails.
func (t *Transport) enqueue(p *peer, control []byte, page *page) error {
	if !t.enter() {
		return transport.ErrClosed
	}
	defer t.leave()
	kind, frameBytes := frameControl, frameHeaderBytes+len(control)
	if page != nil {
		kind, frameBytes = framePage, frameBytes+t.pageBytes
	}
	if err := t.admit(p, frameBytes); err != nil {
		return err
	}
	t.header(p, kind, len(control))
	p.queue.write(control)
	if page != nil {
		page.state, page.data = pageQueued, nil
		p.queue.attach(page)
		t.counts.payloadsSent.Add(1)
	}
	t.counts.framesSent.Add(1)
	t.counts.queuedBytes.Add(int64(frameBytes))
	t.list(p)
	return nil
}

// admit says whether a frame of this length may be queued for the peer.
func (t *Transport) admit(p *peer, frameBytes int) error {
	switch {
	case p.state == peerLost:
		return fmt.Errorf("tcp: send to node %d: %w: %w", p.id, transport.ErrPeerDown, p.reason)
	case p.queue.held()+frameBytes > t.maxQueued:
		return fmt.Errorf("tcp: send to node %d: %w: %d bytes wait or are not confirmed, %d are allowed",
			p.id, transport.ErrBacklog, p.queue.held(), t.maxQueued)
	}
	return nil
}

// Flush implements transport.Transport.
func (t *Transport) Flush() {
	if !t.enter() {
		return
	}
	defer t.leave()
	t.flush()
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if !t.enter() {
		return true
	}
	defer t.leave()
	t.flush()
	return t.unread > 0 || len(t.lost) > 0 || t.arrivals.waiting.Load()
}

// Poll implements transport.Transport.
func (t *Transport) Poll(h transport.Handler, max int) (int, error) {
	if t.handling {
		panic("tcp: Poll called by a Handler")
	}
	if !t.enter() {
		return 0, transport.ErrClosed
	}
	t.handling = true
	defer func() {
		t.handling = false
		t.leave()
	}()
	if t.arrivals.waiting.Load() {
		t.adopt(t.arrivals.take(t.wait.event), h)
	}
	delivered := t.pollPeers(h, max)
	if len(t.lost) > 0 {
		t.reportLost(h)
	}
	return delivered, nil
}

// pollPeers delivers frames: those that are here already before the kernel is asked for others, and those
// of the hot peer before those of the rest. Every peer gets its turn when that has gone well too often in a row.
func (t *Transport) pollPeers(h transport.Handler, max int) int {
	if max <= 0 {
		return 0
	}
	if t.streak < maxStreak && t.blocked == 0 {
		if n := t.pollShortcut(h, max); n > 0 {
			t.streak++
			return n
		}
	}
	t.streak = 0
	if len(t.up) <= directPeers {
		return t.pollDirect(h, max)
	}
	return t.pollReady(h, max)
}

// pollShortcut delivers what can be had without asking everyone.
func (t *Transport) pollShortcut(h transport.Handler, max int) int {
	if t.unread > 0 {
		return t.deliverUnread(h, max)
	}
	if t.hot != nil && len(t.up) > 1 { // with one peer, asking everyone is as short
		return t.serve(t.hot, h, max)
	}
	return 0
}

// deliverUnread delivers frames that an earlier receive brought, when max held them back.
func (t *Transport) deliverUnread(h transport.Handler, max int) int {
	delivered := 0
	t.turn++
	for i := 0; i < len(t.up) && delivered < max; i++ {
		if p := t.up[(t.turn+i)%len(t.up)]; p.hasFrame {
			delivered += t.deliver(p, h, max-delivered)
		}
	}
	return delivered
}

// pollDirect asks every socket. When a peer is lost on the way, the order of up changes and one may be left
// out until the next Poll.
func (t *Transport) pollDirect(h transport.Handler, max int) int {
	delivered := 0
	t.turn++
	for i := 0; i < len(t.up) && delivered < max; i++ {
		p := t.up[(t.turn+i)%len(t.up)]
		if p.blocked {
			t.flushPeer(p)
		}
		delivered += t.serve(p, h, max-delivered)
	}
	return delivered
}

// pollReady asks epoll which sockets to ask.
func (t *Transport) pollReady(h transport.Handler, max int) int {
	delivered := 0
	for i := range t.wait.poller.Check() {
		ready := t.wait.poller.At(i)
		if ready.Token == eventToken {
			continue // Poll has looked at the arrivals already.
		}
		p := t.peers[ready.Token]
		if ready.Writable && p.blocked {
			t.flushPeer(p)
		}
		if ready.Readable && delivered < max {
			delivered += t.serve(p, h, max-delivered)
		}
	}
	return delivered
}

// reportLost tells the handler which peers are lost. It may lose more by what it does in response.
func (t *Transport) reportLost(h transport.Handler) {
	for i := 0; i < len(t.lost); i++ {
		p := t.lost[i]
		p.reported = true
		h.PeerDown(p.id, p.reason)
	}
	clear(t.lost)
	t.lost = t.lost[:0]
}

// Disconnect implements transport.Transport.
func (t *Transport) Disconnect(peer transport.NodeID, reason error) {
	p := t.peer(peer)
	if !t.enter() {
		return
	}
	defer t.leave()
	t.lose(p, fmt.Errorf("tcp: disconnected from node %d: %w", p.id, reason))
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	return transport.Stats{
		FramesSent: t.counts.framesSent.Load(), FramesReceived: t.counts.framesReceived.Load(),
		PayloadsSent: t.counts.payloadsSent.Load(), PayloadsReceived: t.counts.payloadsReceived.Load(),
		BytesSent: t.counts.bytesSent.Load(), BytesReceived: t.counts.bytesReceived.Load(),
		SendCalls: t.counts.sendCalls.Load(), ReceiveCalls: t.counts.receiveCalls.Load(),
		QueuedBytes: uint64(max(0, t.counts.queuedBytes.Load())),
	}
}
