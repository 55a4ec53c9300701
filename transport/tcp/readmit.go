package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

// maxFormer bounds how many lost incarnations of a peer this node remembers, to tell each why it is
// not welcome. A lost one that still runs calls for at most Config.GiveUp, so it has stopped long
// before this many others have come and gone.
const maxFormer = 16

// former is an incarnation of a peer that was lost.
type former struct {
	incarnation uint64
	why         string // for its ears
}

// formerly says why an incarnation of the peer was lost, or "" if it was not.
func (s *session) formerly(incarnation uint64) string {
	for _, f := range s.former {
		if f.incarnation == incarnation {
			return f.why
		}
	}
	return ""
}

// Readmit implements transport.Transport. A peer with a lower number is called, at first at once
// and after a while once a second; one line is logged when what it answers changes.
func (t *Transport) Readmit(peer transport.NodeID) {
	lost := t.peer(peer)
	if !t.gate.Enter() {
		return
	}
	defer t.gate.Leave()
	if !lost.reported {
		panic(fmt.Sprintf("tcp: Readmit of node %d, whose PeerDown was not reported; it is in state %d", peer, lost.state))
	}
	p := t.newPeer(peer)
	t.peers[peer] = p
	t.connect.readmit(p)
	t.log(fmt.Sprintf("tcp: node %d may come back", peer))
}

// readmit begins another session with a peer that was lost.
func (c *connecting) readmit(p *peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.sessions[p.id]
	s := &session{peer: p, readmitted: true, met: lost.met, former: lost.former, reason: errNotTried}
	if lost.incarnation != 0 {
		s.former = append(slices.Clone(lost.former), former{lost.incarnation, lost.over})
		s.former = s.former[max(0, len(s.former)-maxFormer):]
	}
	c.sessions[p.id] = s
	if p.id < c.self && c.started { // else Connect calls it
		c.keepCallingLocked(s)
	}
}

// keepCallingLocked has a peer called until it is connected or lost. Preconditions: nobody calls
// it; mu is held.
func (c *connecting) keepCallingLocked(s *session) {
	wanted := make(chan struct{})
	s.wanted = wanted
	c.work.Go(func() { c.keepCalling(s, wanted) })
}

// keepCalling calls a peer until wanted is closed. No answer ends that: the peer may not be there
// yet, its former incarnation may still be there, or it may not know yet that it may let this node
// in.
func (c *connecting) keepCalling(s *session, wanted <-chan struct{}) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := c.call(c.ctx, s, purposeCall)
		if err == nil || c.ctx.Err() != nil {
			return
		}
		c.note(s.peer.id, err)
		if c.isNews(s, err) {
			c.log(fmt.Sprintf("tcp: node %d is called until it is connected: %v", s.peer.id, err))
		}
		if errors.Is(err, ErrRefused) && !errors.Is(err, errLater) && (!isImpostor(err) || c.meetsImpostorsAlone(s.peer.id)) {
			c.refuse(err) // Connect may wait for this node to get in, and it will not.
		}
		if !isWanted(c.ctx, wanted, pause) {
			return
		}
	}
}

// isWanted waits for a pause, and reports whether the call after it is still wanted. It is not
// left to chance where the pause has ended as well.
func isWanted(ctx context.Context, wanted <-chan struct{}, pause time.Duration) bool {
	select {
	case <-time.After(pause):
	case <-wanted:
	case <-ctx.Done():
	}
	select {
	case <-wanted:
		return false
	default:
		return ctx.Err() == nil
	}
}

// meetsImpostorsAlone reports whether this node believes nobody whom it has called. Then it is this
// node that does not belong here. One impostor proves nothing: he may have taken the port of a lost
// node. So a joining node goes on as long as others may call it. Preconditions: the peer was
// called, and has just turned out to be an impostor.
func (c *connecting) meetsImpostorsAlone(peer transport.NodeID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.joining && c.listener != nil && int(c.mine.node) < len(c.sessions)-1 {
		return false
	}
	for i, s := range c.sessions[:c.mine.node] {
		if transport.NodeID(i) != peer && !isImpostor(s.reason) {
			return false
		}
	}
	return true
}

// isNews reports whether an attempt to connect has failed for another reason than the one before,
// or the first since a connection that was not fruitless.
func (c *connecting) isNews(s *session, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := s.heard
	s.heard = gist(err)
	return s.heard != before
}

// gist is an error without what differs from call to call, such as this node's port, or the number
// of a descriptor.
func gist(err error) string {
	var op *net.OpError
	var errno unix.Errno
	switch {
	case errors.As(err, &op):
		return op.Op + ": " + op.Err.Error()
	case errors.As(err, &errno):
		return errno.Error()
	}
	return err.Error()
}
