package rdma

import (
	"fmt"

	"dsmd/transport"
	"dsmd/transport/chassis"
)

// passOn gives a frame to the base transport as it is.
func (t *Transport) passOn(p *peer, control []byte, payload transport.Payload) error {
	chassis.CheckControl(name, control)
	if !t.gate.Enter() { // The base may still be at work for Close.
		payload.Release()
		return transport.ErrClosed
	}
	defer t.gate.Leave()
	if err := t.flushPlain(p); err != nil {
		payload.Release()
		return err
	}
	t.baseWaits = true
	err := t.base.Send(p.id, control, payload)
	if err == nil {
		t.countSent(true)
	}
	return err
}

// sendPlain sends a frame to a peer that does not know RDMA. Its page, if any, was leased before
// that was known.
func (s *sender) sendPlain(p *peer, control []byte, page *chassis.Payload) error {
	payload := s.toBase(p, page)
	s.baseWaits = true
	if err := s.base.Send(p.id, control, payload); err != nil {
		return err
	}
	if page != nil {
		s.pool.Put(page)
	}
	return nil
}

// toBase copies a page into a payload of the base transport.
func (s *sender) toBase(p *peer, page *chassis.Payload) transport.Payload {
	if page == nil {
		return nil
	}
	payload := s.base.Lease(p.id)
	copy(payload.Bytes(), page.Page())
	return payload
}

// flushPlain sends frames that were queued before it was known that the peer does not know RDMA.
// Nothing may overtake those that remain after an error.
func (s *sender) flushPlain(p *peer) error {
	for !p.queue.empty() {
		control := s.scratch[:0]
		pieces := p.queue.list[p.queue.head:]
		n := 0
		for more := true; more; n++ { // The pieces of a frame are queued together.
			control, more = append(control, pieces[n].piece...), pieces[n].more
		}
		s.scratch = control
		page := pieces[n-1].page
		if err := s.sendPlain(p, control, page); err != nil {
			// It is lost, which will be reported, or has a backlog; the frame is put together again
			// then.
			return err
		}
		s.sentBytes(p, len(control)+n*headerBytes, page)
		for range n {
			s.reuse(p.queue.pop().piece)
		}
	}
	return nil
}

// flushBase sends messages on the base transport: first those that a queue pair has not carried to
// the end.
func (s *sender) flushBase(p *peer) {
	for p.sent < p.last {
		f, index := p.staged(p.sent + 1)
		block := s.block(p, index)
		if !s.sendOnBase(p, header{number: f.number, flags: f.flags}, block[headerBytes:f.bytes], f.page) {
			return
		}
		s.sentBytes(p, f.bytes, f.page)
		s.freeFlight(f)
	}
	for !p.queue.empty() {
		m := p.queue.first()
		if !s.sendOnBase(p, header{number: p.last + 1, flags: m.flags()}, m.piece, m.page) {
			return
		}
		p.last++
		s.sentBytes(p, headerBytes+len(m.piece), m.page)
		s.recycle(p.queue.pop())
		p.sent, p.safe = p.last, p.last
	}
}

// sendOnBase sends one message on the base transport, which does not lose it.
func (s *sender) sendOnBase(p *peer, h header, piece []byte, page *chassis.Payload) bool {
	h.ack, h.slot = p.dealt, noSlot
	frame := append(s.scratch[:0], byte(noteMessage))
	frame = append(frame, make([]byte, headerBytes)...)
	h.put(frame[1:])
	frame = append(frame, piece...)
	s.scratch = frame
	if !s.giveBase(p, frame, s.toBase(p, page)) {
		return false
	}
	s.acknowledged(p)
	if h.number != 0 {
		p.sent, p.safe = h.number, h.number
	}
	return true
}

// giveBase sends a frame of this package on the base transport.
func (s *sender) giveBase(p *peer, frame []byte, payload transport.Payload) bool {
	s.baseWaits = true
	err := s.base.Send(p.id, frame, payload)
	if err != nil {
		return false // The peer is lost, or has a backlog, and then it is tried again.
	}
	s.counts.baseFramesSent.Add(1)
	return true
}

// baseMessage takes a message that came on the base transport.
func (d *deliverer) baseMessage(p *peer, b []byte, payload transport.Payload) error {
	h, piece, err := readHeader(b)
	if err == nil {
		err = d.takeAck(p, h.ack)
	}
	switch {
	case err != nil:
		return err
	case h.number <= p.received: // An acknowledgement, or it came on a queue pair before.
		d.asked(p, h)
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
		d.deliver(p, control, payload)
	}
	d.deal(p, h)
	if len(p.parked) > 0 && !p.isReady {
		p.isReady = true
		d.ready = append(d.ready, p)
	}
	return nil
}

// pollBase asks the base transport, and the device for news of connections.
func (d *deliverer) pollBase() error {
	d.sinceBase = 0
	if d.broken == nil {
		d.setup()
	}
	_, err := d.base.Poll((*baseHandler)(d), d.limit-d.delivered)
	if err != nil && d.gate.Closing() {
		return transport.ErrClosed
	}
	d.receiveReady()
	return err
}
