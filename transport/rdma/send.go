package rdma

import (
	"fmt"

	"dsmd/internal/verbs"
	"dsmd/transport"
)

// Lease implements transport.Transport. The payload is a slot of registered memory, from which the device writes it into the
// peer's memory; or an ordinary buffer, if this peer has left many pages unread.
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
	if len(control) == 0 || len(control) > transport.MaxControlBytes {
		panic(fmt.Sprintf("rdma: Send of a control part of %d bytes; it must have 1 to %d", len(control), transport.MaxControlBytes))
	}
	if _, ours := payload.(*page); payload != nil && !ours && p.plain {
		return t.passOn(to, control, payload)
	}
	var page *page
	if payload != nil {
		page = t.takeBack(to, payload)
	}
	err := transport.ErrClosed
	if t.enter() {
		err = t.enqueue(p, control, page)
		t.leave()
	}
	if err != nil && page != nil {
		t.pool.put(page)
	}
	return err
}

// passOn gives a frame to the base transport as it is.
func (t *Transport) passOn(to transport.NodeID, control []byte, payload transport.Payload) error {
	if !t.enter() { // The base may still be at work for Close.
		payload.Release()
		return transport.ErrClosed
	}
	defer t.leave()
	t.baseWaits = true
	return t.base.Send(to, control, payload)
}

// takeBack checks that payload is one that the caller may send to the peer.
func (t *Transport) takeBack(to transport.NodeID, payload transport.Payload) *page {
	p, ok := payload.(*page)
	if !ok || p.pool != &t.pool {
		panic(fmt.Sprintf("rdma: Send to node %d of a payload (%T) that this transport has not leased", to, payload))
	}
	if p.state != pageLeased || p.to != to {
		panic(fmt.Sprintf("rdma: Send to node %d of a payload that is %s (for node %d); lease one for this peer", to, pageStateNames[p.state], p.to))
	}
	return p
}

// enqueue appends a frame to what goes to a peer. page is the caller's again when it fails.
func (t *Transport) enqueue(p *peer, control []byte, page *page) error {
	if p.path == pathPlain {
		return t.sendPlain(p, control, page)
	}
	pieces := (len(control) + pieceBytes - 1) / pieceBytes
	frameBytes := len(control) + pieces*headerBytes
	if page != nil {
		frameBytes += t.pageBytes
	}
	if p.lost != nil || p.queued+frameBytes > t.maxQueued {
		if err := t.makeRoom(p, frameBytes); err != nil {
			return err
		}
	}
	if page != nil {
		page.state = pageQueued
		t.counts.payloadsSent.Add(1)
	}
	t.counts.framesSent.Add(1)
	t.counts.queuedBytes.Add(int64(frameBytes))
	p.queued += frameBytes
	for len(control) > pieceBytes {
		t.push(p, message{piece: control[:pieceBytes], more: true})
		control = control[pieceBytes:]
	}
	t.push(p, message{piece: control, page: page})
	t.list(p)
	return nil
}

// makeRoom says whether a frame of this length may be queued for the peer after what waits has gone as far as it can.
func (t *Transport) makeRoom(p *peer, frameBytes int) error {
	if p.lost == nil {
		t.flushPeer(p)
	}
	switch {
	case p.lost != nil:
		return fmt.Errorf("rdma: send to node %d: %w: %w", p.id, transport.ErrPeerDown, p.lost)
	case p.queued+frameBytes > t.maxQueued:
		return fmt.Errorf("rdma: send to node %d: %w: %d bytes wait, %d are allowed", p.id, transport.ErrBacklog, p.queued, t.maxQueued)
	}
	return nil
}

// push takes one message over: into a block, if nothing is before it and there is one, else into the queue.
func (t *Transport) push(p *peer, m message) {
	if p.path == pathLink && p.queue.empty() && t.stage(p, m) {
		return
	}
	buffer := t.buffer()
	m.piece = buffer[:copy(buffer, m.piece)]
	p.queue.push(m)
}

// sendPlain sends a frame to a peer that does not know RDMA. Its page, if any, was leased before that was known.
func (t *Transport) sendPlain(p *peer, control []byte, page *page) error {
	payload := t.toBase(p, page)
	t.baseWaits = true
	if err := t.base.Send(p.id, control, payload); err != nil {
		return err
	}
	if page != nil {
		t.pool.put(page)
	}
	return nil
}

// toBase copies a page into a payload of the base transport.
func (t *Transport) toBase(p *peer, page *page) transport.Payload {
	if page == nil {
		return nil
	}
	payload := t.base.Lease(p.id)
	copy(payload.Bytes(), page.data)
	return payload
}

// stage gives a message its number and its block. It returns false if the peer has not acknowledged enough for that.
func (t *Transport) stage(p *peer, m message) bool {
	if p.last >= p.acked+uint64(len(p.ring)) {
		return false
	}
	if m.page != nil && !t.pool.settle(m.page, p.index) {
		return false
	}
	p.last++
	index := p.place(p.last)
	n := copy(t.block(p, index)[headerBytes:], m.piece) // The header is put there when the message is posted.
	p.ring[index] = flight{number: p.last, bytes: headerBytes + n, flags: m.flags(), page: m.page}
	return true
}

// place is where in the ring a message is, and which of the blocks for the peer it has. Blocks of acknowledgements follow.
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

func (t *Transport) blockOffset(p *peer, index int) int {
	return (p.index*(t.sizes.Window+ackReserve) + index) * blockBytes
}

func (t *Transport) block(p *peer, index int) []byte {
	at := t.blockOffset(p, index)
	return t.sendBlocks.bytes[at : at+blockBytes]
}

// flush sends to every peer that something waits for, and forgets those that nothing is left for.
func (t *Transport) flush() {
	if len(t.unsent) > 0 {
		list := t.unsent
		t.unsent = t.others[:0]
		for i, p := range list {
			list[i], p.listed = nil, false
			t.flushPeer(p)
			if !p.queue.empty() || p.sent < p.last {
				t.list(p)
			}
		}
		t.others = list
	}
	if t.baseWaits {
		t.baseWaits = false
		t.base.Flush()
	}
}

// flushPeer sends what waits for a peer, as far as it goes now.
func (t *Transport) flushPeer(p *peer) {
	switch p.path {
	case pathLink:
		for t.postMessages(p) {
		}
	case pathBase:
		t.flushBase(p)
	case pathPlain:
		t.flushPlain(p)
	}
}

// sentBytes takes bytes off what waits for a peer.
func (t *Transport) sentBytes(p *peer, bytes int, page *page) {
	if page != nil {
		bytes += t.pageBytes
	}
	p.queued -= bytes
	t.counts.queuedBytes.Add(-int64(bytes))
}

// flushPlain sends frames that were queued before it was known that the peer does not know RDMA.
func (t *Transport) flushPlain(p *peer) {
	for !p.queue.empty() {
		control := t.scratch[:0]
		pieces := p.queue.list[p.queue.head:]
		n := 0
		for more := true; more; n++ { // The pieces of a frame are queued together.
			control, more = append(control, pieces[n].piece...), pieces[n].more
		}
		t.scratch = control
		page := pieces[n-1].page
		if err := t.sendPlain(p, control, page); err != nil {
			return // It is lost, which will be reported, or has a backlog; the frame is put together again then.
		}
		t.sentBytes(p, len(control)+n*headerBytes, page)
		for range n {
			t.reuse(p.queue.pop().piece)
		}
	}
}

// flushBase sends messages on the base transport: first those that a queue pair has not carried to the end.
func (t *Transport) flushBase(p *peer) {
	for p.sent < p.last {
		f, index := p.staged(p.sent + 1)
		block := t.block(p, index)
		if !t.sendOnBase(p, header{number: f.number, flags: f.flags}, block[headerBytes:f.bytes], f.page) {
			return
		}
		t.sentBytes(p, f.bytes, f.page)
		t.freeFlight(f)
	}
	for !p.queue.empty() {
		m := p.queue.first()
		if !t.sendOnBase(p, header{number: p.last + 1, flags: m.flags()}, m.piece, m.page) {
			return
		}
		p.last++
		t.sentBytes(p, headerBytes+len(m.piece), m.page)
		t.recycle(p.queue.pop())
		p.sent, p.safe = p.last, p.last
	}
}

// sendOnBase sends one message on the base transport, which does not lose it.
func (t *Transport) sendOnBase(p *peer, h header, piece []byte, page *page) bool {
	h.ack, h.slot = p.dealt, noSlot
	frame := append(t.scratch[:0], byte(noteMessage))
	frame = append(frame, make([]byte, headerBytes)...)
	h.put(frame[1:])
	frame = append(frame, piece...)
	t.scratch = frame
	if !t.giveBase(p, frame, t.toBase(p, page)) {
		return false
	}
	t.acknowledged(p)
	if h.number != 0 {
		p.sent, p.safe = h.number, h.number
	}
	return true
}

// giveBase sends a frame of this package on the base transport.
func (t *Transport) giveBase(p *peer, frame []byte, payload transport.Payload) bool {
	t.baseWaits = true
	err := t.base.Send(p.id, frame, payload)
	if err != nil {
		return false // The peer is lost, or has a backlog, and then it is tried again.
	}
	t.counts.baseFramesSent.Add(1)
	if payload != nil {
		t.counts.basePayloadsSent.Add(1)
	}
	return true
}

// postMessages posts messages to the peer's queue pair, in one chain, and returns whether more wait than had room in the ring.
func (t *Transport) postMessages(p *peer) bool {
	for !p.queue.empty() && t.stage(p, *p.queue.first()) {
		t.reuse(p.queue.pop().piece)
	}
	if p.sent == p.last {
		return false
	}
	// What is acknowledged below must be free, receives included.
	if !t.repost(lazyBlocks) {
		return false
	}
	l := p.link
	t.requests = t.requests[:0]
	for p.sent < p.last && len(t.requests) < maxChain && t.mayPost(p, l) {
		t.appendMessage(p, l, p.sent+1)
		p.sent++
	}
	if len(t.requests) == 0 {
		return false
	}
	t.acknowledged(p)
	if err := t.post(l); err != nil {
		t.breakLink(p, err, true)
		return false
	}
	t.watch()
	return !p.queue.empty()
}

// maxChain bounds how many requests one call posts.
const maxChain = 64

// mayPost says whether the peer and the device have room for the next message.
func (t *Transport) mayPost(p *peer, l *link) bool {
	f := &p.ring[p.place(p.sent+1)]
	switch {
	case p.sent+1 > p.acked+uint64(l.terms.window):
		return false
	case f.page != nil && l.pages >= l.terms.slots:
		return false
	}
	return l.posted+uint64(len(t.requests))+2 <= l.retired+uint64(t.sizes.SendRequests-signalEvery)
}

// appendMessage appends the requests of a message, and of its page.
func (t *Transport) appendMessage(p *peer, l *link, number uint64) {
	f, index := p.staged(number)
	block := t.block(p, index)
	piece := block[headerBytes:f.bytes]
	t.sentBytes(p, f.bytes, f.page)
	t.counts.messagesSent.Add(1)
	h := header{number: number, ack: p.dealt, slot: noSlot, flags: f.flags}
	if f.page != nil {
		if l.pages == 0 { // The peer has dealt with all of them. The first slot is the one that is in its caches.
			l.said.slot = 0
		}
		h.slot = uint32(l.said.slot)
		if f.page.slot == t.pool.bounce() {
			h.flags |= flagAck
		}
		if t.appendPage(p, l, f.page, h, piece) {
			t.counts.shortSent.Add(1)
			return
		}
	}
	t.appendSend(p, l, index, f.bytes)
	l.said.remember(h, piece, l.terms.slots)
	h.put(block)
	t.counts.bytesSent.Add(uint64(f.bytes))
}

// appendPage appends the request that writes a page into the peer's next slot. It returns whether the message about it is in the immediate value;
// else a send must follow, and whoever sees that finds the page.
func (t *Transport) appendPage(p *peer, l *link, page *page, h header, piece []byte) (short bool) {
	write := verbs.SendRequest{
		Op: verbs.OpWrite, SGEs: 1, RemoteAddr: l.terms.address + uint64(l.said.slot*t.sizes.SlotBytes), RKey: l.terms.key,
		SGE: [verbs.MaxSGE]verbs.SGE{t.pool.slots.sge(t.pool.place(p.index, page.slot), t.pageBytes)},
	}
	if t.fabric.immediate() {
		if write.Imm, short = l.said.abridge(h, piece, l.terms.slots); short {
			write.Op = verbs.OpWriteImm
		}
	}
	t.requests = append(t.requests, write)
	l.pages++
	t.counts.writtenSent.Add(1)
	t.counts.bytesSent.Add(uint64(t.pageBytes))
	return short
}

// appendSend appends the request that sends what is in a block.
func (t *Transport) appendSend(p *peer, l *link, blockIndex, bytes int) {
	r := verbs.SendRequest{Op: verbs.OpSend, SGEs: 1, SGE: [verbs.MaxSGE]verbs.SGE{t.sendBlocks.sge(t.blockOffset(p, blockIndex), bytes)}}
	if bytes <= l.end.maxInline() {
		r.Flags |= verbs.Inline
	}
	t.requests = append(t.requests, r)
}

// post posts t.requests. Of every signalEvery requests the one that ends a message has a completion, which retires those before it.
func (t *Transport) post(l *link) error {
	for i := range t.requests {
		l.posted++
		l.unsignalled++
		r := &t.requests[i]
		if r.Op != verbs.OpWrite && l.unsignalled >= signalEvery {
			r.Flags |= verbs.Signaled
			r.ID = l.posted
			l.unsignalled = 0
		}
	}
	t.counts.posts.Add(1)
	return l.end.post(t.requests)
}

// acknowledged notes that what goes out now carries an acknowledgement of everything.
func (t *Transport) acknowledged(p *peer) { p.ackSent, p.pages, p.wantAck = p.dealt, 0, false }

// ackDue says whether so much of the peer's window is used up that an acknowledgement goes out alone.
func (t *Transport) ackDue(p *peer) bool {
	return p.wantAck || p.dealt-p.ackSent >= uint64(max(t.sizes.Window/2, 1)) || p.pages >= max(t.sizes.Slots/2, 1)
}

// acknowledge sends acknowledgements that nothing else has carried and that are due.
func (t *Transport) acknowledge() {
	left := t.owed[:0]
	for _, p := range t.owed {
		if t.ackDue(p) && p.lost == nil && !t.sendAck(p, 0) {
			left = append(left, p)
			continue
		}
		p.owed = false
	}
	clear(t.owed[len(left):])
	t.owed = left
}

// sendAck sends an acknowledgement alone; with flagAck, it asks for one. It returns false if there is no room for it now.
func (t *Transport) sendAck(p *peer, flags uint32) bool {
	switch p.path {
	case pathBase, pathChoose:
		return t.sendOnBase(p, header{flags: flags}, nil, nil)
	case pathLink:
	default:
		return true // Nothing was received on it.
	}
	l := p.link
	index := len(p.ring) + int(l.acks%ackReserve)
	if l.posted+1 > l.retired+uint64(t.sizes.SendRequests-signalEvery) {
		return false
	}
	l.acks++
	h := header{ack: p.dealt, slot: noSlot, flags: flags}
	h.put(t.block(p, index))
	l.said.remember(h, nil, l.terms.slots)
	t.requests = t.requests[:0]
	t.appendSend(p, l, index, headerBytes)
	t.acknowledged(p)
	t.counts.bytesSent.Add(headerBytes)
	if err := t.post(l); err != nil {
		t.breakLink(p, err, true)
		return false
	}
	return true
}

// takeAck notes what the peer has dealt with, and gives its memory back.
func (t *Transport) takeAck(p *peer, ack uint64) error {
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
			t.sentBytes(p, f.bytes, f.page)
		} else if f.page != nil && p.link != nil && p.path == pathLink {
			p.link.pages--
		}
		t.freeFlight(f)
	}
	p.acked = ack
	p.sent = max(p.sent, ack)
	if !p.queue.empty() || p.sent < p.last {
		t.list(p)
	}
	return nil
}
