package emulated

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// name is this package's, in errors.
const name = "emulated"

const (
	// early is how long before a frame is due Arm no longer lets the caller sleep. A thread that
	// sleeps on an idle virtual core wakes up 20 to 50 µs after it should.
	early = 100 * time.Microsecond
	// maxSparePages bounds how many unused page buffers are held back for reuse.
	maxSparePages = 1024
)

// The tokens of what WaitFD watches. Nobody asks which it was.
const (
	tokenEvent int32 = iota
	tokenBase
	tokenTimer
)

// Config says what a Transport is made of.
type Config struct {
	// Base is the transport below. Transport takes it over.
	Base transport.Transport
	// Link is the network to emulate.
	Link Link
	// MaxQueuedBytes bounds what is held for one peer; then Send returns transport.ErrBacklog. The
	// base has its own limit besides: frames that it refuses are held on.
	MaxQueuedBytes int
}

// Transport is a transport.Transport that is as slow as a Link. Make one with New.
type Transport struct {
	gate   chassis.Gate
	base   transport.Transport
	wait   waiting
	pool   chassis.Pool
	counts chassis.Counters // of what was sent; may be read by any goroutine

	link      Link
	maxQueued int
	began     time.Time
	cardFree  time.Duration // since began: when the card will have sent all that it was given
	peers     []*peer       // by node; nil at this one
	held      []*peer       // those with frames, in no order
	spare     [][]byte      // control parts for reuse
	rings     time.Duration // since began: when the timer rings; 0: it does not
	handler   transport.Handler
}

// waiting is what a reactor sleeps on.
type waiting struct {
	*chassis.Waiting
	timer *netio.Timer
}

func newWaiting(base transport.Transport) (waiting, error) {
	timer, err := netio.NewTimer()
	if err != nil {
		return waiting{}, fmt.Errorf("emulated: %w", err)
	}
	w, err := chassis.NewWaiting(name, tokenEvent,
		chassis.Watched{FD: base.WaitFD(), Token: tokenBase}, chassis.Watched{FD: timer.FD(), Token: tokenTimer})
	if err != nil {
		timer.Close()
	}
	return waiting{w, timer}, err
}

func (w waiting) close() {
	w.Close()
	w.timer.Close()
}

// New makes a transport over another one. It takes over the base, also when it fails.
func New(c Config) (*Transport, error) {
	t, err := newTransport(c)
	if err != nil {
		return nil, errors.Join(err, c.Base.Close())
	}
	return t, nil
}

func newTransport(c Config) (*Transport, error) {
	if err := c.Link.check(); err != nil {
		return nil, err
	}
	if longest := transport.MaxControlBytes + c.Base.PageBytes(); c.MaxQueuedBytes < longest {
		return nil, fmt.Errorf("emulated: MaxQueuedBytes is %d; it must hold the longest frame, %d bytes", c.MaxQueuedBytes, longest)
	}
	wait, err := newWaiting(c.Base)
	if err != nil {
		return nil, err
	}
	t := &Transport{
		base: c.Base, wait: wait, link: c.Link, maxQueued: c.MaxQueuedBytes, began: time.Now(),
		pool:  chassis.Pool{Name: name, PageBytes: c.Base.PageBytes(), MaxSpare: maxSparePages},
		peers: make([]*peer, c.Base.Nodes()),
	}
	runtime.AddCleanup(t, waiting.close, wait)
	for i := range t.peers {
		if id := transport.NodeID(i); id != c.Base.Self() {
			t.peers[i] = &peer{id: id}
		}
	}
	return t, nil
}

// now is the time since the transport was made.
func (t *Transport) now() time.Duration { return time.Since(t.began) }

// Self implements transport.Transport.
func (t *Transport) Self() transport.NodeID { return t.base.Self() }

// Nodes implements transport.Transport.
func (t *Transport) Nodes() int { return len(t.peers) }

// PageBytes implements transport.Transport.
func (t *Transport) PageBytes() int { return t.base.PageBytes() }

// WaitFD implements transport.Transport. The descriptor is an epoll instance and stays open until
// the Transport is garbage.
func (t *Transport) WaitFD() int { return t.wait.Poller.FD() }

// peer returns a peer by its number, which must be another node of the cluster.
func (t *Transport) peer(id transport.NodeID) *peer {
	return chassis.PeerOf(name, t.Self(), t.peers, id)
}

// Lease implements transport.Transport.
func (t *Transport) Lease(to transport.NodeID) transport.Payload {
	t.peer(to)
	return t.pool.Lease(to)
}

// Send implements transport.Transport.
func (t *Transport) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	p := t.peer(to)
	return t.pool.Send(&t.gate, to, control, payload, func(page *chassis.Payload) error { return t.hold(p, control, page) })
}

// Flush implements transport.Transport. What is held on leaves by later calls.
func (t *Transport) Flush() {
	if t.gate.Enter() {
		t.handOver()
		t.base.Flush()
		t.gate.Leave()
	}
}

// Poll implements transport.Transport.
func (t *Transport) Poll(h transport.Handler, max int) (int, error) {
	if !t.gate.EnterPoll() {
		return 0, transport.ErrClosed
	}
	t.handler = h
	defer func() {
		t.handler = nil
		t.gate.LeavePoll()
	}()
	if t.handOver() {
		t.base.Flush()
	}
	return t.base.Poll((*watching)(t), max)
}

// Arm implements transport.Transport.
func (t *Transport) Arm() bool {
	if !t.gate.Enter() {
		return true
	}
	defer t.gate.Leave()
	t.handOver()
	rings := time.Duration(0)
	if due, ok := t.nextDue(); ok {
		if rings = due - early; rings <= t.now() {
			t.base.Flush()
			netio.Yield() // as a reactor does that polls in vain
			return true
		}
	}
	t.ringAt(rings)
	return t.base.Arm()
}

// ringAt has the timer ring at a time, or not at all.
func (t *Transport) ringAt(at time.Duration) {
	switch {
	case at == t.rings:
	case at == 0:
		t.wait.timer.Stop()
	default:
		t.wait.timer.Ring(at - t.now())
	}
	t.rings = at
}

// watching is the Handler that the base is polled with. It takes note of lost peers.
type watching Transport

// Frame implements transport.Handler.
func (w *watching) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	w.handler.Frame(from, control, payload)
}

// PeerUp implements transport.Handler.
func (w *watching) PeerUp(id transport.NodeID) { w.handler.PeerUp(id) }

// PeerDown implements transport.Handler.
func (w *watching) PeerDown(id transport.NodeID, err error) {
	(*Transport)(w).lose(w.peers[id], err)
	w.handler.PeerDown(id, err)
}

// Disconnect implements transport.Transport.
func (t *Transport) Disconnect(id transport.NodeID, reason error) {
	p := t.peer(id)
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	if p.lost == nil {
		t.lose(p, reason)
	}
	t.base.Disconnect(id, reason)
}

// Readmit implements transport.Transport.
func (t *Transport) Readmit(id transport.NodeID) {
	p := t.peer(id)
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	t.base.Readmit(id)
	p.lost = nil
}

// Stats implements transport.Transport.
func (t *Transport) Stats() transport.Stats {
	s, own := t.base.Stats(), t.counts.Stats()
	s.FramesSent, s.PayloadsSent = own.FramesSent, own.PayloadsSent
	s.QueuedBytes += own.QueuedBytes
	return s
}
