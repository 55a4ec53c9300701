package tcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// handshakeTimeout bounds a greeting, so that one who connects and says nothing goes away
	// again.
	handshakeTimeout = 5 * time.Second
	// Between two attempts to dial a peer that does not answer yet, the pause doubles from
	// firstPause to longestPause: nodes of one start find each other at once, and one
	// that is missing for long is not bothered more than once a second.
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
	// The kernel asks whether the other machine is there after keepAliveIdle without traffic. It
	// breaks the connection when keepAliveCount questions, keepAliveInterval apart, had no answer.
	keepAliveIdle     = 5 * time.Second
	keepAliveInterval = 2 * time.Second
	keepAliveCount    = 3
	// retryWithin is how long it takes at most until a network that has healed is noticed: the
	// least that the kernel allows.
	retryWithin = time.Second
)

// errNotTried is the reason for a peer that nothing was heard of yet.
var errNotTried = errors.New("it has not connected yet")

// connecting is the goroutines that make connections, and what they share. They run from Connect
// until Close.
type connecting struct {
	credentials
	self     transport.NodeID
	listener net.Listener
	channel  int // that peers are asked for, of so many channels
	channels int
	giveUp   time.Duration
	joining  bool
	log      func(line string)
	longWait func(line string)
	news     *arrivals // for the reactor

	sends     *atomic.Uint64 // the reactor's calls that send
	answered  atomic.Uint64  // how many there were when peers had answered all; notAll
	strangers strangers

	addresses []string // by node

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that was started

	mu      sync.Mutex
	started bool
	belongs bool // this node has joined, and was let in
	// missing is how many peers that never connected Connect waits for; it may get below 0.
	missing  int
	sessions []*session // by node; nil at self
	complete chan struct{}
	refused  chan struct{} // closed at the first refusal of a peer that we dialled
	refusal  error
}

func (c *connecting) init(config Config, news *arrivals, peers []*peer, sends *atomic.Uint64) {
	c.sends = sends
	c.answered.Store(notAll)
	c.self, c.log, c.longWait, c.news = config.Self, config.Log, config.LongWait, news
	c.channel, c.channels = config.Channel, config.Channels
	c.listener, c.addresses, c.giveUp, c.joining = config.Listener, slices.Clone(config.Peers), config.GiveUp, config.Joining
	c.mine = greeting{
		version: WireVersion, node: config.Self, nodes: uint16(len(config.Peers)), pageBytes: uint32(config.PageBytes),
		listens: config.Listener != nil, incarnation: newIncarnation(), cluster: config.Cluster, hello: string(config.Hello),
	}
	if config.Channels > 1 {
		c.mine.channels = uint8(config.Channels)
	}
	c.secret, c.verifyPeer, c.latestTLS = bytes.Clone(config.Secret), config.VerifyPeer, config.LatestTLS
	if config.LatestTLS == nil && config.TLS != nil {
		c.latestTLS = func() *tls.Config { return config.TLS }
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.missing = len(peers) - 1
	if c.joining {
		c.missing = min(c.missing, 1)
	}
	c.sessions = make([]*session, len(peers))
	for i, p := range peers {
		if p != nil {
			c.sessions[i] = &session{peer: p, reason: errNotTried}
		}
	}
	c.complete = make(chan struct{})
	c.refused = make(chan struct{})
	if c.missing == 0 {
		close(c.complete)
	}
}

// newIncarnation draws a number that no other Transport has, and that is not 0.
func newIncarnation() uint64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails: the program crashes instead
	return binary.LittleEndian.Uint64(random[:]) | 1
}

// Connect connects this node to all others and waits until it is. Peers that are not there yet, or
// that may accept this node later, are tried again, until Close. When ctx ends before all are
// connected, the error says for each missing peer what is wrong with it. Until then the log says so
// now and then. A peer that this node has dialled and that can never fit ends Connect at once, with
// an error that wraps ErrRefused. Connect is called once. Poll may run at the same time.
//
// If one of the others has gone on without the former process of this node, Connect ends with
// transport.ErrGoneOn, whoever has called whom: this node has to join. No node serves before it has
// met all others as nodes that found the cluster with it, so none is in another one.
//
// With Config.Joining it returns as soon as one peer is connected, and the others are called, or
// may call, until Close. Members of the cluster refuse this node until they have lost the node that
// it replaces and have called Readmit; that they do so now is no error. If all of them do, for
// whatever reason, Connect waits until ctx ends, and its error says what each of them has said
// last. A peer that can never fit, because it is of another version, cluster, number of nodes or
// page size, ends Connect with ErrRefused all the same. So does it when of all that were called
// none accepts this node's certificate or secret, or shows one that this node accepts, and nobody
// else may call it: else it goes on calling, logs why, and says so when ctx ends.
//
// Afterwards the transport goes on accepting: peers whose connection was cut, and those that are to
// be told why they are not welcome.
func (t *Transport) Connect(ctx context.Context) error {
	c := &t.connect
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	if err := t.startConnecting(); err != nil {
		return err
	}
	await(ctx, c)
	select {
	case <-c.complete:
		return nil
	default:
	}
	if c.ctx.Err() != nil {
		return fmt.Errorf("tcp: connect node %d: %w", t.self, transport.ErrClosed)
	}
	return c.explain(ctx.Err())
}

// SetHello changes Config.Hello. It panics if that has more than MaxHelloBytes. Preconditions:
// Connect was not called.
func (t *Transport) SetHello(hello []byte) {
	if len(hello) > MaxHelloBytes {
		panic(fmt.Sprintf("tcp: SetHello with %d bytes; at most %d are possible", len(hello), MaxHelloBytes))
	}
	t.connect.mu.Lock()
	defer t.connect.mu.Unlock()
	t.connect.mine.hello = string(hello)
}

// startConnecting starts the goroutines that call and that accept, until Close. It holds the
// lock so that Close either comes first or waits for all of them.
func (t *Transport) startConnecting() error {
	c := &t.connect
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case t.gate.Closing():
		return fmt.Errorf("tcp: connect node %d: %w", t.self, transport.ErrClosed)
	case c.started:
		return fmt.Errorf("tcp: connect node %d: Connect was called before; it is called once", t.self)
	}
	c.started = true
	if len(t.peers) > 1 {
		c.work.Go(c.watch)
	}
	for _, s := range c.sessions[:t.self] {
		c.keepCallingLocked(s)
	}
	if c.listener != nil {
		c.work.Go(c.accept)
	}
	return nil
}

// stop ends all goroutines; work.Wait tells when. Preconditions: the gate is closed.
func (c *connecting) stop() {
	c.mu.Lock() // Whoever holds it has not seen closing and is about to start goroutines.
	defer c.mu.Unlock()
	c.cancel()
	if c.listener != nil {
		c.listener.Close()
	}
}

// explain is the error of a Connect that did not reach all peers. ended is why it stopped, or nil
// after a refusal.
func (c *connecting) explain(ended error) error {
	select {
	case <-c.refused:
		return c.refusal // it changes no more
	default:
	}
	missing, causes := c.missingPeers()
	return &connectError{
		text:   fmt.Sprintf("tcp: node %d is not connected to %s", c.self, strings.Join(missing, "; ")),
		causes: append(causes, ended),
	}
}

// connectError has one line for all missing peers, and their reasons for errors.Is.
type connectError struct {
	text   string
	causes []error
}

func (e *connectError) Error() string   { return e.text }
func (e *connectError) Unwrap() []error { return e.causes }

// note remembers why an attempt to connect has failed (session.reason).
func (c *connecting) note(id transport.NodeID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[id].reason = err
}

// noted is what was noted last.
func (c *connecting) noted(s *session) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.reason
}

// refuse ends Connect with a refusal.
func (c *connecting) refuse(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuseLocked(err)
}

func (c *connecting) refuseLocked(err error) {
	if c.refusal == nil {
		c.refusal = err
		close(c.refused)
	}
}

// call connects to a peer once. Only purposeCall leaves a connection.
func (c *connecting) call(ctx context.Context, s *session, why purpose) error {
	id := s.peer.id
	dialer := net.Dialer{Timeout: handshakeTimeout}
	raw, err := dialer.DialContext(ctx, "tcp", c.addresses[id])
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	defer stop()
	if err := askFor(raw, c.channel, c.channels); err != nil {
		raw.Close()
		return describe(id, raw, err)
	}
	var mine, theirs greeting
	conn, sec, err := c.secured(c.ctx, raw, true)
	if err == nil {
		mine = c.greet(s, why)
		theirs, err = c.introduce(conn, sec, s, mine)
	}
	if err != nil || why == purposeAsk {
		raw.Close()
		if err != nil {
			return describe(id, raw, err)
		}
		return nil
	}
	return c.handOver(raw, sec, s, mine, theirs)
}

// introduce is the calling side of the handshake. Both sides prove that they belong here and greet
// each other; the called one judges first.
func (c *connecting) introduce(conn io.ReadWriter, sec *secure, s *session, mine greeting) (greeting, error) {
	p := newProven(conn, c.secret, calling)
	if err := c.meet(p); err != nil {
		return greeting{}, err
	}
	if err := p.prove(appendGreeting(nil, mine)); err != nil {
		return greeting{}, err
	}
	theirs, err := readGreeting(p)
	if err != nil {
		return greeting{}, err
	}
	v, err := readVerdict(p)
	if err == nil {
		err = p.check()
	}
	if err != nil {
		return greeting{}, err
	}
	if err := c.judgeAnswer(sec, s, mine, theirs, v); err != nil {
		if mine.purpose == purposeCall && v.why == "" {
			_ = p.prove(appendVerdict(nil, verdict{why: err.Error()})) // for its log
		}
		return greeting{}, err
	}
	if mine.purpose == purposeCall {
		err = p.prove(appendVerdict(nil, verdict{}))
	}
	return theirs, err
}

// judgeAnswer returns why the one who has answered a call is not the peer, or does not want this
// node; nil: all is well.
func (c *connecting) judgeAnswer(sec *secure, s *session, mine, theirs greeting, v verdict) error {
	if why := mismatch(mine, theirs); why != "" {
		return refusal(why)
	}
	if theirs.node != mine.addressee {
		return refusal(fmt.Sprintf("it is node %d; check the list of addresses", theirs.node))
	}
	// Only who may be the peer can have news of it: that it was started anew, or does not want this
	// node.
	if why := c.verify(theirs.node, sec); why != "" {
		return impostor(why)
	}
	if err := c.acquainted(s, mine, theirs); err != nil {
		return err
	}
	if v.later {
		c.heard(s, mine, theirs)
	}
	switch {
	case v.why != "":
		return verdictError(v)
	case theirs.call != mine.call || theirs.purpose != mine.purpose:
		return fmt.Errorf("it answers call %d (purpose %d), and this was call %d (purpose %d)",
			theirs.call, theirs.purpose, mine.call, mine.purpose)
	}
	return nil
}

// verdictError is the other side's refusal.
type verdictError verdict

func (v verdictError) Error() string { return v.why }

// Is makes a refusal that may be withdrawn match errLater.
func (v verdictError) Is(target error) bool { return target == errLater && v.later }

// errLater matches refusals by a peer that does not know yet whether it may let this node in.
var errLater = errors.New("not yet")

// refusal is why this node does not want the other.
type refusal string

func (r refusal) Error() string { return string(r) }

// Is makes a refusal match ErrRefused: trying again does not help.
func (r refusal) Is(target error) bool { return target == ErrRefused }

// describe says whom a failed handshake was with and which side has refused.
func describe(id transport.NodeID, conn net.Conn, err error) error {
	var theirs verdictError
	switch {
	case errors.As(err, &theirs):
		return fmt.Errorf("tcp: node %d at %v %w this node: %w", id, conn.RemoteAddr(), ErrRefused, theirs)
	case errors.Is(err, ErrRefused):
		return fmt.Errorf("tcp: node %d at %v %w: %w", id, conn.RemoteAddr(), ErrRefused, err)
	}
	return fmt.Errorf("tcp: handshake with node %d at %v: %w", id, conn.RemoteAddr(), err)
}

// handOver takes a connection out of Go's network poller and gives it to the reactor, if it is to
// be used.
func (c *connecting) handOver(conn net.Conn, sec *secure, s *session, mine, theirs greeting) error {
	fd, err := detach(conn)
	if err == nil {
		if err = c.news.wait.Poller.Add(fd, int32(s.peer.id)); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return fmt.Errorf("tcp: node %d at %v: %w", theirs.node, conn.RemoteAddr(), err)
	}
	if err := c.commit(s, theirs); err != nil {
		unix.Close(fd)
		return describe(theirs.node, conn, err)
	}
	if sec != nil {
		sec.take()
	}
	c.news.add(arrival{
		kind: arrivedConnection, peer: s.peer, call: theirs.call,
		fd: fd, secure: sec, sendFrom: theirs.received, recvAt: mine.received,
	})
	return nil
}

func detach(conn net.Conn) (int, error) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		conn.Close()
		return -1, fmt.Errorf("the connection is no TCP connection but a %T; listen on \"tcp\"", conn)
	}
	// Requests and pages are answers somebody waits for: none may wait for more to come (Nagle).
	if err := tcp.SetNoDelay(true); err != nil {
		tcp.Close()
		return -1, err
	}
	fd, err := netio.Detach(tcp)
	if err != nil {
		return -1, err
	}
	// Neither is needed. Without the first the connection is slower. Without the second, on an old
	// kernel, this node notices later that the network has healed.
	_, _ = netio.Unpace(fd), netio.RetryWithin(fd, retryWithin)
	if err := netio.KeepAlive(fd, keepAliveIdle, keepAliveInterval, keepAliveCount); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
