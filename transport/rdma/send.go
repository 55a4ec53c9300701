package rdma

import (
	"fmt"
	"time"

	"dsmd/internal/verbs"
	"dsmd/transport"
	"dsmd/transport/chassis"
)

// sender sends messages, on queue pairs and on the base transport.
type sender struct {
	queues
	base      Base
	self      transport.NodeID
	maxQueued int
	broke     func(p *peer, reason error, tell bool) // gives up the queue pair of a peer

	unsent []*peer // those that something may wait for (peer.listed)
	others []*peer // the array that unsent has next
	// owed are those to which an acknowledgement was due; it may have gone with something else
	// (peer.owed).
	owed      []*peer
	requests  []verbs.SendRequest
	scratch   []byte   // a frame for the base transport
	spare     [][]byte // buffers of pieceBytes, at most maxSparePieces
	baseWaits bool     // something was given to the base transport since its last Flush

	clock      clock
	watchPause time.Duration
	// watchAt is when to look at the queue pairs next; zero: nothing was sent since all was
	// acknowledged.
	watchAt time.Time
}

// Lease implements transport.Transport. The payload is a slot of registered memory, from which the
// device writes it into the peer's memory; or an ordinary buffer, if this peer has left many pages
// unread.
func (t *Transport) Lease(to transport.NodeID) transport.Payload {
	p := t.peer(to)
	if p.plain {
		return t.base.Lease(to)
	}
	return t.pool.lease(to, p.index)
}

// Send implements transport.Transport.
func (t *Transport) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	p := t.peer(to)
	if p.plain && payload != nil && !t.pool.Has(payload) {
		return t.passOn(p, control, payload)
	}
	return t.pool.Send(&t.gate, to, control, payload, func(page *chassis.Payload) error { return t.enqueue(p, control, page) })
}

// enqueue appends a frame to what goes to a peer. page is the caller's again when it fails.
func (s *sender) enqueue(p *peer, control []byte, page *chassis.Payload) error {
	if p.path == pathPlain {
		err := s.flushPlain(p)
		if err == nil {
			err = s.sendPlain(p, control, page)
		}
		if err == nil {
			s.countSent(page != nil)
		}
		return err
	}
	pieces := (len(control) + pieceBytes - 1) / pieceBytes
	frameBytes := len(control) + pieces*headerBytes
	if page != nil {
		frameBytes += s.pageBytes
	}
	if p.lost != nil || p.queued+frameBytes > s.maxQueued {
		if err := s.makeRoom(p, frameBytes); err != nil {
			return err
		}
	}
	if page != nil {
		page.Queue()
	}
	s.countSent(page != nil)
	s.counts.QueuedBytes.Add(int64(frameBytes))
	p.queued += frameBytes
	for len(control) > pieceBytes {
		s.push(p, message{piece: control[:pieceBytes], more: true})
		control = control[pieceBytes:]
	}
	s.push(p, message{piece: control, page: page})
	s.list(p)
	return nil
}

// countSent counts a frame that was taken.
func (s *sender) countSent(withPage bool) {
	s.counts.FramesSent.Add(1)
	if withPage {
		s.counts.PayloadsSent.Add(1)
	}
}

// makeRoom sends what waits for the peer as far as it goes, and returns why a frame of this length
// cannot be queued even then; nil: it can.
func (s *sender) makeRoom(p *peer, frameBytes int) error {
	if p.lost == nil {
		s.flushPeer(p)
	}
	switch {
	case p.lost != nil:
		return fmt.Errorf("rdma: send to node %d: %w: %w", p.id, transport.ErrPeerDown, p.lost)
	case p.queued+frameBytes > s.maxQueued:
		return fmt.Errorf("rdma: send to node %d: %w: %d bytes wait, %d are allowed", p.id, transport.ErrBacklog, p.queued, s.maxQueued)
	}
	return nil
}

// push takes one message over: into a block if nothing waits before it and a block is free, else
// into the queue.
func (s *sender) push(p *peer, m message) {
	if p.path == pathLink && p.queue.empty() && s.stage(p, m) {
		return
	}
	buffer := s.buffer()
	m.piece = buffer[:copy(buffer, m.piece)]
	p.queue.push(m)
}

// stage gives a message its number and its block. It returns false if the peer has not acknowledged
// enough for that.
func (s *sender) stage(p *peer, m message) bool {
	if p.last >= p.acked+uint64(len(p.ring)) {
		return false
	}
	if m.page != nil && !s.pool.toSlot(m.page, p.index) {
		return false
	}
	p.last++
	index := p.place(p.last)
	// The header is put there when the message is posted.
	n := copy(s.block(p, index)[headerBytes:], m.piece)
	p.ring[index] = flight{number: p.last, bytes: headerBytes + n, flags: m.flags(), page: m.page}
	return true
}

// place is where in the ring a message is, and which of the blocks for the peer it has. Blocks of
// acknowledgements follow.
func (p *peer) place(number uint64) int { return int(number % uint64(len(p.ring))) }

// staged is a message of the ring that must be there.
func (p *peer) staged(number uint64) (f *flight, index int) {
	index = p.place(number)
	f = &p.ring[index]
	if f.number != number {
		p.misplaced(number, f)
	}
	return f, index
}

func (p *peer) misplaced(number uint64, f *flight) {
	panic(fmt.Sprintf("rdma: the place of message %d for node %d holds message %d", number, p.id, f.number))
}

// flush sends to every peer that something waits for, and forgets those that nothing is left for.
func (s *sender) flush() {
	if len(s.unsent) > 0 {
		list := s.unsent
		s.unsent = s.others[:0]
		for i, p := range list {
			list[i], p.listed = nil, false
			s.flushPeer(p)
			if !p.queue.empty() || p.sent < p.last {
				s.list(p)
			}
		}
		s.others = list
	}
	if s.baseWaits {
		s.baseWaits = false
		s.base.Flush()
	}
}

// flushPeer sends what waits for a peer, as far as it goes now.
func (s *sender) flushPeer(p *peer) {
	switch p.path {
	case pathLink:
		for s.postMessages(p) {
		}
	case pathBase:
		s.flushBase(p)
	case pathPlain:
		_ = s.flushPlain(p) // what remains is tried again
	}
}

// sentBytes takes bytes off what waits for a peer.
func (s *sender) sentBytes(p *peer, bytes int, page *chassis.Payload) {
	if page != nil {
		bytes += s.pageBytes
	}
	p.queued -= bytes
	s.counts.QueuedBytes.Add(-int64(bytes))
}

// postMessages posts messages to the peer's queue pair, in one chain. It returns true if more wait
// than the ring has room for.
func (s *sender) postMessages(p *peer) bool {
	for !p.queue.empty() && s.stage(p, *p.queue.first()) {
		s.reuse(p.queue.pop().piece)
	}
	if p.sent == p.last {
		return false
	}
	// What is acknowledged below must be free, receives included.
	if !s.repost(lazyBlocks) {
		return false
	}
	l := p.link
	s.requests = s.requests[:0]
	for p.sent < p.last && len(s.requests) < maxChain && s.mayPost(p, l) {
		s.appendMessage(p, l, p.sent+1)
		p.sent++
	}
	if len(s.requests) == 0 {
		return false
	}
	s.acknowledged(p)
	if err := s.post(l); err != nil {
		s.broke(p, err, true)
		return false
	}
	s.watch()
	return !p.queue.empty()
}

// maxChain bounds how many requests one call posts.
const maxChain = 64

// mayPost reports whether the peer and the device have room for the next message.
func (s *sender) mayPost(p *peer, l *link) bool {
	f := &p.ring[p.place(p.sent+1)]
	switch {
	case p.sent+1 > p.acked+uint64(l.terms.window):
		return false
	case f.page != nil && l.pages >= int(l.terms.slots):
		return false
	}
	return l.posted+uint64(len(s.requests))+2 <= l.retired+uint64(s.sizes.SendRequests-signalEvery)
}

// appendMessage appends the requests of a message, and of its page.
func (s *sender) appendMessage(p *peer, l *link, number uint64) {
	f, index := p.staged(number)
	block := s.block(p, index)
	piece := block[headerBytes:f.bytes]
	s.sentBytes(p, f.bytes, f.page)
	s.counts.messagesSent.Add(1)
	h := header{number: number, ack: p.dealt, slot: noSlot, flags: f.flags}
	if f.page != nil {
		// The peer has dealt with all of them. The first slot is the one that is in its caches.
		if l.pages == 0 {
			l.said.slot = 0
		}
		h.slot = uint32(l.said.slot)
		if f.page.Slot == s.pool.bounce() {
			h.flags |= flagAck
		}
		if s.appendPage(p, l, f.page, h, piece) {
			s.counts.shortSent.Add(1)
			return
		}
	}
	s.appendSend(p, l, index, f.bytes)
	l.said.remember(h, piece, int(l.terms.slots))
	h.put(block)
	s.counts.BytesSent.Add(uint64(f.bytes))
}

// appendPage appends the request that writes a page into the peer's next slot. It returns true if
// the message about the page is in the immediate value. Else a send must follow, and whoever sees
// that finds the page.
func (s *sender) appendPage(p *peer, l *link, page *chassis.Payload, h header, piece []byte) (short bool) {
	write := s.writePage(p, l, page.Slot)
	if s.fabric.immediate() {
		if write.Imm, short = l.said.abridge(h, piece, int(l.terms.slots)); short {
			write.Op = verbs.OpWriteImm
		}
	}
	s.requests = append(s.requests, write)
	l.pages++
	s.counts.writtenSent.Add(1)
	s.counts.BytesSent.Add(uint64(s.pageBytes))
	return short
}

// writePage is the request that writes what is in a slot here into the peer's next slot.
func (s *sender) writePage(p *peer, l *link, slot int) verbs.SendRequest {
	return verbs.SendRequest{
		Op: verbs.OpWrite, SGEs: 1, RemoteAddr: l.terms.address + uint64(l.said.slot*s.sizes.SlotBytes), RKey: l.terms.key,
		SGE: [verbs.MaxSGE]verbs.SGE{s.pool.slots.sge(s.pool.place(p.index, slot), s.pageBytes)},
	}
}

// appendSend appends the request that sends what is in a block.
func (s *sender) appendSend(p *peer, l *link, blockIndex, bytes int) {
	r := verbs.SendRequest{Op: verbs.OpSend, SGEs: 1, SGE: [verbs.MaxSGE]verbs.SGE{s.sendBlocks.sge(s.blockOffset(p, blockIndex), bytes)}}
	if bytes <= l.end.maxInline() {
		r.Flags |= verbs.Inline
	}
	s.requests = append(s.requests, r)
}

// post posts t.requests. Of every signalEvery requests the one that ends a message has a
// completion, which retires those before it.
func (s *sender) post(l *link) error {
	for i := range s.requests {
		l.posted++
		l.unsignalled++
		r := &s.requests[i]
		if r.Op != verbs.OpWrite && l.unsignalled >= signalEvery {
			r.Flags |= verbs.Signaled
			r.ID = l.posted
			l.unsignalled = 0
		}
	}
	s.counts.SendCalls.Add(1)
	return l.end.post(s.requests)
}

// list notes that something may wait for the peer.
func (s *sender) list(p *peer) {
	if !p.listed {
		p.listed = true
		s.unsent = append(s.unsent, p)
	}
}

// oweAck notes that an acknowledgement is due.
func (s *sender) oweAck(p *peer) {
	if !p.owed {
		p.owed = true
		s.owed = append(s.owed, p)
	}
}

func (s *sender) freeFlight(f *flight) {
	if f.page != nil && !s.gate.Closing() {
		s.pool.Put(f.page)
	}
	*f = flight{}
}

// buffer returns a buffer for a piece.
func (s *sender) buffer() []byte {
	if last := len(s.spare) - 1; last >= 0 {
		b := s.spare[last]
		s.spare = s.spare[:last]
		return b
	}
	return make([]byte, pieceBytes)
}

// recycle takes a message's memory back that will not be sent.
func (s *sender) recycle(m message) {
	s.reuse(m.piece)
	if m.page != nil && !s.gate.Closing() {
		s.pool.Put(m.page)
	}
}

func (s *sender) reuse(piece []byte) {
	if len(s.spare) < maxSparePieces {
		s.spare = append(s.spare, piece[:pieceBytes])
	}
}
