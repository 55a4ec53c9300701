package tcp

import (
	"fmt"

	"dsmd/transport"
)

// session is what this node's goroutines know of a peer, from the start or Readmit until it is lost. It is guarded by connecting.mu. A goroutine
// keeps to the session that it began with: what it finds out about one that is over comes to nothing.
type session struct {
	peer   *peer    // the reactor's half; never changes
	former []former // incarnations of the peer that were lost, the oldest first, at most maxFormer; never changes

	met         bool   // this peer was connected, or one that it replaces
	incarnation uint64 // the peer's, since the first connection; 0: there was none
	listens     bool   // the peer can be called
	hello       string // the peer's Config.Hello
	tried       uint64 // number of the last call that this node has made
	made        uint64 // number of the last connection that was made
	reason      error  // before the first connection: why the last attempt failed
	over        string // why the peer is not welcome any more, for its ears; "": it is
	// wanted is closed when the next connection is made, or the peer is lost. nil: the reactor has a connection, or nobody calls.
	wanted chan struct{}
}

// overtaken is why a handshake that has succeeded comes to nothing.
type overtaken string

func (o overtaken) Error() string { return string(o) }

// settle decides whether the connection of a handshake that has succeeded is to be used, and notes it.
func (c *connecting) settle(s *session, theirs greeting) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case s.over != "":
		return refusal(s.over)
	case s.incarnation != 0 && s.incarnation != theirs.incarnation:
		return overtaken("another process connected as this node meanwhile")
	case theirs.call <= s.made:
		return overtaken("a later call has made a connection meanwhile")
	}
	if !s.met {
		s.met = true
		c.missing--
		if c.missing == 0 {
			close(c.complete)
		}
	}
	s.incarnation, s.listens, s.made = theirs.incarnation, theirs.listens, theirs.call
	s.hello = theirs.hello
	s.endWanted()
	return nil
}

// PeerHello is the Config.Hello of a peer, nil if it has none, or is this node. It is that of the first connection and every later one of the same
// incarnation, and may be called from any goroutine after PeerUp.
func (t *Transport) PeerHello(peer transport.NodeID) []byte {
	c := &t.connect
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.sessions[peer]; s != nil && s.hello != "" {
		return []byte(s.hello)
	}
	return nil
}

func (s *session) endWanted() {
	if s.wanted != nil {
		close(s.wanted)
		s.wanted = nil
	}
}

// end makes a peer unwelcome, until it is readmitted.
func (c *connecting) end(id transport.NodeID, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	s.over = why
	s.endWanted()
}

// sever notes that the reactor has lost a connection. It returns a channel that is closed when there is another, or nil if
// there is one already.
func (c *connecting) sever(id transport.NodeID, call uint64) (*session, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	if s.made > call || s.over != "" {
		return s, nil
	}
	s.wanted = make(chan struct{})
	return s, s.wanted
}

// greet is this node's greeting for a peer that it calls, or asks.
func (t *Transport) greet(s *session, why purpose) greeting {
	c := &t.connect
	mine := c.mine
	mine.addressee, mine.purpose = s.peer.id, why
	mine.received = s.peer.received.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
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
	return refusal(fmt.Sprintf("it was started anew, and what the former node %d had is lost; "+
		"unless the others go on without that, start all nodes anew", id))
}

// acquainted says why the one who answers a call is not the peer that this node knows, or looks for; nil: it is.
func (c *connecting) acquainted(s *session, theirs greeting) error {
	if why := s.formerly(theirs.incarnation); why != "" {
		return fmt.Errorf("it is still the former node %d: %s", theirs.node, why)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.incarnation != 0 && s.incarnation != theirs.incarnation {
		return restarted(theirs.node)
	}
	return nil
}

// judgeKnown decides whether a caller that fits is welcome, which it is if the session is not nil, and what the reactor should know
// of it; nil: nothing. A caller that says it is a peer's successor is taken as a proof of the loss only when there is no
// connection to that peer. Otherwise anybody could end a cluster by a call; the connection itself has to show that it is dead.
func (c *connecting) judgeKnown(theirs greeting) (welcome *session, v verdict, news *arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[theirs.node]
	if why := s.formerly(theirs.incarnation); why != "" {
		return nil, verdict{why: why}, nil
	}
	successor := verdict{later: true, why: fmt.Sprintf("a node %d was connected to this cluster before; one that is started anew is let in when "+
		"the others have gone on without the former one; if they do not, start all nodes anew", theirs.node)}
	switch {
	case s.over != "" && (s.incarnation == theirs.incarnation || s.incarnation == 0):
		return nil, verdict{why: s.over, later: s.incarnation == 0}, nil
	case s.over != "":
		return nil, successor, nil
	case theirs.expected != 0 && theirs.expected != c.mine.incarnation:
		return nil, verdict{why: fmt.Sprintf("it was connected to a former node %d, whose part in the cluster is lost; "+
			"unless the others go on without that, start all nodes anew", c.mine.node)}, nil
	case s.incarnation == 0 || s.incarnation == theirs.incarnation:
		return s, verdict{}, nil
	case s.wanted == nil:
		return nil, successor, &arrival{kind: arrivedDoubt, peer: s.peer}
	}
	return nil, successor, &arrival{kind: arrivedEnd, peer: s.peer, err: fmt.Errorf("tcp: node %d: %w", theirs.node, restarted(theirs.node))}
}
