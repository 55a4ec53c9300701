package rdma

import (
	"fmt"

	"dsmd/internal/verbs"
	"dsmd/transport"
)

// recvMark tells the completions of receives from those of requests, which are numbered from 1. After a failure a completion
// says nothing but its number.
const recvMark = 1 << 63

// spend notes a receive block whose contents are no longer needed.
func (t *Transport) spend(block uint64) {
	t.spent = append(t.spent, verbs.RecvRequest{
		ID: recvMark | block, SGE: t.recvBlocks.sge(int(block)*blockBytes, blockBytes), SGEs: 1,
	})
}

// repost offers spent blocks to the device again, if there are more than spare. It returns false if the device does not take them,
// and is no longer used.
func (t *Transport) repost(spare int) bool {
	if len(t.spent) <= spare {
		return true
	}
	return t.postSpent()
}

// postSpent is what repost does if there are that many.
func (t *Transport) postSpent() bool {
	if t.broken != nil {
		return true
	}
	err := t.fabric.postRecv(t.spent)
	t.spent = t.spent[:0]
	if err != nil {
		t.breakDevice(err)
	}
	return err == nil
}

// refill takes completions from the device, if none are left, and returns whether there are any.
func (t *Transport) refill() bool { return t.next < t.end || t.pollDevice() }

// pollDevice is what refill does if none are left.
func (t *Transport) pollDevice() bool {
	if t.broken != nil {
		return false
	}
	n, err := t.fabric.poll(t.completions[:])
	if err != nil {
		t.breakDevice(err)
		return false
	}
	t.next, t.end = 0, n
	if n == 0 {
		if t.draining > 0 {
			t.reap()
		}
		return false
	}
	t.counts.completions.Add(uint64(n))
	return true
}

// receive deals with what the device has completed, until it has nothing more or enough frames were delivered.
func (t *Transport) receive() {
	if len(t.ready) > 0 {
		t.receiveReady()
	}
	for t.delivered < t.limit && t.refill() {
		full := t.end == pollBatch
		for t.next < t.end && t.delivered < t.limit {
			c := &t.completions[t.next]
			t.next++
			t.complete(c)
		}
		if !full { // Others may have come meanwhile; the next Poll sees them.
			return
		}
	}
}

// complete deals with one completion.
func (t *Transport) complete(c *verbs.Completion) {
	l := t.links[c.QPN]
	switch {
	case c.ID&recvMark != 0:
		block := c.ID &^ recvMark
		if l == nil || c.Status != verbs.Success || l.peer.link != l || l.peer.cut || l.peer.gone {
			t.spend(block)
			return
		}
		t.arrive(l, block, c)
	case l == nil:
	case c.Status == verbs.Success:
		l.retired = c.ID
		t.list(l.peer)
	case l.peer.link == l:
		t.breakLink(l.peer, fmt.Errorf("rdma: node %d: a request has failed: %v (vendor's code %#x)", l.peer.id, c.Status, c.VendorError), true)
	}
}

// arrive takes a message that has used up one of the blocks.
func (t *Transport) arrive(l *link, block uint64, c *verbs.Completion) {
	p := l.peer
	h, piece, err := t.read(l, block, c)
	if err == nil {
		err = t.takeAck(p, h.ack)
	}
	if err != nil {
		t.spend(block)
		t.misbehaves(p, err)
		return
	}
	t.counts.messagesReceived.Add(1)
	if c.Op == verbs.WCRecv {
		t.counts.bytesReceived.Add(uint64(headerBytes + len(piece)))
	}
	if h.flags&flagPage != 0 {
		t.counts.writtenReceived.Add(1)
		t.counts.bytesReceived.Add(uint64(t.pageBytes))
	}
	if !l.up && !t.closing.Load() {
		t.linkUp(p) // The peer sends, so it is ready; its word for that is on its way on the base transport.
	}
	switch {
	case h.number <= p.received: // An acknowledgement, or it came on another path before.
		t.spend(block)
		t.asked(p, h)
	case h.number > p.received+1:
		t.hold(p, held{block, h, piece})
	default:
		t.deliverBlock(p, block, h, piece)
	}
}

// read finds the message that a completion is about: in the block, or in the immediate value of a page's write, and then the message is put
// together in the block, which nothing else was written to. Every message of a queue pair must be read, and in order.
func (t *Transport) read(l *link, block uint64, c *verbs.Completion) (h header, piece []byte, err error) {
	at := int(block) * blockBytes
	b := t.recvBlocks.bytes[at : at+blockBytes]
	switch c.Op {
	case verbs.WCRecvImm:
		return l.heard.restore(c.Imm, t.sizes.Slots, b)
	case verbs.WCRecv:
		if h, piece, err = readHeader(b[:min(int(c.Bytes), blockBytes)]); err == nil {
			l.heard.remember(h, piece, t.sizes.Slots)
		}
		return h, piece, err
	}
	return header{}, nil, fmt.Errorf("%w: operation %d", ErrMalformed, c.Op)
}

// recvSlot is where in the region a peer's slot begins.
func (t *Transport) recvSlot(p *peer, slot int) int {
	return (p.index*t.sizes.Slots + slot) * t.sizes.SlotBytes
}

// hold keeps a message until its predecessors have come on the base transport.
func (t *Transport) hold(p *peer, m held) {
	if len(p.held) >= t.sizes.Window {
		t.spend(m.block)
		t.misbehaves(p, fmt.Errorf("%w: more messages than its window of %d", ErrMalformed, t.sizes.Window))
		return
	}
	p.held = append(p.held, m)
}

// deliverBlock deals with the next message of a peer, which has used up a block.
func (t *Transport) deliverBlock(p *peer, block uint64, h header, piece []byte) {
	var data []byte
	if h.flags&flagPage != 0 {
		if int64(h.slot) >= int64(t.sizes.Slots) {
			t.spend(block)
			t.misbehaves(p, fmt.Errorf("%w: slot %d of %d", ErrMalformed, h.slot, t.sizes.Slots))
			return
		}
		at := t.recvSlot(p, int(h.slot))
		data = t.recvSlots.bytes[at : at+t.pageBytes : at+t.pageBytes]
	}
	p.received = h.number
	control, whole, err := p.assemble(piece, h.flags&flagMore != 0)
	switch {
	case err != nil:
		t.spend(block)
		t.misbehaves(p, err)
		return
	case whole && data == nil:
		t.deliver(p, control, nil)
	case whole:
		t.deliverPage(p, control, data)
	}
	t.spend(block)
	t.deal(p, h)
}

// asked notes that a peer waits for an acknowledgement, if it does. It gets one at the end of this Poll.
func (t *Transport) asked(p *peer, h header) {
	if h.flags&flagAck != 0 {
		p.wantAck = true
		t.oweAck(p)
	}
}

// deal notes that a message's memory is free.
func (t *Transport) deal(p *peer, h header) {
	p.dealt = h.number
	if h.flags&flagPage != 0 {
		p.pages++
	}
	t.asked(p, h)
	if t.ackDue(p) {
		t.oweAck(p)
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

// deliver passes a frame on.
func (t *Transport) deliver(p *peer, control []byte, payload transport.Payload) {
	t.report(p)
	t.delivered++
	t.counts.framesReceived.Add(1)
	if payload != nil {
		t.counts.payloadsReceived.Add(1)
	}
	t.handler.Frame(p.id, control, payload)
}

// deliverPage passes on a frame with a page in one of our slots, which the handler borrows.
func (t *Transport) deliverPage(p *peer, control, data []byte) {
	borrowed := t.borrowed
	if borrowed == nil {
		borrowed = t.pool.get()
	}
	borrowed.state, borrowed.data = pageBorrowed, data
	t.borrowed = nil
	t.deliver(p, control, borrowed)
	if borrowed.state == pageBorrowed {
		borrowed.state, borrowed.data = pageSpare, nil
		t.borrowed = borrowed
	}
}

// receiveReady delivers messages that were held until their predecessors came.
func (t *Transport) receiveReady() {
	for len(t.ready) > 0 && t.delivered < t.limit {
		p := t.ready[0]
		for t.delivered < t.limit && len(p.held) > 0 {
			first := p.held[0]
			if first.header.number > p.received+1 {
				break
			}
			p.held = p.held[1:]
			if first.header.number <= p.received {
				t.spend(first.block)
				continue
			}
			t.deliverBlock(p, first.block, first.header, first.piece)
		}
		if t.delivered >= t.limit {
			return
		}
		if p.isReady { // It has not been discarded meanwhile.
			p.isReady = false
			t.ready = t.ready[1:]
		}
	}
}

// baseHandler is the Handler of the base transport.
type baseHandler Transport

// PeerUp implements transport.Handler.
func (b *baseHandler) PeerUp(id transport.NodeID) {
	t := (*Transport)(b)
	t.connected(t.peers[id])
}

// PeerDown implements transport.Handler.
func (b *baseHandler) PeerDown(id transport.NodeID, err error) {
	t := (*Transport)(b)
	p := t.peers[id]
	p.lost = err
	t.ending = append(t.ending, p)
}

// Frame implements transport.Handler.
func (b *baseHandler) Frame(from transport.NodeID, frame []byte, payload transport.Payload) {
	t := (*Transport)(b)
	p := t.peers[from]
	if p.path == pathPlain {
		t.delivered++
		t.handler.Frame(from, frame, payload)
		return
	}
	t.counts.baseFramesReceived.Add(1)
	if payload != nil {
		t.counts.basePayloadsReceived.Add(1)
	}
	var err error
	if note(frame[0]) == noteMessage {
		err = t.baseMessage(p, frame[1:], payload)
	} else {
		err = t.noted(p, frame)
	}
	if err != nil {
		t.misbehaves(p, err)
	}
}

// baseMessage takes a message that came on the base transport.
func (t *Transport) baseMessage(p *peer, b []byte, payload transport.Payload) error {
	h, piece, err := readHeader(b)
	if err == nil {
		err = t.takeAck(p, h.ack)
	}
	switch {
	case err != nil:
		return err
	case h.number <= p.received: // An acknowledgement, or it came on a queue pair before.
		t.asked(p, h)
		return nil
	case h.number > p.received+1:
		return fmt.Errorf("%w: message %d after %d", ErrMalformed, h.number, p.received)
	case (h.flags&flagPage != 0) != (payload != nil):
		return fmt.Errorf("%w: page announced: %v, there: %v", ErrMalformed, h.flags&flagPage != 0, payload != nil)
	}
	p.received = h.number
	control, whole, err := p.assemble(piece, h.flags&flagMore != 0)
	if err != nil {
		return err
	}
	if whole {
		t.deliver(p, control, payload)
	}
	t.deal(p, h)
	if len(p.held) > 0 && !p.isReady {
		p.isReady = true
		t.ready = append(t.ready, p)
	}
	return nil
}
