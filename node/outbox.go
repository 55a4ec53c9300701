package node

import (
	"errors"
	"fmt"

	"dsmd/internal/agreement"
	"dsmd/protocol"
	"dsmd/transport"

	"go.uber.org/zap"
)

// outbox sends to the other nodes. What it was given leaves at the next flush, if somebody waits
// for it.
type outbox struct {
	net      *network
	meter    *meter
	end      *ending
	log      *zap.Logger
	survives bool // the loss of a peer does not end the node

	control []byte // scratch for encoding messages
	due     flushing
}

// flushing is when what was queued since the last flush is to leave.
type flushing uint8

const (
	flushNone flushing = iota // nothing was queued
	flushLazy                 // nobody waits for it
	flushNow
)

// post sends a message of the protocol, with a page or nil.
func (o *outbox) post(m *protocol.Message, payload transport.Payload) {
	o.meter.passedBy(m, StagePosted)
	o.control = protocol.AppendMessage(o.control[:0], m)
	err := o.net.Send(transport.NodeID(m.To), o.control, payload)
	if err != nil {
		o.unposted(m, err)
		return
	}
	due := flushNow
	if m.Kind == protocol.KindDone { // nobody waits for it but others who want the same object
		due = flushLazy
	}
	o.due = max(o.due, due)
	if m.Kind == protocol.KindMulticast { // many wait, and their requests may be a whole turn
		o.flush()
	}
}

// unposted deals with a message that cannot be sent.
func (o *outbox) unposted(m *protocol.Message, err error) {
	to := transport.NodeID(m.To)
	failed := fmt.Errorf("node: send %v to node %d: %w", m.Kind, to, err)
	switch {
	case o.survives:
		o.unsendable(to, failed)
	case errors.Is(err, transport.ErrPeerDown) && m.Kind != protocol.KindForward && m.Kind != protocol.KindInvalidate:
		// What is lost was for that peer alone. A third node waits for what follows from the other
		// two kinds; it learns from this node's end that it waits in vain.
		o.end.peerLost(to, failed)
	default:
		o.end.breakDown(failed)
	}
}

// tell sends a frame that is not the protocol's to another node, unless that is down.
func (o *outbox) tell(to agreement.NodeID, frame []byte) {
	o.tellPage(transport.NodeID(to), frame, nil)
}

// tellPage is tell with a page, or nil.
func (o *outbox) tellPage(to transport.NodeID, frame []byte, payload transport.Payload) {
	err := o.net.Send(to, frame, payload)
	if err == nil {
		o.due = flushNow
		return
	}
	o.unsendable(to, fmt.Errorf("node: send to node %d: %w", to, err))
}

// unsendable deals with a frame that cannot be sent, where nodes may be lost.
func (o *outbox) unsendable(to transport.NodeID, err error) {
	switch {
	case errors.Is(err, transport.ErrPeerDown):
		// Poll says so too, if it has not yet. The recovery helps whoever waits for what should
		// have followed.
	case errors.Is(err, transport.ErrBacklog):
		o.expel(to, err)
	default:
		o.end.breakDown(err)
	}
}

// expel ends the connection to a peer that does not keep to the protocol: nothing that it says from
// here on can be believed.
func (o *outbox) expel(peer transport.NodeID, why error) {
	o.log.Error("a peer has broken the protocol, and is expelled", zap.Uint16("peer", uint16(peer)), zap.Error(why))
	o.net.Disconnect(peer, why)
	if !o.survives {
		// At once: the transport reports the loss later, and others might be blamed before.
		o.end.peerLost(peer, why)
	}
}

// flush sends what was queued, if somebody waits for it.
func (o *outbox) flush() {
	if o.due == flushNow {
		o.net.Flush()
		o.left()
	}
}

// left notes that all that was queued has left.
func (o *outbox) left() {
	o.meter.passedOn()
	o.due = flushNone
}

// hurry has leave at the next flush also what nobody waits for.
func (o *outbox) hurry() {
	if o.due == flushLazy {
		o.due = flushNow
	}
}
