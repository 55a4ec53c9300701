package tcp

import (
	"errors"
	"fmt"
	"slices"

	"dsmd/transport"
)

// session is what this node's goroutines know of a peer, from the start or Readmit until it is
// lost. It is guarded by connecting.mu. A goroutine keeps to the session that it began with: what
// it finds out about one that is over comes to nothing.
type session struct {
	peer *peer // the reactor's half; never changes
	// former are the incarnations of the peer that were lost, the oldest first, at most maxFormer.
	// It never changes.
	former []former

	readmitted bool // the peer takes the place of one that was lost; never changes
	// founds: this node joins, and what it has heard last of the peer is that it founds a cluster.
	founds      bool
	met         bool   // this peer was connected, or one that it replaces
	incarnation uint64 // the peer's, since the first connection; 0: there was none
	listens     bool   // the peer can be called
	hello       string // the peer's Config.Hello
	tried       uint64 // number of the last call that this node has made
	made        uint64 // number of the last connection that was made
	// reason is why the last attempt to connect that was noted has failed: of both before the first
	// connection, and of the peer alone since the last has ended. errNotTried: none has.
	reason error
	heard  string // the gist of what was logged last of attempts to connect; isNews
	over   string // why the peer is not welcome any more, for its ears; "": it is
	// wanted is closed when the next connection is made, or the peer is lost. nil: the reactor has
	// a connection, or nobody calls.
	wanted chan struct{}
}

// overtaken is why a handshake that has succeeded comes to nothing.
type overtaken string

func (o overtaken) Error() string { return string(o) }

// commit takes the connection of a handshake that has succeeded, or returns why it is not used.
func (c *connecting) commit(s *session, theirs greeting) error {
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

// PeerHello is the Config.Hello of a peer, nil if it has none, or is this node. It is that of the
// first connection and every later one of the same incarnation, and may be called from any
// goroutine after PeerUp.
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

// sever notes that the reactor has lost a connection, which was fruitless or not. It returns a
// channel that is closed when there is another, or nil if there is one already.
func (c *connecting) sever(id transport.NodeID, call uint64, fruitless bool) (*session, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	if !fruitless {
		s.heard = ""
	}
	if s.made > call || s.over != "" {
		return s, nil
	}
	s.wanted, s.reason = make(chan struct{}), errNotTried
	return s, s.wanted
}

// greet is this node's greeting for a peer that it calls or asks.
func (c *connecting) greet(s *session, why purpose) greeting {
	mine := c.mine
	mine.addressee, mine.purpose = s.peer.id, why
	mine.received = s.peer.received.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	mine.expected, mine.standing = s.incarnation, c.standingLocked(s)
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

// Belong tells that this node, which has joined (Config.Joining), was let in. It may be called from
// any goroutine. From now on a node that founds a cluster hears from it that it has to join as
// well.
func (t *Transport) Belong() {
	c := &t.connect
	c.mu.Lock()
	defer c.mu.Unlock()
	c.belongs = true
}

// standingLocked is what this node is to a peer's cluster. Preconditions: mu is held.
func (c *connecting) standingLocked(s *session) standing {
	switch {
	case c.belongs:
		return belonging
	case s.incarnation != 0 || s.over != "":
		return acquainted
	case c.joining:
		return joining
	case s.readmitted:
		return belonging
	}
	return founding
}

// errGoneOn is why a node that founds a cluster does not get on with one that belongs to another.
type errGoneOn string

func (e errGoneOn) Error() string { return string(e) }

// Is makes it a refusal for good, and tells it from others.
func (e errGoneOn) Is(target error) bool {
	return target == ErrRefused || target == transport.ErrGoneOn
}

// misplaced returns why one of two nodes that do not know each other must be started in another
// way; nil: neither must. One of them founds a cluster, and the other belongs to one or looks for
// one. If they were connected, each would take the other for a member of its own cluster.
func misplaced(mine, theirs greeting) error {
	founder, other := theirs, mine
	if mine.standing == founding {
		founder, other = mine, theirs
	}
	switch {
	case founder.standing != founding || other.standing == founding || other.standing == acquainted:
		return nil
	case other.standing == belonging:
		return errGoneOn(fmt.Sprintf("node %d belongs to a cluster that has gone on without the former node %d; "+
			"start node %d with --rejoin, so that it comes in as one that knows nothing", other.node, founder.node, founder.node))
	}
	return verdictError{later: true, why: fmt.Sprintf("node %d was started to found a cluster, and node %d to come into one that runs (--rejoin); "+
		"if one runs start both with --rejoin, else none", founder.node, other.node)}
}

// acquainted returns why whoever has answered a call is not the peer that this node knows or looks
// for; nil: it is.
func (c *connecting) acquainted(s *session, mine, theirs greeting) error {
	if why := s.formerly(theirs.incarnation); why != "" {
		return fmt.Errorf("it is still the former node %d: %s", theirs.node, why)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.incarnation != 0 && s.incarnation != theirs.incarnation {
		return restarted(theirs.node)
	}
	// Whether a node that founds may become one that this one joins, it says itself, in its
	// verdict.
	if err := misplaced(mine, theirs); s.incarnation == 0 && errors.Is(err, transport.ErrGoneOn) {
		return err
	}
	return nil
}

// heard is heardLocked for a peer that was called.
func (c *connecting) heard(s *session, mine, theirs greeting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heardLocked(s, mine, theirs)
}

// heardLocked notes whether a peer founds a cluster that this node wants to join. If all peers do,
// there is no cluster to join, and Connect ends.
func (c *connecting) heardLocked(s *session, mine, theirs greeting) {
	s.founds = mine.standing == joining && theirs.standing == founding
	if s.founds && !slices.ContainsFunc(c.sessions, func(s *session) bool { return s != nil && !s.founds }) {
		c.refuseLocked(fmt.Errorf("tcp: node %d: %w %w: all others were started to found one; start this node without --rejoin",
			mine.node, ErrRefused, transport.ErrNoCluster))
	}
}

// judgeKnown decides whether a caller that fits is welcome: then the session is not nil. The
// arrival, if there is one, is news for the reactor. It sets the standing in mine, which is this
// node's answer.
//
// A caller may say that it is a peer's successor. That proves the loss of the peer only when there
// is no connection to the peer. Otherwise anybody could end a cluster by a call; the connection
// itself has to show that it is dead.
func (c *connecting) judgeKnown(mine *greeting, theirs greeting) (welcome *session, v verdict, news *arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[theirs.node]
	mine.standing = c.standingLocked(s)
	if why := s.formerly(theirs.incarnation); why != "" {
		return nil, verdict{why: why}, nil
	}
	successor := verdict{later: true, why: fmt.Sprintf("a node %d was connected to this cluster before; one that is started anew is let in when "+
		"the others have gone on without the former one, if it was started with --rejoin; if they do not, start all nodes anew", theirs.node)}
	switch {
	case s.over != "" && (s.incarnation == theirs.incarnation || s.incarnation == 0):
		return nil, verdict{why: s.over, later: s.incarnation == 0}, nil
	case s.over != "":
		return nil, successor, nil
	case theirs.expected != 0 && theirs.expected != c.mine.incarnation:
		return nil, verdict{why: fmt.Sprintf("it was connected to a former node %d, whose part in the cluster is lost; "+
			"unless the others go on without that, start all nodes anew", c.mine.node)}, nil
	case s.incarnation == 0:
		return c.judgeNewLocked(s, *mine, theirs)
	case s.incarnation == theirs.incarnation:
		return s, verdict{}, nil
	case s.wanted == nil:
		return nil, successor, &arrival{kind: arrivedDoubt, peer: s.peer}
	}
	return nil, successor, &arrival{kind: arrivedEnd, peer: s.peer, err: fmt.Errorf("tcp: node %d: %w", theirs.node, restarted(theirs.node))}
}

// judgeNewLocked is judgeKnown for a peer that was never connected.
func (c *connecting) judgeNewLocked(s *session, mine, theirs greeting) (*session, verdict, *arrival) {
	c.heardLocked(s, mine, theirs)
	err := misplaced(mine, theirs)
	if err == nil {
		return s, verdict{}, nil
	}
	if mine.standing == founding && errors.Is(err, transport.ErrGoneOn) {
		c.refuseLocked(fmt.Errorf("tcp: node %d %w this node: %w", theirs.node, ErrRefused, err))
	}
	return nil, verdict{why: err.Error(), later: errors.Is(err, errLater)}, nil
}
