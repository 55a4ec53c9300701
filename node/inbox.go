package node

import (
	"fmt"

	"dsmd/internal/agreement"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"
)

// inbox takes what comes from the other nodes. It implements transport.Handler.
type inbox struct {
	self    protocol.NodeID
	drive   *driver
	out     *outbox
	meter   *meter
	calls   *calls
	members *members
	// message is the one being dealt with; here, because a variable would be allocated for each.
	message protocol.Message
}

// Frame implements transport.Handler.
func (in *inbox) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if in.out.end.broken != nil {
		return // a peer that broke the protocol may have more to say
	}
	if control[0]&agreement.Mark != 0 {
		in.members.frame(from, control, payload)
		in.drive.drain() // before the next frame
		return
	}
	if in.members.leftOut(from) {
		return
	}
	if control[0]&inquiryMark == inquiryMark {
		if err := in.calls.programs.inquiries.frame(from, control, payload); err != nil {
			in.out.expel(from, fmt.Errorf("node: from node %d: %w", from, err))
		}
		return
	}
	if control[0]&storageMark != 0 {
		if err := in.drive.storage.frame(from, control, payload); err != nil {
			in.out.expel(from, fmt.Errorf("node: from node %d: %w", from, err))
		}
		return
	}
	m, err := protocol.DecodeMessage(control)
	if err != nil {
		err = fmt.Errorf("node: from node %d: %w", from, err)
	} else {
		err = acceptable(from, &m, payload != nil)
	}
	if err != nil {
		in.out.expel(from, err)
		return
	}
	m.To = in.self
	in.meter.passedBy(&m, StageReceived)
	switch {
	case m.Object.IsLock():
		// Every message about a lock that can be taken here means that another node wants it.
		in.calls.recall(m.Object)
	case m.Kind == protocol.KindGrant || m.Kind == protocol.KindMulticast:
		in.meter.granted(pagetable.Page(m.Object.Page()), m.From, payload != nil)
	}
	if payload != nil {
		in.meter.count.pagesReceived.Add(1)
	}
	in.message = m
	in.drive.receive(&in.message, payload)
}

// acceptable is what is wrong with a message of a peer that came with a page, or without; nil if
// only the engine can tell.
func acceptable(from transport.NodeID, m *protocol.Message, page bool) error {
	switch {
	case m.From != protocol.NodeID(from):
		return fmt.Errorf("node: node %d sent a message in the name of node %d", from, m.From)
	case page != (m.Contents() == protocol.PageContents):
		return fmt.Errorf("node: node %d sent a %v that does not say whether a page came with it", from, m.Kind)
	case (m.Kind == protocol.KindBarrierRelease || m.Kind == protocol.KindNameReply) && len(m.Payload) > protocol.MaxResult:
		return fmt.Errorf("node: node %d sent a %v with %d bytes, more than a program can be told", from, m.Kind, len(m.Payload))
	case page && m.Object.IsLock():
		return fmt.Errorf("node: node %d sent a page with a %v for %v, where none belongs", from, m.Kind, m.Object)
	}
	return nil
}

// PeerUp implements transport.Handler.
func (in *inbox) PeerUp(peer transport.NodeID) {
	delete(in.drive.storage.down, peer)
	in.members.joins.connected(peer)
}

// PeerDown implements transport.Handler.
func (in *inbox) PeerDown(peer transport.NodeID, err error) {
	in.drive.storage.peerDown(peer, err)
	in.members.peerDown(peer, fmt.Errorf("node: node %d is lost: %w", peer, err))
	in.drive.drain() // before the next frame
}
