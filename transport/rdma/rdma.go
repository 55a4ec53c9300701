package rdma

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"dsmd/transport"
	"dsmd/transport/chassis"
)

// name is this package's, in errors.
const name = "rdma"

const (
	// pollBatch is how many completions are taken from the device at a time.
	pollBatch = 64
	// basePause is after how many Polls the base transport is asked although no peer is known to
	// use it, and the device for news of connections. Asking costs a system call for each peer and
	// two more, and a page may come just then. When all peers are reached by RDMA, what comes there
	// is only news of their connections, for which some milliseconds are soon enough. One who
	// sleeps is woken for it.
	basePause = 4096
	// setupPatience is how long a peer's first frames wait for a queue pair before they take the
	// base transport.
	setupPatience = 5 * time.Second
	// requiredPatience is the same if RDMA is required; then the peer is given up.
	requiredPatience = 30 * time.Second
	// After a connection has failed, the next attempt comes after firstPause, and the pause doubles
	// up to longestPause. There is no last attempt: meanwhile the frames travel on the base
	// transport.
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
	// lasting is how long a queue pair must have worked for the pauses to begin anew. One that
	// carries nothing is found out in half of that (silentLooks). After one that has not lasted
	// the pause grows up to briefPause: while it worked it may have held the frames up.
	lasting    = 10 * time.Second
	briefPause = time.Minute
	// briefSaid is the time between two lines about such queue pairs.
	briefSaid = time.Minute
	// maxComplaints bounds how many failed attempts in a row are logged: the reasons repeat.
	maxComplaints = 4
	// drainPatience bounds how long a failed queue pair is kept for completions that may still
	// come.
	drainPatience = time.Second
)

// ErrRequired is wrapped by the reason of Handler.PeerDown for a peer that cannot be reached by
// RDMA, if Config.Required.
var ErrRequired = errors.New("RDMA is required (--transport rdma), and it cannot be reached that way")

// Base is a transport that reaches every node, and tells whether a peer speaks this package's
// language on it.
type Base interface {
	transport.Transport
	// PeerHello is what the peer has said of itself when it connected, nil if nothing. It is called
	// after PeerUp.
	PeerHello(peer transport.NodeID) []byte
}

// Config says what a Transport is made of.
type Config struct {
	// Base is the transport below, which must greet its peers with Hello. Transport takes it over.
	Base Base
	// Device chooses a device (see Probe).
	Device Device
	// PoolBytes bounds the registered memory. 0: DefaultPoolBytes.
	PoolBytes int
	// MaxQueuedBytes bounds what may wait to be sent to one peer; then Send returns
	// transport.ErrBacklog. The base transport has its own limit besides. It must hold the longest
	// frame.
	MaxQueuedBytes int
	// Required says that peers that can't be reached by RDMA are given up.
	Required bool
	// Trusted says how queue pairs are told each other: false, by librdmacm; true, in frames of the
	// base transport, which is authenticated.
	Trusted bool
	// Log receives one line for each event that an operator may want to know of. nil: nobody wants
	// to know.
	Log func(line string)
}

// Transport is a transport.Transport by RDMA writes. Make one with New.
//
// It is made of layers, each of which uses those below: queues (the device and its memory), sender
// (messages that go out), router (which path a peer's messages take, and the queue pairs),
// deliverer (messages that come in). All of them belong to whoever is inside the gate.
type Transport struct {
	deliverer
	wait  waiting
	slept bool // Arm has let the caller sleep
}

// The tokens of what the poller watches.
const (
	tokenEvent int32 = iota
	tokenBase
	tokenCompletions
	tokenSetup
)

// waiting is what a reactor sleeps on. The memory lives as long: a payload that was leased may
// still be written to.
type waiting struct {
	*chassis.Waiting
	fabric fabric
}

func newWaiting(f fabric, base Base) (waiting, error) {
	watched := []chassis.Watched{{FD: base.WaitFD(), Token: tokenBase}, {FD: f.fd(), Token: tokenCompletions}}
	for _, fd := range f.setupFDs() {
		watched = append(watched, chassis.Watched{FD: fd, Token: tokenSetup})
	}
	w, err := chassis.NewWaiting(name, tokenEvent, watched...)
	return waiting{w, f}, err
}

// ignoreDevice ends the watch over a device that is no longer used: one that is gone would wake the
// reactor for ever.
func (w waiting) ignoreDevice() error {
	err := w.Poller.Remove(w.fabric.fd())
	for _, fd := range w.fabric.setupFDs() {
		err = errors.Join(err, w.Poller.Remove(fd))
	}
	return err
}

func (w waiting) close() {
	w.Close()
	w.fabric.release()
}

// counters are the statistics that any goroutine may read.
type counters struct {
	// Of frames and payloads all, whichever way they take; of bytes and calls, those by RDMA.
	chassis.Counters

	baseFramesSent                   atomic.Uint64 // messages and notes on the base transport
	writtenSent, writtenReceived     atomic.Uint64 // payloads by RDMA
	messagesSent, messagesReceived   atomic.Uint64 // by RDMA
	shortSent                        atomic.Uint64 // of messagesSent
	linksUp, linksFailed, linksTried atomic.Int64
	plain                            atomic.Int64
}

// New makes a transport over the base transport and a device. When it fails, the base transport can
// be used without.
func New(c Config) (*Transport, error) {
	f, err := openFabric(c.Device, c.Trusted)
	if err != nil {
		return nil, err
	}
	t, err := newTransport(c, f)
	if err != nil {
		err = errors.Join(err, f.close())
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
	t := &Transport{}
	t.queues = queues{fabric: f, device: f.name(), sizes: sizes, pageBytes: c.Base.PageBytes(), log: c.Log, links: make(map[uint32]*link), failed: t.deviceFailed}
	t.base, t.self, t.maxQueued, t.required = c.Base, c.Base.Self(), c.MaxQueuedBytes, c.Required
	t.peers, t.watchPause, t.broke = make([]*peer, nodes), watchPause, t.breakLink
	t.lender.Pool = &t.pool.Pool
	t.pool.init(nodes, t.self, t.pageBytes, sizes)
	if err := t.allocate(); err != nil {
		return nil, err
	}
	if t.wait, err = newWaiting(f, c.Base); err != nil {
		return nil, err
	}
	runtime.AddCleanup(t, waiting.close, t.wait)
	t.clock.init(t.wait.Event)
	for i := range t.peers {
		if id := transport.NodeID(i); id != t.self {
			t.peers[i] = newPeer(id, t.self, sizes.Window)
		}
	}
	return t, nil
}

// deviceFailed gives up all queue pairs of a device that is no longer used.
func (t *Transport) deviceFailed(err error) {
	if t.wait.Waiting == nil {
		return // It has failed before it was watched.
	}
	if err := t.wait.ignoreDevice(); err != nil {
		t.log(err.Error())
	}
	for _, p := range t.peers {
		if p != nil && p.link != nil {
			t.breakLink(p, err, true)
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

// Sizes says how much memory and what queues the transport has.
func (t *Transport) Sizes() Sizes { return t.sizes }

// peer returns a peer by its number, which must be another node of the cluster.
func (t *Transport) peer(id transport.NodeID) *peer {
	return chassis.PeerOf(name, t.self, t.peers, id)
}

// Flush implements transport.Transport.
func (t *Transport) Flush() {
	if t.gate.Enter() {
		t.flush()
		t.gate.Leave()
	}
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if !t.gate.Enter() {
		return true
	}
	defer t.gate.Leave()
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

func (d *deliverer) hasWork() bool {
	return d.next < d.end || len(d.ready) > 0 || len(d.ending) > 0 || d.clock.rang.Load()
}

// Poll implements transport.Transport.
func (t *Transport) Poll(h transport.Handler, max int) (int, error) {
	if !t.gate.EnterPoll() {
		return 0, transport.ErrClosed
	}
	t.handler, t.delivered, t.limit = h, 0, max
	defer func() {
		t.handler = nil
		t.gate.LeavePoll()
	}()
	if t.slept {
		t.slept = false
		t.look()
	}
	if t.clock.rang.Load() {
		t.tick()
	}
	if err := t.receiveBoth(); err != nil {
		return t.delivered, err
	}
	if len(t.ending) > 0 {
		t.reportLost()
	}
	t.finish()
	return t.delivered, nil
}

// receiveBoth takes what has come on queue pairs and, if it is to be asked, on the base transport:
// each goes first at every second Poll, so that neither starves the other.
func (d *deliverer) receiveBoth() error {
	d.sinceBase++
	if d.indirect == 0 && d.sinceBase < basePause {
		d.receive()
		return nil
	}
	if d.baseFirst = !d.baseFirst; d.baseFirst {
		err := d.pollBase()
		d.receive()
		return err
	}
	d.receive()
	return d.pollBase()
}

// look finds out what has woken the reactor.
func (t *Transport) look() {
	for i := range t.wait.Poller.Check() {
		switch t.wait.Poller.At(i).Token {
		case tokenEvent: // Poll sees rang, which is set before.
			t.clock.event.Clear()
		case tokenBase:
			t.sinceBase = basePause
		case tokenCompletions:
			t.armed = false
			if err := t.fabric.event(); err != nil {
				t.fail(err)
			}
		case tokenSetup:
			t.setup()
		}
	}
}

// finish gives the device its receives back and sends what is due. If frames were delivered, the
// caller goes on with them first, and the receives wait for the next Poll.
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
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	t.disconnect(p, reason)
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	s, b := t.counts.Stats(), t.base.Stats()
	s.BytesSent += b.BytesSent
	s.BytesReceived += b.BytesReceived
	s.SendCalls += b.SendCalls
	s.ReceiveCalls += b.ReceiveCalls
	s.QueuedBytes += b.QueuedBytes
	return s
}

// LinkStats counts what went by RDMA alone since the start.
type LinkStats struct {
	Links            int    // peers that are reached by RDMA now
	Plain            int    // peers that don't know RDMA
	LinksFailed      uint64 // queue pairs that were given up
	LinksTried       uint64 // queue pairs made
	MessagesSent     uint64 // a frame has one message for each pieceBytes of its control part
	MessagesReceived uint64
	// ShortSent are those of MessagesSent that went in the immediate value of a page's write.
	ShortSent        uint64
	PayloadsSent     uint64 // pages written to a peer's memory
	PayloadsReceived uint64
	BytesSent        uint64
	BytesReceived    uint64
	RegisteredBytes  int    // the same from the start to the end
	Device           string // which it is
	// IndirectFramesSent went on the base transport, to peers that RDMA could reach; notes about
	// connections are among them.
	IndirectFramesSent uint64
}

// LinkStats returns a copy of the counters. It may be called from any goroutine.
func (t *Transport) LinkStats() LinkStats {
	c := &t.counts
	return LinkStats{
		Links: int(c.linksUp.Load()), Plain: int(c.plain.Load()), LinksFailed: uint64(c.linksFailed.Load()), LinksTried: uint64(c.linksTried.Load()),
		MessagesSent: c.messagesSent.Load(), MessagesReceived: c.messagesReceived.Load(), ShortSent: c.shortSent.Load(),
		PayloadsSent: c.writtenSent.Load(), PayloadsReceived: c.writtenReceived.Load(),
		BytesSent: c.BytesSent.Load(), BytesReceived: c.BytesReceived.Load(),
		RegisteredBytes: t.sizes.Registered, Device: t.device, IndirectFramesSent: c.baseFramesSent.Load(),
	}
}
