package tcp

import (
	"fmt"

	"dsmd/transport"
)

// session is what this node's goroutines know of a peer. It is guarded by connecting.mu.
type session struct {
	incarnation uint64 // the peer's, since the first connection; 0: there was none
	listens     bool   // the peer can be called
	hello       string // the peer's Config.Hello
	tried       uint64 // number of the last call that this node has made
	made        uint64 // number of the last connection that was made
	reason      error  // before the first connection: why the last attempt failed
	over        string // why the peer is not welcome any more, for its ears; "": it is
	// severed is closed when the next connection is made, or the peer is lost. nil: the reactor has a connection.
	severed chan struct{}
}

// overtaken is why a handshake that has succeeded comes to nothing.
type overtaken string

func (o overtaken) Error() string { return string(o) }

// settle decides whether the connection of a handshake that has succeeded is to be used, and notes it.
func (c *connecting) settle(theirs greeting) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.sessions[theirs.node]
	switch {
	case s.over != "":
		return refusal(s.over)
	case s.incarnation != 0 && s.incarnation != theirs.incarnation:
		return overtaken("another process connected as this node meanwhile")
	case theirs.call <= s.made:
		return overtaken("a later call has made a connection meanwhile")
	}
	if s.incarnation == 0 {
		c.missing--
		if c.missing == 0 {
			close(c.complete)
		}
	}
	s.incarnation, s.listens, s.made = theirs.incarnation, theirs.listens, theirs.call
	s.hello = theirs.hello
	s.endSevered()
	return nil
}

// PeerHello is the Config.Hello of a peer, nil if it has none. It is that of the first connection and every later one,
// and may be called from any goroutine after PeerUp.
func (t *Transport) PeerHello(peer transport.NodeID) []byte {
	c := &t.connect
	c.mu.Lock()
	defer c.mu.Unlock()
	if hello := c.sessions[peer].hello; hello != "" {
		return []byte(hello)
	}
	return nil
}

func (s *session) endSevered() {
	if s.severed != nil {
		close(s.severed)
		s.severed = nil
	}
}

// end makes a peer unwelcome for good.
func (c *connecting) end(id transport.NodeID, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.sessions[id]
	s.over = why
	s.endSevered()
}

// sever notes that the reactor has lost a connection. It returns a channel that is closed when there is another, or nil if
// there is one already.
func (c *connecting) sever(id transport.NodeID, call uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.sessions[id]
	if s.made > call || s.over != "" {
		return nil
	}
	s.severed = make(chan struct{})
	return s.severed
}

// greet is this node's greeting for a peer that it calls, or asks.
func (t *Transport) greet(id transport.NodeID, why purpose) greeting {
	c := &t.connect
	mine := c.mine
	mine.addressee, mine.purpose = id, why
	mine.received = t.peers[id].received.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.sessions[id]
	mine.expected = s.incarnation
	if why == purposeCall {
		s.tried++
		mine.call = s.tried
	} else {
		mine.call = s.made
	}
	return mine
}

// restarted says that a node is not the one that it was.
func restarted(id transport.NodeID) refusal {
	return refusal(fmt.Sprintf("it was started anew, and what the former node %d had is lost; start all nodes anew", id))
}

// acquainted says why the one who answers a call is not the peer that this node knows, or "".
func (c *connecting) acquainted(theirs greeting) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := &c.sessions[theirs.node]; s.incarnation != 0 && s.incarnation != theirs.incarnation {
		return restarted(theirs.node)
	}
	return nil
}

// judgeKnown says why a caller that fits is not welcome all the same, or "" if it is, and what the reactor should know
// of it; nil: nothing. A caller that says it is a lost peer's successor is taken as a proof of the loss only when there is no
// connection to that peer. Otherwise anybody could end a cluster by a call; the connection itself has to show that it is dead.
func (c *connecting) judgeKnown(theirs greeting) (why string, news *arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.sessions[theirs.node]
	switch {
	case s.over != "":
		return s.over, nil
	case theirs.expected != 0 && theirs.expected != c.mine.incarnation:
		return fmt.Sprintf("it was connected to a former node %d, whose part in the cluster is lost; start all nodes anew", c.mine.node), nil
	case s.incarnation == 0 || s.incarnation == theirs.incarnation:
		return "", nil
	}
	why = fmt.Sprintf("a node %d was connected to this cluster before; nodes that are lost do not come back: start all nodes anew", theirs.node)
	if s.severed == nil {
		return why, &arrival{kind: arrivedDoubt, id: theirs.node}
	}
	return why, &arrival{kind: arrivedEnd, id: theirs.node, err: fmt.Errorf("tcp: node %d: %w", theirs.node, restarted(theirs.node))}
}
