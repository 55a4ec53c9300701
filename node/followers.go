package node

import (
	"errors"
	"fmt"

	"dsmd/internal/agreement"
	"dsmd/protocol"
	"dsmd/transport"
)

// followers is how the reactors of a daemon go from one view to the next together.
//
// The one that leads agrees with the leading reactors of the other nodes. It tells the others of
// each view; each partition then recovers by itself, over its own connections. A node has recovered
// when all its reactors have. A peer is lost when the connection of any reactor to it is: then the
// one that leads ends its own, and the nodes agree to go on without that peer.
//
// A process that comes in the place of a lost one connects to the other reactors only when it was
// let in, and they let it come only when they have heard so. So none hears anything of a view from
// a member that it does not know yet.
type followers struct {
	of *partition
	// resumed and handed count, at the reactor that leads, those that have recovered, and that have
	// handed over what they had to.
	resumed, handed tally
	// came is the view in which each member came, at the reactor that leads.
	came map[agreement.NodeID]uint32
	// former are, at the others, nodes that were left out since this one came, and whose process
	// may still be connected.
	former map[transport.NodeID]bool
	poll   func() bool // deals with what the transport has to say
}

func newFollowers(of *partition) followers {
	return followers{of: of, came: map[agreement.NodeID]uint32{}, former: map[transport.NodeID]bool{}}
}

// tally counts reactors that have come to some point of an epoch.
type tally struct {
	epoch uint32
	count int
}

// add counts one more, and returns whether it was the last of so many.
func (t *tally) add(epoch uint32, of int) bool {
	if epoch > t.epoch {
		*t = tally{epoch: epoch}
	}
	if epoch < t.epoch {
		return false
	}
	t.count++
	return t.count == of
}

// tellView has the other reactors enter a view, in which some members have come.
func (m *members) tellView(ev protocol.Event, o *agreement.Output, came []agreement.NodeID) {
	for _, id := range came {
		m.followers.came[id] = ev.Epoch
	}
	m.followers.of.tellOthers(func(n *Node) { n.members.follow(ev, o.Members, o.Leaving) })
}

// follow enters a view that the reactor that leads has been told of.
func (m *members) follow(ev protocol.Event, members, leaving []agreement.NodeID) {
	wasOutside, came, gone := m.outside(), without(members, m.list), without(m.list, members)
	m.partWithFormer(came)
	m.list, m.leaving.nodes = members, leaving
	for _, id := range gone {
		peer := transport.NodeID(id)
		delete(m.joins.missing, peer)
		m.followers.former[peer] = !m.joins.down[peer]
	}
	for _, id := range came {
		peer := transport.NodeID(id)
		if m.joins.down[peer] {
			m.readmit(peer)
		}
		if int(id) != m.cfg.Self {
			m.joins.await(peer)
		}
	}
	m.drive.put(ev)
	if wasOutside {
		m.belong()
	}
}

// partWithFormer ends the connections to processes in whose places others have come. What is sent
// to those in the new view must not go there.
func (m *members) partWithFormer(came []agreement.NodeID) {
	parts := false
	for _, id := range came {
		if peer := transport.NodeID(id); m.followers.former[peer] {
			m.out.net.Disconnect(peer, errors.New("another process has come in its place"))
			parts = true
		}
	}
	if parts {
		m.followers.poll() // which reports them
	}
}

// channelDown deals, at a reactor that does not lead, with the end of its connection to a peer.
func (m *members) channelDown(peer transport.NodeID, why error) {
	j := &m.joins
	delete(j.up, peer)
	delete(j.missing, peer)
	j.down[peer] = true
	delete(m.followers.former, peer)
	if m.has(agreement.NodeID(peer)) {
		epoch, _ := m.drive.engine.Epoch()
		m.followers.of.tellLead(func(lead *Node) { lead.members.lostElsewhere(peer, epoch, why) })
	}
}

// lostElsewhere deals with a peer that another reactor has lost, which was in that epoch.
func (m *members) lostElsewhere(peer transport.NodeID, epoch uint32, why error) {
	if id := agreement.NodeID(peer); m.has(id) && epoch >= m.followers.came[id] {
		m.out.net.Disconnect(peer, why) // which is reported, unless that was before
	}
}

// part ends the connection to a process that is left out.
func (m *members) part(peer transport.NodeID) {
	m.out.net.Disconnect(peer, fmt.Errorf("the nodes that go on are %s", list(m.list)))
}

// tellPart has the other reactors part with a process that is left out.
func (m *members) tellPart(peer transport.NodeID) {
	m.followers.of.tellOthers(func(o *Node) {
		if !o.members.has(agreement.NodeID(peer)) {
			o.members.part(peer)
		}
	})
}

// recovered deals with the end of this reactor's recovery.
func (m *members) recovered(epoch uint32) {
	m.onLead(func(lead *members) {
		if lead.followers.resumed.add(epoch, lead.followers.of.reactors()) {
			lead.resumed(epoch)
		}
	})
}

// handedOver notes that this reactor has handed over what it had to.
func (m *members) handedOver(epoch uint32) {
	m.onLead(func(lead *members) {
		if lead.followers.handed.add(epoch, lead.followers.of.reactors()) {
			lead.leaving.handedOver(epoch)
		}
	})
}

// onLead calls a function where the daemon's members are agreed on: now, if that is here.
func (m *members) onLead(f func(*members)) {
	if m.agreement != nil {
		f(m)
		return
	}
	m.followers.of.tellLead(func(lead *Node) { f(lead.members) })
}

// tellQuorum has the other reactors know whether anything may be granted.
func (m *members) tellQuorum() {
	state := m.quorum.state
	m.followers.of.tellOthers(func(o *Node) { o.members.quorum.state = state })
}
