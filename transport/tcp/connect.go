package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"
)

const (
	// handshakeTimeout bounds a greeting, so that one who connects and says nothing goes away again.
	handshakeTimeout = 5 * time.Second
	// maxHandshakes bounds how many greetings are answered at once; more wait in the kernel's queue.
	maxHandshakes = 64
	// Between two attempts to dial a peer that does not answer yet, the pause doubles from
	// firstPause to longestPause: nodes of one start find each other at once, and one
	// that is missing for long is not bothered more than once a second.
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// errNotTried is the reason for a peer that nothing was heard of yet.
var errNotTried = errors.New("it has not connected yet")

// errHandshakeRuns is why a caller is sent away that has another handshake under way.
var errHandshakeRuns = errors.New("another handshake with it is under way")

// arrivals are the connections that the reactor has not adopted yet.
type arrivals struct {
	waiting atomic.Bool // the list may not be empty

	mu   sync.Mutex
	list []arrival // guarded by mu; at most one for each peer
}

// arrival is a connection that has passed the handshake.
type arrival struct {
	id transport.NodeID
	fd int
}

// add hands over a connection and signals event, which stays signalled until take. Both are done
// under the lock, so that the event is never left signalled over an empty list: the reactor could
// not sleep any more.
func (a *arrivals) add(id transport.NodeID, fd int, event *netio.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, arrival{id, fd})
	a.waiting.Store(true)
	event.Signal()
}

// take empties the list and clears event.
func (a *arrivals) take(event *netio.Event) []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = nil
	a.waiting.Store(false)
	event.Clear()
	return list
}

// connecting is the state of Connect and its goroutines.
type connecting struct {
	listener  net.Listener
	addresses []string
	mine      greeting

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // everything that Connect has started

	mu       sync.Mutex
	started  bool
	missing  int     // peers that never connected
	state    []claim // by node
	reasons  []error // by node: why the last attempt failed
	complete chan struct{}
	refused  chan struct{} // closed at the first refusal of a peer that we dialled
	refusal  error
}

// claim says whether a peer has a connection, or is about to.
type claim uint8

const (
	claimFree claim = iota
	claimPending
	claimTaken // for good: a lost peer does not come back
)

func (c *connecting) init(config Config) {
	c.listener, c.addresses = config.Listener, config.Peers
	c.mine = greeting{
		version: WireVersion, node: config.Self, nodes: uint16(len(config.Peers)),
		pageBytes: uint32(config.PageBytes), cluster: config.Cluster,
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.missing = len(config.Peers) - 1
	c.state = make([]claim, len(config.Peers))
	c.reasons = make([]error, len(config.Peers))
	for i := range c.reasons {
		c.reasons[i] = errNotTried
	}
	c.complete = make(chan struct{})
	c.refused = make(chan struct{})
	if c.missing == 0 {
		close(c.complete)
	}
}

// Connect connects this node to all others and waits until it is. Peers that are not there yet are
// tried again until ctx ends; then the error says for each missing peer what is wrong with
// it. A peer that this node has dialled and that can never fit ends Connect at once,
// with an error that wraps ErrRefused. Connect is called once. Poll may run at the same time.
//
// Afterwards the transport goes on accepting, but only to tell whoever comes why it is not welcome.
func (t *Transport) Connect(ctx context.Context) error {
	c := &t.connect
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	if err := t.startConnecting(ctx); err != nil {
		return err
	}
	select {
	case <-c.complete:
		return nil
	case <-c.refused:
	case <-ctx.Done():
	}
	if c.ctx.Err() != nil {
		return fmt.Errorf("tcp: connect node %d: %w", t.self, transport.ErrClosed)
	}
	return c.explain(ctx.Err())
}

// startConnecting starts the goroutines that dial, until ctx ends, and that accept, until Close. It holds the
// lock so that Close either comes first or waits for all of them.
func (t *Transport) startConnecting(ctx context.Context) error {
	c := &t.connect
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case t.closing.Load():
		return fmt.Errorf("tcp: connect node %d: %w", t.self, transport.ErrClosed)
	case c.started:
		return fmt.Errorf("tcp: connect node %d: Connect was called before; it is called once", t.self)
	}
	c.started = true
	for i := range t.self {
		c.work.Go(func() { t.dialUntilConnected(ctx, i) })
	}
	if c.listener != nil {
		c.work.Go(t.accept)
	}
	return nil
}

// stop ends all goroutines; work.Wait tells when. Preconditions: Transport.closing is set.
func (c *connecting) stop() {
	c.mu.Lock() // Whoever holds it has not seen closing and is about to start goroutines.
	defer c.mu.Unlock()
	c.cancel()
	if c.listener != nil {
		c.listener.Close()
	}
}

// explain is the error of a Connect that did not reach all peers. ended is why it stopped, or nil after a refusal.
func (c *connecting) explain(ended error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal != nil {
		return c.refusal
	}
	var missing []string
	var causes []error
	for i, state := range c.state {
		if state != claimTaken && i != int(c.mine.node) {
			missing = append(missing, fmt.Sprintf("node %d at %s: %v", i, c.addresses[i], c.reasons[i]))
			causes = append(causes, c.reasons[i])
		}
	}
	return &connectError{
		text:   fmt.Sprintf("tcp: node %d is not connected to %s", c.mine.node, strings.Join(missing, "; ")),
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

// dialUntilConnected dials a peer with a lower number until it is connected, refused, or ctx ends.
func (t *Transport) dialUntilConnected(ctx context.Context, id transport.NodeID) {
	address := t.connect.addresses[id]
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := t.dial(ctx, id, address)
		if err == nil || ctx.Err() != nil {
			return
		}
		t.connect.note(id, err)
		if errors.Is(err, ErrRefused) {
			t.log(err.Error())
			t.connect.giveUp(err)
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// note remembers why an attempt to connect to a peer failed.
func (c *connecting) note(id transport.NodeID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reasons[id] = err
}

// giveUp ends Connect with a refusal.
func (c *connecting) giveUp(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal == nil {
		c.refusal = err
		close(c.refused)
	}
}

// claim reserves the one connection that a peer may have, if nobody has, and returns how it was before: claimFree
// means that it is the caller's now.
func (c *connecting) claim(id transport.NodeID) claim {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.state[id]
	if before == claimFree {
		c.state[id] = claimPending
	}
	return before
}

// unclaim gives the reservation back after the handshake has failed.
func (c *connecting) unclaim(id transport.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state[id] = claimFree
}

// become turns the reservation into a connection.
func (c *connecting) become(id transport.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state[id] = claimTaken
	c.missing--
	if c.missing == 0 {
		close(c.complete)
	}
}

// dial tries once to connect to a peer with a lower number.
func (t *Transport) dial(ctx context.Context, id transport.NodeID, address string) error {
	dialer := net.Dialer{Timeout: handshakeTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := t.introduce(conn, id); err != nil {
		conn.Close()
		return describe(id, conn, err)
	}
	if t.connect.claim(id) != claimFree {
		panic(fmt.Sprintf("tcp: node %d has called node %d while another connection to it was made", t.self, id))
	}
	return t.handOver(conn, id)
}

// verdictError is the other side's refusal.
type verdictError string

func (v verdictError) Error() string { return string(v) }

// describe says whom a failed handshake was with and which side has refused.
func describe(id transport.NodeID, conn net.Conn, err error) error {
	var theirs verdictError
	var mine refusal
	switch {
	case errors.As(err, &theirs):
		return fmt.Errorf("tcp: node %d at %v %w this node: %s", id, conn.RemoteAddr(), ErrRefused, theirs)
	case errors.As(err, &mine):
		return fmt.Errorf("tcp: node %d at %v %w: %s", id, conn.RemoteAddr(), ErrRefused, mine)
	}
	return fmt.Errorf("tcp: handshake with node %d at %v: %w", id, conn.RemoteAddr(), err)
}

// describeCaller is describe for one who has called, and may not have said who it is.
func describeCaller(theirs greeting, conn net.Conn, err error) error {
	if theirs == (greeting{}) {
		return fmt.Errorf("tcp: refused a caller at %v: %w", conn.RemoteAddr(), err)
	}
	return describe(theirs.node, conn, err)
}

// refusal is why this node does not want the other.
type refusal string

func (r refusal) Error() string { return string(r) }

// introduce is the dialling side of the handshake: greet, be greeted and judged, judge.
func (t *Transport) introduce(conn net.Conn, id transport.NodeID) error {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	mine := t.connect.mine
	mine.addressee = id
	if _, err := conn.Write(appendGreeting(nil, mine)); err != nil {
		return err
	}
	theirs, err := readGreeting(conn)
	if err != nil {
		return err
	}
	if why := mismatch(mine, theirs); why != "" {
		return refusal(why)
	}
	if theirs.node != id {
		return refusal(fmt.Sprintf("it is node %d; check the list of addresses", theirs.node))
	}
	verdict, err := readVerdict(conn)
	if err != nil {
		return err
	}
	if verdict != "" {
		return verdictError(verdict)
	}
	_, err = conn.Write(appendVerdict(nil, ""))
	return err
}

// accept answers whoever connects, until Close.
func (t *Transport) accept() {
	c := &t.connect
	slots := make(chan struct{}, maxHandshakes)
	for pause := firstPause; ; {
		conn, err := c.listener.Accept()
		if err != nil {
			if c.ctx.Err() != nil {
				return
			}
			// Out of descriptors, say. It may pass.
			t.log(fmt.Sprintf("tcp: accept on %v: %v", c.listener.Addr(), err))
			select {
			case <-time.After(pause):
			case <-c.ctx.Done():
				return
			}
			pause = min(2*pause, longestPause)
			continue
		}
		pause = firstPause
		select {
		case slots <- struct{}{}:
		case <-c.ctx.Done():
			conn.Close()
			return
		}
		c.work.Go(func() {
			defer func() { <-slots }()
			t.welcomeCaller(conn)
		})
	}
}

// welcomeCaller is the accepting side of the handshake, with its outcome.
func (t *Transport) welcomeCaller(conn net.Conn) {
	c := &t.connect
	stop := context.AfterFunc(c.ctx, func() { conn.Close() })
	defer stop()
	theirs, err := t.answer(conn)
	if err == nil {
		err = t.handOver(conn, theirs.node)
	} else {
		conn.Close()
		err = describeCaller(theirs, conn, err)
	}
	if err == nil || c.ctx.Err() != nil {
		return
	}
	t.log(err.Error())
	// theirs is zero when the caller could not say who it is; node 0 never calls.
	if theirs.node > t.self && int(theirs.node) < len(t.peers) {
		c.note(theirs.node, err)
	}
}

// answer reads a caller's greeting, answers with this node's and the verdict, and waits for the caller's verdict.
// When it succeeds the caller's connection is claimed.
func (t *Transport) answer(conn net.Conn) (greeting, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return greeting{}, err
	}
	theirs, err := readGreeting(conn)
	if err != nil {
		return theirs, err
	}
	mine := t.connect.mine
	mine.addressee = theirs.node
	why := t.judge(mine, theirs)
	if why == "" {
		switch t.connect.claim(theirs.node) {
		case claimPending:
			// Its last attempt may have failed without our knowledge yet. Without a verdict it tries again.
			return theirs, errHandshakeRuns
		case claimTaken:
			why = fmt.Sprintf("a node %d was connected to this cluster before; nodes that are lost do not come back", theirs.node)
		}
	}
	_, err = conn.Write(appendVerdict(appendGreeting(nil, mine), why))
	if why != "" {
		return theirs, refusal(why)
	}
	if err == nil {
		err = readAcceptance(conn)
	}
	if err != nil {
		t.connect.unclaim(theirs.node)
	}
	return theirs, err
}

// judge says why a caller is not welcome, or "" if it is.
func (t *Transport) judge(mine, theirs greeting) string {
	if why := mismatch(mine, theirs); why != "" {
		return why
	}
	switch {
	case theirs.addressee != t.self:
		return fmt.Sprintf("it looked for node %d and found node %d; check its list of addresses", theirs.addressee, t.self)
	case theirs.node <= t.self || int(theirs.node) >= len(t.peers):
		return fmt.Sprintf("it says it is node %d, but only nodes with higher numbers than %d call this one", theirs.node, t.self)
	}
	return ""
}

func readAcceptance(conn net.Conn) error {
	verdict, err := readVerdict(conn)
	if err != nil {
		return err
	}
	if verdict != "" {
		return verdictError(verdict)
	}
	return nil
}

// handOver takes a connection out of Go's network poller and gives it to the reactor. The peer's
// connection must be claimed.
func (t *Transport) handOver(conn net.Conn, id transport.NodeID) error {
	fd, err := detach(conn)
	if err != nil {
		t.connect.unclaim(id)
		return fmt.Errorf("tcp: node %d at %v: %w", id, conn.RemoteAddr(), err)
	}
	t.arrivals.add(id, fd, t.wait.event)
	t.connect.become(id)
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
	return netio.Detach(tcp)
}
