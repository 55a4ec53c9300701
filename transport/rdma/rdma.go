package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/netio"
	"dsmd/internal/verbs"
	"dsmd/transport"
)

const (
	// pollBatch is how many completions are taken from the device at a time.
	pollBatch = 64
	// basePause is after how many Polls the base transport is asked although nobody is known to use it, and the device for news of
	// connections. Asking them is a system call for each peer and two more, which may be under way just when a page comes; what comes
	// there when all peers are reached by RDMA is only news of their connections, which is in time after some milliseconds. One who sleeps is woken for it.
	basePause = 4096
	// setupPatience is how long a peer's first frames wait for a queue pair before they take the base transport.
	setupPatience = 5 * time.Second
	// requiredPatience is the same if RDMA is required; then the peer is given up.
	requiredPatience = 30 * time.Second
	// After a connection has failed, the next attempt comes after firstPause, and the pause doubles up to longestPause. There
	// is no last attempt: the frames travel meanwhile, on the base transport.
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	// maxComplaints bounds how many failed attempts in a row are logged: the reasons repeat.
	maxComplaints = 4
	// drainPatience bounds how long a failed queue pair is kept for completions that may still come.
	drainPatience = time.Second
)

// ErrRequired is wrapped by the reason of Handler.PeerDown for a peer that cannot be reached by RDMA, if Config.Required.
var ErrRequired = errors.New("RDMA is required (--transport rdma), and it cannot be reached that way")

// Base is a transport that reaches every node, and tells whether a peer speaks this package's language on it.
type Base interface {
	transport.Transport
	// PeerHello is what the peer has said of itself when it connected, nil if nothing. It is called after PeerUp.
	PeerHello(peer transport.NodeID) []byte
}

// Config says what a Transport is made of.
type Config struct {
	// Base is the transport below, which must have greeted its peers with Hello. Transport takes it over.
	Base Base
	// Device chooses a device (see Probe).
	Device Device
	// PoolBytes bounds the registered memory. 0: DefaultPoolBytes.
	PoolBytes int
	// MaxQueuedBytes bounds what may wait to be sent to one peer; then Send returns transport.ErrBacklog. The base
	// transport has its own limit besides. It must hold the longest frame.
	MaxQueuedBytes int
	// Required says that peers that can't be reached by RDMA are given up.
	Required bool
	// Trusted says how queue pairs are told each other: false, by librdmacm; true, in frames of the base transport, which is
	// authenticated.
	Trusted bool
	// Log receives one line for each event that an operator may want to know of. nil: nobody wants to know.
	Log func(line string)
}

// Transport is a transport.Transport by RDMA writes. Make one with New.
type Transport struct {
	base      Base
	fabric    fabric
	self      transport.NodeID
	pageBytes int
	maxQueued int
	required  bool
	log       func(line string)
	sizes     Sizes

	wait   *waiting
	counts counters

	// closing is set before Close waits for mu. mu is held by the reactor while it is inside a method, and by Close
	// for ever. The fields from here to handling belong to whoever holds it.
	closing atomic.Bool
	mu      sync.Mutex

	peers    []*peer          // by node; nil at self
	links    map[uint32]*link // by the number of the queue pair, those that have failed and drain included
	unsent   []*peer          // those that something may wait for (peer.listed)
	others   []*peer          // the array that unsent has next
	owed     []*peer          // those that an acknowledgement was due to, and may have gone with something else (peer.owed)
	ready    []*peer          // those of whose held messages the first is the next one (peer.isReady)
	ending   []*peer          // those whose PeerDown is to be reported
	draining int              // how many of links have failed
	indirect int              // how many peers frames are exchanged with on the base transport

	sendBlocks, recvBlocks, recvSlots region
	completions                       [pollBatch]verbs.Completion
	next, end                         int // completions[next:end] are to be dealt with
	requests                          []verbs.SendRequest
	spent                             []verbs.RecvRequest // receives to post again
	scratch                           []byte              // a frame for the base transport
	spare                             [][]byte            // buffers of pieceBytes, at most maxSparePieces
	armed                             bool                // the device will make its descriptor readable, or has done so
	slept                             bool                // Arm has let the caller sleep
	baseWaits                         bool                // something was given to the base transport since its last Flush
	sinceBase                         int                 // Polls since the base transport was asked
	broken                            error               // why the device is no longer used
	clock                             clock
	watchPause                        time.Duration
	watchAt                           time.Time // when to look at the queue pairs next; zero: nothing was sent since all was acknowledged

	// handling is true while Poll runs, so that methods called by the Handler don't take mu again. It, the handler and the pool
	// belong to the reactor's goroutine, also after Close.
	handling  bool
	handler   transport.Handler
	delivered int // in this Poll
	limit     int // of this Poll
	pool      pagePool
	borrowed  *page // the payload that is passed to Handler.Frame next; nil: take a new one
}

// waiting is what a reactor sleeps on. It outlives Close, because closing a descriptor that somebody sleeps on does not wake
// him. The memory outlives it as well: a payload that was leased may still be written to.
type waiting struct {
	poller *netio.Poller
	event  *netio.Event
	fabric fabric
}

// The tokens of what the poller watches.
const (
	tokenEvent int32 = iota
	tokenBase
	tokenCompletions
	tokenSetup
)

func newWaiting(f fabric, base Base) (*waiting, error) {
	poller, err := netio.NewPoller()
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	event, err := netio.NewEvent()
	if err != nil {
		poller.Close()
		return nil, fmt.Errorf("rdma: %w", err)
	}
	w := &waiting{poller, event, f}
	err = errors.Join(poller.Add(event.FD(), tokenEvent), poller.Add(base.WaitFD(), tokenBase), poller.Add(f.fd(), tokenCompletions))
	for _, fd := range f.setupFDs() {
		err = errors.Join(err, poller.Add(fd, tokenSetup))
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return w, nil
}

func (w *waiting) close() {
	w.event.Close()
	w.poller.Close()
	w.fabric.release()
}

// clock wakes the reactor for what is due at a time.
type clock struct {
	timer *time.Timer
	at    time.Time   // when the timer rings; zero: it does not
	rang  atomic.Bool // and the event is signalled
}

// counters are the statistics that any goroutine may read.
type counters struct {
	framesSent, framesReceived     atomic.Uint64 // to and from peers that speak this package's language
	payloadsSent, payloadsReceived atomic.Uint64
	// viaBase is what of that, and of notes, the base transport counts as well.
	baseFramesSent, baseFramesReceived     atomic.Uint64
	basePayloadsSent, basePayloadsReceived atomic.Uint64

	bytesSent, bytesReceived         atomic.Uint64 // by RDMA
	writtenSent, writtenReceived     atomic.Uint64 // payloads by RDMA
	messagesSent, messagesReceived   atomic.Uint64 // by RDMA
	shortSent                        atomic.Uint64 // of messagesSent
	posts, completions               atomic.Uint64
	linksUp, linksFailed, linksTried atomic.Int64
	queuedBytes, plain               atomic.Int64
}

// New makes a transport over the base transport and a device. It takes over the base transport, also when it fails.
func New(c Config) (*Transport, error) {
	f, err := openFabric(c.Device, c.Trusted)
	if err != nil {
		return nil, errors.Join(err, c.Base.Close())
	}
	t, err := newTransport(c, f)
	if err != nil {
		err = errors.Join(err, f.close(), c.Base.Close())
		f.release()
	}
	return t, err
}

func newTransport(c Config, f fabric) (*Transport, error) {
	if c.PoolBytes == 0 {
		c.PoolBytes = DefaultPoolBytes
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	nodes := c.Base.Nodes()
	sizes, err := SizesFor(nodes, c.Base.PageBytes(), c.PoolBytes)
	if err != nil {
		return nil, err
	}
	if longest := transport.MaxControlBytes + maxPieces*headerBytes + c.Base.PageBytes(); c.MaxQueuedBytes < longest {
		return nil, fmt.Errorf("rdma: MaxQueuedBytes is %d; it must hold the longest frame, %d bytes", c.MaxQueuedBytes, longest)
	}
	t := &Transport{
		base: c.Base, fabric: f, self: c.Base.Self(), pageBytes: c.Base.PageBytes(), maxQueued: c.MaxQueuedBytes,
		required: c.Required, log: c.Log, sizes: sizes, peers: make([]*peer, nodes), links: make(map[uint32]*link),
		pool: newPagePool(nodes, c.Base.Self(), c.Base.PageBytes(), sizes), watchPause: watchPause,
	}
	if err := t.allocate(); err != nil {
		return nil, err
	}
	if t.wait, err = newWaiting(f, c.Base); err != nil {
		return nil, err
	}
	runtime.AddCleanup(t, (*waiting).close, t.wait)
	t.clock.timer = time.AfterFunc(time.Hour, t.ring)
	t.clock.timer.Stop()
	for i := range t.peers {
		if id := transport.NodeID(i); id != t.self {
			t.peers[i] = newPeer(id, t.self, sizes.Window)
		}
	}
	return t, nil
}

// allocate makes the registered memory, all that there will ever be, and offers the receive blocks to the device.
func (t *Transport) allocate() error {
	s := t.sizes
	for _, r := range []struct {
		to     *region
		bytes  int
		remote bool
	}{
		{&t.recvBlocks, s.RecvBlocks * blockBytes, false},
		{&t.sendBlocks, s.SendBlocks * blockBytes, false},
		{&t.pool.slots, s.QueuePairs * (s.Slots + 1) * s.SlotBytes, false},
		{&t.recvSlots, s.QueuePairs * s.Slots * s.SlotBytes, true},
	} {
		var err error
		if *r.to, err = t.fabric.allocate(max(r.bytes, 1), r.remote); err != nil {
			return err
		}
	}
	if err := t.fabric.open(s); err != nil {
		return err
	}
	for block := range s.RecvBlocks {
		t.spend(uint64(block))
	}
	t.repost(0)
	return t.broken
}

// Self implements transport.Transport.
func (t *Transport) Self() transport.NodeID { return t.self }

// Nodes implements transport.Transport.
func (t *Transport) Nodes() int { return len(t.peers) }

// PageBytes implements transport.Transport.
func (t *Transport) PageBytes() int { return t.pageBytes }

// WaitFD implements transport.Transport. The descriptor is an epoll instance and stays open until the Transport is
// garbage.
func (t *Transport) WaitFD() int { return t.wait.poller.FD() }

// Sizes says how much memory and what queues the transport has.
func (t *Transport) Sizes() Sizes { return t.sizes }

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
		panic("rdma: two goroutines use one Transport at once; its methods belong to one, the reactor's")
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
		t.noPeer(id)
	}
	return t.peers[id]
}

func (t *Transport) noPeer(id transport.NodeID) {
	panic(fmt.Sprintf("rdma: node %d of %d has no peer %d", t.self, len(t.peers), id))
}

// Flush implements transport.Transport.
func (t *Transport) Flush() {
	if t.enter() {
		t.flush()
		t.leave()
	}
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if !t.enter() {
		return true
	}
	defer t.leave()
	t.flush()
	if t.hasWork() || t.armDevice() {
		return true
	}
	if t.base.Arm() {
		t.sinceBase = basePause
		return true
	}
	t.slept = true
	return false
}

func (t *Transport) hasWork() bool {
	return t.next < t.end || len(t.ready) > 0 || len(t.ending) > 0 || t.clock.rang.Load()
}

// armDevice makes the device wake the caller, and returns true if there is something already.
func (t *Transport) armDevice() bool {
	if t.broken != nil {
		return false
	}
	if !t.armed {
		if err := t.fabric.arm(); err != nil {
			t.breakDevice(err)
			return true
		}
		// If the event comes for a completion that is found at once, the next sleep ends at once, and takes it.
		t.armed = true
	}
	return t.refill()
}

// Poll implements transport.Transport.
func (t *Transport) Poll(h transport.Handler, max int) (int, error) {
	if t.handling {
		panic("rdma: Poll called by a Handler")
	}
	if !t.enter() {
		return 0, transport.ErrClosed
	}
	t.handling, t.handler, t.delivered, t.limit = true, h, 0, max
	defer func() {
		t.handling, t.handler = false, nil
		t.leave()
	}()
	if t.slept {
		t.slept = false
		t.look()
	}
	if t.clock.rang.Load() {
		t.tick()
	}
	t.receive()
	if t.sinceBase++; t.indirect > 0 || t.sinceBase >= basePause {
		if err := t.pollBase(); err != nil {
			return t.delivered, err
		}
	}
	if len(t.ending) > 0 {
		t.reportLost()
	}
	t.finish()
	return t.delivered, nil
}

// look finds out what has woken the reactor.
func (t *Transport) look() {
	for i := range t.wait.poller.Check() {
		switch t.wait.poller.At(i).Token {
		case tokenBase:
			t.sinceBase = basePause
		case tokenCompletions:
			t.armed = false
			if err := t.fabric.event(); err != nil {
				t.breakDevice(err)
			}
		case tokenSetup:
			t.setup()
		}
	}
}

// pollBase asks the base transport, and the device for news of connections.
func (t *Transport) pollBase() error {
	t.sinceBase = 0
	if t.broken == nil {
		t.setup()
	}
	_, err := t.base.Poll((*baseHandler)(t), t.limit-t.delivered)
	if err != nil && t.closing.Load() {
		return transport.ErrClosed
	}
	t.receiveReady()
	return err
}

// finish gives the device its receives back and sends what is due. If something has come, the caller goes on with that first, and the device
// waits for the next Poll.
func (t *Transport) finish() {
	if t.delivered == 0 {
		t.repost(0)
	} else {
		t.repost(lazyBlocks)
	}
	if len(t.owed) > 0 {
		t.acknowledge()
	}
	t.flush() // An acknowledgement may have let more go.
}

// Disconnect implements transport.Transport.
func (t *Transport) Disconnect(id transport.NodeID, reason error) {
	p := t.peer(id)
	if !t.enter() {
		return
	}
	defer t.leave()
	t.disconnect(p, reason)
}

func (t *Transport) disconnect(p *peer, reason error) {
	if p.cut || p.lost != nil {
		return
	}
	p.cut = true
	p.lost = reason
	t.unlink(p)
	t.discardQueue(p)
	t.base.Disconnect(p.id, reason)
	t.sinceBase = basePause
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	b, c := t.base.Stats(), &t.counts
	return transport.Stats{
		FramesSent:       b.FramesSent - c.baseFramesSent.Load() + c.framesSent.Load(),
		FramesReceived:   b.FramesReceived - c.baseFramesReceived.Load() + c.framesReceived.Load(),
		PayloadsSent:     b.PayloadsSent - c.basePayloadsSent.Load() + c.payloadsSent.Load(),
		PayloadsReceived: b.PayloadsReceived - c.basePayloadsReceived.Load() + c.payloadsReceived.Load(),
		BytesSent:        b.BytesSent + c.bytesSent.Load(),
		BytesReceived:    b.BytesReceived + c.bytesReceived.Load(),
		SendCalls:        b.SendCalls + c.posts.Load(),
		ReceiveCalls:     b.ReceiveCalls + c.completions.Load(),
		QueuedBytes:      b.QueuedBytes + uint64(c.queuedBytes.Load()),
	}
}

// LinkStats counts what went by RDMA alone since the start.
type LinkStats struct {
	Links              int    // peers that are reached by RDMA now
	Plain              int    // peers that don't know RDMA
	LinksFailed        uint64 // queue pairs that were given up
	LinksTried         uint64 // queue pairs made
	MessagesSent       uint64 // a frame has one message for each pieceBytes of its control part
	MessagesReceived   uint64
	ShortSent          uint64 // of MessagesSent, those that went in the immediate value of a page's write
	PayloadsSent       uint64 // pages written to a peer's memory
	PayloadsReceived   uint64
	BytesSent          uint64
	BytesReceived      uint64
	RegisteredBytes    int    // the same from the start to the end
	Device             string // which it is
	IndirectFramesSent uint64 // to peers that RDMA could reach, but on the base transport; and notes about connections
}

// LinkStats returns a copy of the counters. It may be called from any goroutine.
func (t *Transport) LinkStats() LinkStats {
	c := &t.counts
	return LinkStats{
		Links: int(c.linksUp.Load()), Plain: int(c.plain.Load()), LinksFailed: uint64(c.linksFailed.Load()), LinksTried: uint64(c.linksTried.Load()),
		MessagesSent: c.messagesSent.Load(), MessagesReceived: c.messagesReceived.Load(), ShortSent: c.shortSent.Load(),
		PayloadsSent: c.writtenSent.Load(), PayloadsReceived: c.writtenReceived.Load(),
		BytesSent: c.bytesSent.Load(), BytesReceived: c.bytesReceived.Load(),
		RegisteredBytes: t.sizes.Registered, Device: t.fabric.name(), IndirectFramesSent: c.baseFramesSent.Load(),
	}
}
