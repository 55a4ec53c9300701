package tcp

import (
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// name is this package's, in errors.
const name = "tcp"

const (
	// DefaultMaxQueuedBytes is Config.MaxQueuedBytes when none is given. Whoever knows what can be
	// outstanding legally gives a limit above that, as package node does.
	DefaultMaxQueuedBytes = 64 << 20
	// MaxPageBytes is the largest page: that of a huge page on amd64 and arm64.
	MaxPageBytes = 2 << 20
	// MaxNodes is the largest cluster, that of the protocol.
	MaxNodes = 1024
	// directPeers is up to how many peers Poll asks each socket instead of epoll. Asking an idle
	// socket costs about as much as asking epoll, but epoll then costs another call for each socket
	// that has something.
	directPeers = 4
	// maxStreak is how often in a row Poll may look only at what is here already and at the peer
	// that was busy last. It bounds how long a flood from one peer can hold back the others.
	maxStreak = 8
	// maxSparePages bounds how many unused page buffers are held back for reuse. A node has about
	// one page on its way for each thread that waits, so 1,024 (4 MiB of 4 KiB pages) covers every
	// steady state, and a burst does not hold its memory for ever.
	maxSparePages = 1024
	// eventToken is the token of the arrivals' eventfd in epoll; peers have their number, from 0.
	eventToken = -1
)

// Config says who this node is and where the others are.
type Config struct {
	// Self is this node.
	Self transport.NodeID
	// Listener accepts the peers with higher numbers, and lets those with lower ones find out
	// whether this node is alive. It listens already and may be inherited from the parent process.
	// The transport closes it. The node with the highest number needs none, but then its death is
	// noticed only after GiveUp.
	Listener net.Listener
	// Channel is which of Channels channels of each peer's listener this one calls, from 0; see
	// the function Channels. 0 or 1 Channels: peers have none.
	Channel, Channels int
	// Peers has the address of every node, by number ("host:port"); that of Self is not used.
	Peers []string
	// Cluster names the cluster, in at most MaxClusterBytes bytes. Nodes of other clusters are
	// refused.
	Cluster string
	// Hello is what this node tells each peer of itself when they connect, at most MaxHelloBytes;
	// the peer gets it by PeerHello. What it means is not this package's business: a layer above
	// says by it that it is there.
	Hello []byte
	// PageBytes is the size of every payload, 1 to MaxPageBytes.
	PageBytes int
	// MaxQueuedBytes bounds what is kept for one peer because it was not sent or not confirmed,
	// headers included; then Send returns transport.ErrBacklog. It must hold the longest frame and
	// 64 KiB more. 0: DefaultMaxQueuedBytes.
	MaxQueuedBytes int
	// GiveUp is how long a peer that was connected may be out of reach before it is lost, MinGiveUp
	// to MaxGiveUp. A peer whose process has ended is lost sooner, as soon as its machine says that
	// nobody listens at its address. 0: DefaultGiveUp.
	GiveUp time.Duration
	// TLS makes connections mutually authenticated and encrypted. It has this node's certificate,
	// for servers and for clients, and in both RootCAs and ClientCAs the authorities whose
	// certificates peers must show. The transport sets the rest: TLS 1.3 alone, both sides must
	// show a certificate, and names in certificates mean nothing but what VerifyPeer makes of them.
	// nil: connections are plain, and so must be those of all peers.
	TLS *tls.Config
	// LatestTLS is what to use instead of TLS for a connection that is made now: certificates end,
	// and are renewed. It is called before each handshake, from several goroutines, and returns
	// what could be TLS. nil: TLS is used for ever.
	LatestTLS func() *tls.Config
	// Secret, of SecretBytes, makes connections mutually authenticated: each side proves, before
	// anything else that it says is believed, that it knows the same. It does not encrypt, so that
	// whoever can change what is under way can take over a connection: it is for connections that
	// stay on one machine. nil: none, and then peers must have none either.
	Secret []byte
	// Joining says that this node is started into a cluster that runs, under the number of a node
	// that the others have lost. Then Connect returns as soon as one peer is connected, and a peer
	// that does not know yet that it may let this node in (Readmit) is called again. See Connect.
	Joining bool
	// VerifyPeer decides, after the certificate of a peer was verified and the peer has said which
	// node it is, whether it may be that node. Its error is what this node logs and the peer is
	// told. It is called from several goroutines. nil: every certificate that the authorities have
	// signed will do. Without TLS it is never called.
	VerifyPeer func(node transport.NodeID, state tls.ConnectionState) error
	// Log receives one line for each event that an operator may want to know of: refused and lost
	// connections. It is called from several goroutines. nil: nobody wants to know.
	Log func(line string)
	// LongWait receives the lines of Connect about missing peers in place of Log, when it has
	// waited for ten seconds. nil: Log does.
	LongWait func(line string)
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
		// A peer may leave almost confirmEvery bytes unconfirmed for ever, and then a frame must
		// still be possible.
		return fmt.Errorf("tcp: MaxQueuedBytes is %d; it must hold the longest frame, %d bytes, and %d bytes that are not confirmed",
			c.MaxQueuedBytes, maxFrameBytes(c.PageBytes), confirmEvery)
	case c.GiveUp != 0 && (c.GiveUp < MinGiveUp || c.GiveUp > MaxGiveUp):
		return fmt.Errorf("tcp: GiveUp is %v; it must be %v to %v", c.GiveUp, MinGiveUp, MaxGiveUp)
	case len(c.Secret) != 0 && len(c.Secret) != SecretBytes:
		return fmt.Errorf("tcp: Secret has %d bytes; it must have %d, or none", len(c.Secret), SecretBytes)
	case c.Channels < 0 || c.Channels > MaxChannels || c.Channel < 0 || c.Channel >= max(c.Channels, 1):
		return fmt.Errorf("tcp: channel %d of %d; there are at most %d", c.Channel, c.Channels, MaxChannels)
	case c.Listener == nil && int(c.Self) < len(c.Peers)-1:
		return fmt.Errorf("tcp: node %d of %d needs a listener, for the nodes with higher numbers", c.Self, len(c.Peers))
	}
	return checkTLS(c.TLS)
}

// Transport is a transport.Transport over TCP. Make one with New.
//
// It has two halves. The reactor half belongs to whoever is inside the gate. The connecting half
// has goroutines of its own, which call, accept and shake hands; what they find out arrives at the
// reactor as news.
type Transport struct {
	gate   chassis.Gate
	ending atomic.Bool // nothing is logged any more; see Explain
	reactor
	connect connecting
}

// reactor is what the goroutine that polls does: it sends, receives, and adopts connections. It is
// guarded by Transport.gate.
type reactor struct {
	self      transport.NodeID
	pageBytes int
	maxQueued int
	log       func(line string)

	wait     *chassis.Waiting
	counts   chassis.Counters // may be read by any goroutine
	arrivals *arrivals
	connect  *connecting

	peers   []*peer // by node; nil at self
	up      []*peer // those in state peerUp, in no order
	unsent  []*peer // those whose queue may not be empty (peer.listed)
	lost    []*peer // those whose PeerDown was not reported yet
	unread  int     // how many peers have a complete frame in their receive buffer (peer.hasFrame)
	blocked int     // how many peers are waited for until their socket has room (peer.blocked)
	hot     *peer   // the one that sent last; nil: none
	streak  int     // how often in a row Poll has not asked everyone
	turn    int     // where in up Poll begins, so that everyone is first in turn
	asked   int     // how often Poll has asked epoll
	vector  netio.Vector
	chunks  chunkPool
	// draining is true when Close has begun: frames that come are thrown away.
	draining bool
	why      string // the goodbye says so; see Explain

	pool   chassis.Pool
	lender chassis.Lender // of the payloads for Handler.Frame
}

// New makes the transport of one node. It connects to nobody yet: Connect does. The caller closes
// it. New takes over the listener, also when it fails.
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
	wait, err := chassis.NewWaiting(name, eventToken)
	if err != nil {
		return nil, err
	}
	if c.GiveUp == 0 {
		c.GiveUp = DefaultGiveUp
	}
	if c.MaxQueuedBytes == 0 {
		c.MaxQueuedBytes = DefaultMaxQueuedBytes
	}
	t := &Transport{reactor: reactor{
		self: c.Self, pageBytes: c.PageBytes, maxQueued: c.MaxQueuedBytes, wait: wait,
		arrivals: &arrivals{wait: wait}, peers: make([]*peer, len(c.Peers)),
		pool: chassis.Pool{Name: name, PageBytes: c.PageBytes, MaxSpare: maxSparePages},
	}}
	if c.LongWait == nil {
		c.LongWait = c.Log
	}
	c.Log, c.LongWait = t.unlessEnding(c.Log), t.unlessEnding(c.LongWait)
	t.log = c.Log
	runtime.AddCleanup(t, (*chassis.Waiting).Close, wait)
	t.lender.Pool, t.reactor.connect = &t.pool, &t.connect
	for i := range t.peers {
		if id := transport.NodeID(i); id != c.Self {
			t.peers[i] = t.newPeer(id)
		}
	}
	t.connect.init(c, t.arrivals, t.peers, &t.counts.SendCalls)
	return t, nil
}

// unlessEnding passes lines on until the transport ends. say may be nil.
func (t *Transport) unlessEnding(say func(line string)) func(line string) {
	return func(line string) {
		if say != nil && !t.ending.Load() {
			say(line)
		}
	}
}

// Self implements transport.Transport.
func (t *Transport) Self() transport.NodeID { return t.self }

// Nodes implements transport.Transport.
func (t *Transport) Nodes() int { return len(t.peers) }

// PageBytes implements transport.Transport.
func (t *Transport) PageBytes() int { return t.pageBytes }

// WaitFD implements transport.Transport. The descriptor is an epoll instance and stays open until
// the Transport is garbage.
func (t *Transport) WaitFD() int { return t.wait.Poller.FD() }

// peer returns a peer by its number, which must be another node of the cluster.
func (t *Transport) peer(id transport.NodeID) *peer {
	return chassis.PeerOf(name, t.self, t.peers, id)
}

// Lease implements transport.Transport. On TCP a lease is a buffer of this node's pool.
func (t *Transport) Lease(to transport.NodeID) transport.Payload {
	t.peer(to)
	return t.pool.Lease(to)
}

// Send implements transport.Transport.
func (t *Transport) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	p := t.peer(to)
	return t.pool.Send(&t.gate, to, control, payload, func(page *chassis.Payload) error { return t.enqueue(p, control, page) })
}

// enqueue appends a frame to the peer's queue. page is the caller's again when it fails.
func (r *reactor) enqueue(p *peer, control []byte, page *chassis.Payload) error {
	kind, frameBytes := frameControl, frameHeaderBytes+len(control)
	if page != nil {
		kind, frameBytes = framePage, frameBytes+r.pageBytes
	}
	if err := r.admit(p, frameBytes); err != nil {
		return err
	}
	r.header(p, kind, len(control))
	p.queue.write(control)
	if page != nil {
		page.Queue()
		p.queue.attach(page)
		r.counts.PayloadsSent.Add(1)
	}
	r.counts.FramesSent.Add(1)
	r.counts.QueuedBytes.Add(int64(frameBytes))
	r.list(p)
	return nil
}

// admit returns why a frame of this length cannot be queued for the peer; nil: it can.
func (r *reactor) admit(p *peer, frameBytes int) error {
	switch {
	case p.state == peerLost:
		return fmt.Errorf("tcp: send to node %d: %w: %w", p.id, transport.ErrPeerDown, p.reason)
	case p.queue.unconfirmed()+frameBytes > r.maxQueued:
		return fmt.Errorf("tcp: send to node %d: %w: %d bytes wait or are not confirmed, %d are allowed",
			p.id, transport.ErrBacklog, p.queue.unconfirmed(), r.maxQueued)
	}
	return nil
}

// Flush implements transport.Transport.
func (t *Transport) Flush() {
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	t.flush()
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if !t.gate.Enter() {
		return true
	}
	defer t.gate.Leave()
	t.flush()
	return t.unread > 0 || len(t.lost) > 0 || t.arrivals.waiting.Load()
}

// Poll implements transport.Transport.
func (t *Transport) Poll(h transport.Handler, max int) (int, error) {
	if !t.gate.EnterPoll() {
		return 0, transport.ErrClosed
	}
	defer t.gate.LeavePoll()
	if t.arrivals.waiting.Load() {
		t.adopt(t.arrivals.take(true), h)
	}
	delivered := t.pollPeers(h, max)
	if len(t.lost) > 0 {
		t.reportLost(h)
	}
	return delivered, nil
}

// pollPeers delivers frames: those that are here already before the kernel is asked for others, and
// those of the hot peer before those of the rest. Every peer gets its turn when that has gone well
// too often in a row.
func (r *reactor) pollPeers(h transport.Handler, max int) int {
	if max <= 0 {
		return 0
	}
	if r.streak < maxStreak && r.blocked == 0 {
		if n := r.pollShortcut(h, max); n > 0 {
			r.streak++
			return n
		}
	}
	r.streak = 0
	if len(r.up) <= directPeers {
		return r.pollDirect(h, max)
	}
	return r.pollReady(h, max)
}

// pollShortcut delivers what can be had without asking everyone.
func (r *reactor) pollShortcut(h transport.Handler, max int) int {
	if r.unread > 0 {
		return r.deliverUnread(h, max)
	}
	if r.hot != nil && len(r.up) > 1 { // with one peer, asking everyone is as short
		return r.serve(r.hot, h, max)
	}
	return 0
}

// deliverUnread delivers frames that an earlier receive brought, when max held them back.
func (r *reactor) deliverUnread(h transport.Handler, max int) int {
	delivered := 0
	r.turn++
	for i := 0; i < len(r.up) && delivered < max; i++ {
		if p := r.up[(r.turn+i)%len(r.up)]; p.hasFrame {
			delivered += r.deliver(p, h, max-delivered)
		}
	}
	return delivered
}

// pollDirect asks every socket. When a peer is lost on the way, the order of up changes and one may
// be left out until the next Poll.
func (r *reactor) pollDirect(h transport.Handler, max int) int {
	delivered := 0
	r.turn++
	for i := 0; i < len(r.up) && delivered < max; i++ {
		p := r.up[(r.turn+i)%len(r.up)]
		if p.blocked {
			r.flushPeer(p)
		}
		delivered += r.serve(p, h, max-delivered)
	}
	return delivered
}

// pollReady asks epoll which sockets to ask. What lies in receive buffers and what lies in sockets
// take turns in coming first: where either alone is as much as max each time, the other would wait
// without end, and with it the loss of a peer, which lies behind the frames that it has sent. So
// the sockets come first at every second call, and then each time another one of them.
func (r *reactor) pollReady(h transport.Handler, max int) int {
	delivered := 0
	r.asked++
	if r.asked%2 == 0 && r.unread > 0 {
		delivered = r.deliverUnread(h, max)
	}
	ready := r.wait.Poller.Check()
	for i := range ready {
		at := r.wait.Poller.At((r.asked/2 + i) % ready)
		if at.Token == eventToken {
			continue // Poll has looked at the arrivals already.
		}
		p := r.peers[at.Token]
		if at.Writable && p.blocked {
			r.flushPeer(p)
		}
		if at.Readable && delivered < max && !p.hasFrame {
			delivered += r.serve(p, h, max-delivered)
		}
	}
	if r.unread > 0 && delivered < max { // which no socket tells of
		delivered += r.deliverUnread(h, max-delivered)
	}
	return delivered
}

// reportLost tells the handler which peers are lost. It may lose more by what it does in response.
func (r *reactor) reportLost(h transport.Handler) {
	for i := 0; i < len(r.lost); i++ {
		p := r.lost[i]
		p.reported = true
		h.PeerDown(p.id, p.reason)
	}
	clear(r.lost)
	r.lost = r.lost[:0]
}

// Disconnect implements transport.Transport.
func (t *Transport) Disconnect(peer transport.NodeID, reason error) {
	p := t.peer(peer)
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	t.markLost(p, fmt.Errorf("tcp: disconnected from node %d: %w", p.id, reason))
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats { return t.counts.Stats() }
