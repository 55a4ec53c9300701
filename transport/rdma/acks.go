package rdma

import "fmt"

// acknowledged notes that what goes out now carries an acknowledgement of everything.
func (s *sender) acknowledged(p *peer) { p.ackSent, p.pages, p.wantAck = p.dealt, 0, false }

// ackDue reports whether so much of the peer's window is used up that an acknowledgement goes out
// alone.
func (s *sender) ackDue(p *peer) bool {
	return p.wantAck || p.dealt-p.ackSent >= uint64(max(s.sizes.Window/2, 1)) || p.pages >= max(s.sizes.Slots/2, 1)
}

// acknowledge sends acknowledgements that nothing else has carried and that are due.
func (s *sender) acknowledge() {
	left := s.owed[:0]
	for _, p := range s.owed {
		if s.ackDue(p) && p.lost == nil && !s.sendAck(p, 0) {
			left = append(left, p)
			continue
		}
		p.owed = false
	}
	clear(s.owed[len(left):])
	s.owed = left
}

// sendAck sends an acknowledgement alone; with flagAck, it asks for one. It returns false if there
// is no room for it now.
func (s *sender) sendAck(p *peer, flags uint32) bool {
	switch p.path {
	case pathBase, pathChoose:
		return s.sendOnBase(p, header{flags: flags}, nil, nil)
	case pathLink:
	default:
		return true // Nothing was received on it.
	}
	if l := p.link; l.posted+1 > l.retired+uint64(s.sizes.SendRequests-signalEvery) {
		return false
	}
	s.requests = s.requests[:0]
	return s.postAck(p, flags)
}

// postAck posts an acknowledgement to a peer's queue pair, after what is in s.requests. It returns
// false if the queue pair has failed.
func (s *sender) postAck(p *peer, flags uint32) bool {
	l := p.link
	index := len(p.ring) + int(l.acks%ackReserve)
	l.acks++
	h := header{ack: p.dealt, slot: noSlot, flags: flags}
	h.put(s.block(p, index))
	l.said.remember(h, nil, int(l.terms.slots))
	s.appendSend(p, l, index, headerBytes)
	s.acknowledged(p)
	s.counts.BytesSent.Add(headerBytes)
	if err := s.post(l); err != nil {
		s.broke(p, err, true)
		return false
	}
	return true
}

// takeAck notes what the peer has dealt with, and gives its memory back.
func (s *sender) takeAck(p *peer, ack uint64) error {
	if ack > p.last {
		return fmt.Errorf("%w: it acknowledges message %d, and %d were sent", ErrMalformed, ack, p.last)
	}
	if ack <= p.acked {
		return nil
	}
	for n := p.acked + 1; n <= ack; n++ {
		f := &p.ring[p.place(n)]
		if f.number != n {
			continue // It went on the base transport.
		}
		if n > p.sent {
			// It came on a queue pair that has failed since, and need not be sent again.
			s.sentBytes(p, f.bytes, f.page)
		} else if f.page != nil && p.link != nil && p.path == pathLink {
			p.link.pages--
		}
		s.freeFlight(f)
	}
	p.acked = ack
	p.sent = max(p.sent, ack)
	if !p.queue.empty() || p.sent < p.last {
		s.list(p)
	}
	return nil
}
