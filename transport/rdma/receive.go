package rdma

import (
	"fmt"
	"time"

	"dsmd/internal/verbs"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// recvMark tells the completions of receives from those of requests, which are numbered from 1.
// After a failure a completion has nothing but its number.
const recvMark = 1 << 63

// deliverer takes what comes in, and passes frames on in the order of their numbers.
type deliverer struct {
	router
	ending    []ending // those whose PeerDown is to be reported
	baseFirst bool     // the base transport was asked before the device at its last Poll
	delivered int      // in this Poll
	limit     int      // of this Poll
	lender    chassis.Lender
}

// ending is a peer that is lost, and how many completions had been dealt with then.
type ending struct {
	*peer
	since uint64
}

// receive deals with what the device has completed, until it has nothing more or enough frames were
// delivered.
func (d *deliverer) receive() {
	if len(d.ready) > 0 {
		d.receiveReady()
	}
	for d.delivered < d.limit && d.refill() {
		full := d.end == pollBatch
		for d.next < d.end && d.delivered < d.limit {
			c := &d.completions[d.next]
			d.next++
			d.complete(c)
		}
		if !full { // Others may have come meanwhile; the next Poll sees them.
			return
		}
	}
}

// complete deals with one completion.
func (d *deliverer) complete(c *verbs.Completion) {
	d.completed++
	l := d.links[c.QPN]
	switch {
	case c.ID&recvMark != 0:
		block := c.ID &^ recvMark
		if l == nil || c.Status != verbs.Success || l.peer.link != l || l.peer.cut || l.peer.gone {
			d.spend(block)
			return
		}
		d.arrive(l, block, c)
	case l == nil:
	case c.Status == verbs.Success:
		l.retired = c.ID
		d.list(l.peer)
	case l.peer.link == l:
		d.breakLink(l.peer, fmt.Errorf("rdma: node %d: a request has failed: %v (vendor's code %#x)", l.peer.id, c.Status, c.VendorError), true)
	}
}

// arrive takes a message that has used up one of the blocks.
func (d *deliverer) arrive(l *link, block uint64, c *verbs.Completion) {
	p := l.peer
	h, piece, err := d.read(l, block, c)
	if err == nil {
		err = d.takeAck(p, h.ack)
	}
	if err != nil {
		d.spend(block)
		d.misbehaves(p, err)
		return
	}
	d.counts.messagesReceived.Add(1)
	if c.Op == verbs.WCRecv {
		d.counts.BytesReceived.Add(uint64(headerBytes + len(piece)))
	}
	if h.flags&flagPage != 0 {
		d.counts.writtenReceived.Add(1)
		d.counts.BytesReceived.Add(uint64(d.pageBytes))
	}
	switch {
	case l.up || d.gate.Closing():
	case h.number == 0:
		d.spend(block)
		d.greeted(l, h)
		return
	default:
		// The peer sends, so it is ready; its word for that is on its way on the base transport.
		d.linkUp(p)
	}
	switch {
	case h.number <= p.received: // An acknowledgement, or it came on another path before.
		d.spend(block)
		d.asked(p, h)
	case h.number > p.received+1:
		d.park(p, parkedMessage{block, h, piece})
	default:
		d.deliverBlock(p, block, h, piece)
	}
}

// read finds the message that a completion is about. It is in the block; or it is in the immediate
// value of a page's write, and then it is put together in the block, to which nothing else was
// written. Every message of a queue pair must be read, and in order.
func (d *deliverer) read(l *link, block uint64, c *verbs.Completion) (h header, piece []byte, err error) {
	at := int(block) * blockBytes
	b := d.recvBlocks.bytes[at : at+blockBytes]
	switch c.Op {
	case verbs.WCRecvImm:
		return l.heard.restore(c.Imm, d.sizes.Slots, b)
	case verbs.WCRecv:
		if h, piece, err = readHeader(b[:min(int(c.Bytes), blockBytes)]); err == nil {
			l.heard.remember(h, piece, d.sizes.Slots)
		}
		return h, piece, err
	}
	return header{}, nil, fmt.Errorf("%w: operation %d", ErrMalformed, c.Op)
}

// park keeps a message until its predecessors have come on the base transport.
func (d *deliverer) park(p *peer, m parkedMessage) {
	if len(p.parked) >= d.sizes.Window {
		d.spend(m.block)
		d.misbehaves(p, fmt.Errorf("%w: more messages than its window of %d", ErrMalformed, d.sizes.Window))
		return
	}
	p.parked = append(p.parked, m)
}

// deliverBlock deals with the next message of a peer, which has used up a block.
func (d *deliverer) deliverBlock(p *peer, block uint64, h header, piece []byte) {
	var data []byte
	if h.flags&flagPage != 0 {
		if int64(h.slot) >= int64(d.sizes.Slots) {
			d.spend(block)
			d.misbehaves(p, fmt.Errorf("%w: slot %d of %d", ErrMalformed, h.slot, d.sizes.Slots))
			return
		}
		at := d.recvSlot(p, int(h.slot))
		data = d.recvSlots.bytes[at : at+d.pageBytes : at+d.pageBytes]
	}
	p.received = h.number
	control, whole, err := p.assemble(piece, h.flags&flagMore != 0)
	switch {
	case err != nil:
		d.spend(block)
		d.misbehaves(p, err)
		return
	case whole && data == nil:
		d.deliver(p, control, nil)
	case whole:
		d.deliverPage(p, control, data)
	}
	d.spend(block)
	d.deal(p, h)
}

// asked notes that a peer waits for an acknowledgement. The peer gets it at the end of this Poll.
func (d *deliverer) asked(p *peer, h header) {
	if h.flags&flagAck != 0 {
		p.wantAck = true
		d.oweAck(p)
	}
}

// deal notes that a message's memory is free.
func (d *deliverer) deal(p *peer, h header) {
	p.dealt = h.number
	if h.flags&flagPage != 0 {
		p.pages++
	}
	d.asked(p, h)
	if d.ackDue(p) {
		d.oweAck(p)
	}
}

// assemble adds a piece to what has come of a control part, and returns it when it is whole.
func (p *peer) assemble(piece []byte, more bool) (control []byte, whole bool, err error) {
	if !more && len(p.partial) == 0 {
		return piece, true, nil
	}
	if len(p.partial)+len(piece) > transport.MaxControlBytes {
		return nil, false, fmt.Errorf("%w: a control part of more than %d bytes", ErrMalformed, transport.MaxControlBytes)
	}
	p.partial = append(p.partial, piece...)
	if more {
		return nil, false, nil
	}
	control = p.partial
	p.partial = p.partial[:0]
	return control, true, nil
}

// deliver passes a frame on, unless the handler parts with the peer as soon as it is reported.
func (d *deliverer) deliver(p *peer, control []byte, payload transport.Payload) {
	if d.report(p); !p.cut {
		d.pass(p, control, payload)
	}
}

// pass passes a frame on of a peer that was reported.
func (d *deliverer) pass(p *peer, control []byte, payload transport.Payload) {
	d.delivered++
	d.counts.FramesReceived.Add(1)
	if payload != nil {
		d.counts.PayloadsReceived.Add(1)
	}
	d.handler.Frame(p.id, control, payload)
}

// deliverPage passes on a frame with a page in one of our slots, which the handler borrows.
func (d *deliverer) deliverPage(p *peer, control, data []byte) {
	page := d.lender.Lend(data)
	d.deliver(p, control, page)
	d.lender.Return(page)
}

// receiveReady delivers messages that were parked until their predecessors came.
func (d *deliverer) receiveReady() {
	for len(d.ready) > 0 && d.delivered < d.limit {
		p := d.ready[0]
		for d.delivered < d.limit && len(p.parked) > 0 {
			first := p.parked[0]
			if first.header.number > p.received+1 {
				break
			}
			p.parked = p.parked[1:]
			if first.header.number <= p.received {
				d.spend(first.block)
				continue
			}
			d.deliverBlock(p, first.block, first.header, first.piece)
		}
		if d.delivered >= d.limit {
			return
		}
		if p.isReady { // It has not been discarded meanwhile.
			p.isReady = false
			d.ready = d.ready[1:]
		}
	}
}

// baseHandler is the Handler of the base transport.
type baseHandler deliverer

// PeerUp implements transport.Handler.
func (b *baseHandler) PeerUp(id transport.NodeID) {
	d := (*deliverer)(b)
	d.connected(d.peers[id])
}

// PeerDown implements transport.Handler.
func (b *baseHandler) PeerDown(id transport.NodeID, err error) {
	d := (*deliverer)(b)
	p := d.peers[id]
	p.lost = err
	d.ending = append(d.ending, ending{p, d.completed})
}

// Frame implements transport.Handler.
func (b *baseHandler) Frame(from transport.NodeID, frame []byte, payload transport.Payload) {
	d := (*deliverer)(b)
	p := d.peers[from]
	if p.path == pathPlain {
		d.pass(p, frame, payload)
		return
	}
	if p.silent {
		d.heard(p)
	}
	var err error
	if note(frame[0]) == noteMessage {
		err = d.baseMessage(p, frame[1:], payload)
	} else {
		err = d.noted(p, frame)
	}
	if err != nil {
		d.misbehaves(p, err)
	}
}

// reportLost reports the peers that are gone, after everything that they have sent was delivered:
// when nothing waits that may be theirs, or as much has come as may have waited then.
func (d *deliverer) reportLost() {
	d.refill()
	all := d.ending
	d.ending = nil
	for _, p := range all {
		if p.isReady || !d.idle(p.since) {
			d.ending = append(d.ending, p)
			continue
		}
		d.unlink(p.peer)
		d.discardQueue(p.peer)
		d.setPath(p.peer, pathNone)
		p.gone, p.due = true, time.Time{}
		d.handler.PeerDown(p.id, p.lost)
	}
}
