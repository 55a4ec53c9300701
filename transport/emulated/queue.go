package emulated

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"dsmd/transport"
	"dsmd/transport/chassis"
)

const (
	// maxSpares bounds how many control parts are held back for reuse, and maxSpareBytes how long
	// they are: nearly all are much shorter.
	maxSpares, maxSpareBytes = 1024, 4096
	// shiftAfter is how many frames leave a queue before the others move to its beginning.
	shiftAfter = 1024
	// refusedPause is after how long a frame is offered to the base again that the base has refused
	// because of a backlog. Nothing wakes the reactor when the backlog has gone.
	refusedPause = time.Millisecond
)

// frame is one that Send has taken and the base has not.
type frame struct {
	due     time.Duration // since Transport.began
	control []byte
	page    *chassis.Payload // nil: none
}

func (f *frame) bytes() int {
	n := len(f.control)
	if f.page != nil {
		n += len(f.page.Page())
	}
	return n
}

// peer is another node, and the frames that are held for it.
type peer struct {
	id     transport.NodeID
	frames []frame // from head on, in the order of sending
	head   int
	bytes  int   // of the frames
	lost   error // why its incarnation is lost; nil: it is not, as far as is known here
}

// isEmpty reports whether nothing is held for the peer. Then it is not in Transport.held.
func (p *peer) isEmpty() bool { return p.head == len(p.frames) }

// hold queues a frame for a peer. page is the caller's again when it fails.
func (t *Transport) hold(p *peer, control []byte, page *chassis.Payload) error {
	f := frame{control: control, page: page}
	bytes := f.bytes()
	switch {
	case p.lost != nil:
		return fmt.Errorf("emulated: send to node %d: %w: %w", p.id, transport.ErrPeerDown, p.lost)
	case p.bytes+bytes > t.maxQueued:
		return fmt.Errorf("emulated: send to node %d: %w: %d bytes are held, %d are allowed", p.id, transport.ErrBacklog, p.bytes, t.maxQueued)
	}
	t.cardFree = max(t.cardFree, t.now()) + t.link.occupies(bytes)
	f.due, f.control = t.cardFree+t.link.Latency, append(t.spareControl(), control...)
	if page != nil {
		page.Queue()
		t.counts.PayloadsSent.Add(1)
	}
	if p.isEmpty() {
		t.held = append(t.held, p)
	}
	p.frames = append(p.frames, f)
	p.bytes += bytes
	t.counts.FramesSent.Add(1)
	t.counts.QueuedBytes.Add(int64(bytes))
	return nil
}

// spareControl is memory for a control part.
func (t *Transport) spareControl() []byte {
	last := len(t.spare) - 1
	if last < 0 {
		return nil
	}
	b := t.spare[last]
	t.spare = t.spare[:last]
	return b[:0]
}

// pop takes the first frame from a queue, and frees what it holds.
func (t *Transport) pop(p *peer) {
	f := &p.frames[p.head]
	bytes := f.bytes()
	if f.page != nil {
		t.pool.Put(f.page)
	}
	if len(t.spare) < maxSpares && cap(f.control) <= maxSpareBytes {
		t.spare = append(t.spare, f.control)
	}
	*f = frame{}
	p.bytes -= bytes
	t.counts.QueuedBytes.Add(-int64(bytes))
	if p.head++; p.isEmpty() || p.head >= shiftAfter {
		p.frames = slices.Delete(p.frames, 0, p.head)
		p.head = 0
	}
}

// handOver gives the base the frames that are due, and reports whether there was any.
func (t *Transport) handOver() bool {
	if len(t.held) == 0 {
		return false
	}
	return t.handOverUntil(t.now())
}

// handOverUntil gives the base the frames that are due by then, and reports whether there was any.
func (t *Transport) handOverUntil(now time.Duration) (given bool) {
	left := t.held[:0]
	for _, p := range t.held {
		for ; !p.isEmpty() && p.frames[p.head].due <= now; given = true {
			if !t.give(p) {
				p.frames[p.head].due = now + refusedPause
				break
			}
		}
		if !p.isEmpty() {
			left = append(left, p)
		}
	}
	clear(t.held[len(left):])
	t.held = left
	return given
}

// give gives the base the first frame for a peer, and reports whether the base has taken it or will
// never take it.
func (t *Transport) give(p *peer) bool {
	f := &p.frames[p.head]
	var payload transport.Payload
	if f.page != nil {
		payload = t.base.Lease(p.id)
		copy(payload.Bytes(), f.page.Page())
	}
	// If the peer is lost, Poll is about to report that. Its frames come to nothing.
	if err := t.base.Send(p.id, f.control, payload); errors.Is(err, transport.ErrBacklog) {
		return false
	}
	t.pop(p)
	return true
}

// lose drops what is held for a peer that is lost.
func (t *Transport) lose(p *peer, why error) {
	p.lost = why
	if p.isEmpty() {
		return
	}
	for !p.isEmpty() {
		t.pop(p)
	}
	t.held = slices.DeleteFunc(t.held, func(q *peer) bool { return q == p })
}

// nextDue is when the first frame is due.
func (t *Transport) nextDue() (due time.Duration, ok bool) {
	for _, p := range t.held {
		if first := p.frames[p.head].due; !ok || first < due {
			due, ok = first, true
		}
	}
	return due, ok
}
