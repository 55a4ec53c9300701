package tcp

import (
	"dsmd/internal/netio"
	"dsmd/transport/chassis"
)

const (
	// chunkBytes is how much control data one chunk holds: some hundred messages, so that a batch
	// of small frames is one piece of memory for the kernel.
	chunkBytes = 32 << 10
	// maxSpareChunks bounds how many unused chunks are held back for reuse (2 MiB); more go to the
	// garbage collector. A peer that keeps up needs one at a time.
	maxSpareChunks = 64
	// segmentsBeforeMove is how many confirmed segments may lie at the front of a queue before the
	// others are moved over them. Moving only when they are also the larger part costs each segment
	// at most one move.
	segmentsBeforeMove = 64
)

// chunk holds headers and control parts of queued frames, one after the other.
type chunk struct {
	buf      [chunkBytes]byte
	used     int
	segments int // how many queued segments point into buf
}

// chunkPool holds spare chunks, for all peers together, so that an idle peer costs none.
type chunkPool struct{ spare []*chunk }

func (pool *chunkPool) get() *chunk {
	last := len(pool.spare) - 1
	if last < 0 {
		return new(chunk)
	}
	c := pool.spare[last]
	pool.spare = pool.spare[:last]
	return c
}

func (pool *chunkPool) put(c *chunk) {
	c.used = 0
	if len(pool.spare) < maxSpareChunks {
		pool.spare = append(pool.spare, c)
	}
}

// segment is a piece of a queue that lies in one place: a part of a chunk, or a whole page.
type segment struct {
	data  []byte // what the peer has not confirmed
	chunk *chunk // exactly one of chunk and page is set
	page  *chassis.Payload
}

// sendQueue is the stream of bytes to one peer: what it has not confirmed, and of that what still
// has to be sent. Positions count the bytes of the stream from its start, over all connections.
// What was sent stays until it is confirmed, because it is sent again when the connection breaks.
// The queue's methods allocate only while it grows longer than it ever was.
type sendQueue struct {
	chunks   *chunkPool
	segments []segment // those from head on are not confirmed
	head     int
	tail     *chunk // where the next control part goes; nil: take a new chunk

	// sent is what the connection that there is has taken, reached what any connection ever has:
	// the peer may have it all. Invariant: confirmed <= sent <= reached <= end.
	confirmed, sent, reached, end uint64
	// known is what the peer is known to have. It runs ahead of confirmed when a new connection was
	// offered less than an earlier one brought later: then it is sent again all the same, because
	// the new one counts from where its greeting said. Invariant: known <= reached.
	known uint64

	// The first byte to send is number offset of segment cursor. Invariant: head <= cursor <=
	// len(segments).
	cursor, offset int
}

// empty reports whether everything was sent.
func (q *sendQueue) empty() bool { return q.sent == q.end }

// unsent is how many bytes have to be sent.
func (q *sendQueue) unsent() int { return int(q.end - q.sent) }

// unconfirmed is how many bytes the peer has not confirmed.
func (q *sendQueue) unconfirmed() int { return int(q.end - q.confirmed) }

// write appends a copy of b.
func (q *sendQueue) write(b []byte) {
	q.end += uint64(len(b))
	for len(b) > 0 {
		if q.tail == nil || q.tail.used == chunkBytes {
			q.tail = q.chunks.get()
		}
		c := q.tail
		n := copy(c.buf[c.used:], b)
		if last := q.last(); last != nil && last.chunk == c {
			if q.cursor == len(q.segments) { // All of it was sent, and now it grows.
				q.cursor, q.offset = q.cursor-1, len(last.data)
			}
			// A chunk is filled from front to back, so the new bytes follow those of its last
			// segment.
			last.data = last.data[:len(last.data)+n]
		} else {
			q.segments = append(q.segments, segment{data: c.buf[c.used : c.used+n], chunk: c})
			c.segments++
		}
		c.used += n
		b = b[n:]
	}
}

// attach appends a page without copying it and owns it from here on.
func (q *sendQueue) attach(p *chassis.Payload) {
	q.segments = append(q.segments, segment{data: p.Page(), page: p})
	q.end += uint64(len(p.Page()))
}

func (q *sendQueue) last() *segment {
	if len(q.segments) == q.head {
		return nil
	}
	return &q.segments[len(q.segments)-1]
}

// gather fills v with as much of what is to be sent next as it takes.
func (q *sendQueue) gather(v *netio.Vector) {
	v.Reset()
	offset := q.offset
	for i := q.cursor; i < len(q.segments) && v.Add(q.segments[i].data[offset:]); i++ {
		offset = 0
	}
}

// copyNext copies what is to be sent next into b and returns how much that was.
func (q *sendQueue) copyNext(b []byte) int {
	n, offset := 0, q.offset
	for i := q.cursor; i < len(q.segments) && n < len(b); i++ {
		n += copy(b[n:], q.segments[i].data[offset:])
		offset = 0
	}
	return n
}

// advance notes that the next n bytes were sent.
// Preconditions: n <= q.unsent().
func (q *sendQueue) advance(n int) {
	q.pass(n)
	if q.known > q.confirmed {
		q.release(min(q.known, q.sent))
	}
}

// pass moves the first byte to send.
func (q *sendQueue) pass(n int) {
	q.sent += uint64(n)
	q.reached = max(q.reached, q.sent)
	for n += q.offset; q.cursor < len(q.segments) && n >= len(q.segments[q.cursor].data); q.cursor++ {
		n -= len(q.segments[q.cursor].data)
	}
	q.offset = n
}

// confirm notes that the peer has received what comes before a position, and gives back what was
// sent of it. Preconditions: position <= q.reached.
func (q *sendQueue) confirm(position uint64) {
	if position > q.known {
		q.known = position
		q.release(min(position, q.sent))
	}
}

// resume begins a new connection at a position, up to which the peer has everything.
// Preconditions: q.confirmed <= position <= q.reached.
func (q *sendQueue) resume(position uint64) {
	if position > q.sent {
		q.pass(int(position - q.sent))
	}
	q.known = max(q.known, position)
	q.release(position)
	q.rewind()
}

// release gives back what comes before a position.
// Preconditions: q.confirmed <= position <= q.sent.
func (q *sendQueue) release(position uint64) {
	n := int(position - q.confirmed)
	q.confirmed = position
	for n > 0 {
		s := &q.segments[q.head]
		if n < len(s.data) {
			s.data = s.data[n:]
			if q.cursor == q.head {
				q.offset -= n
			}
			break
		}
		n -= len(s.data)
		q.dropFirst() // All of it was sent, so the cursor stands behind it.
	}
	q.closeGap()
}

// rewind makes everything that is not confirmed be sent again.
func (q *sendQueue) rewind() { q.sent, q.cursor, q.offset = q.confirmed, q.head, 0 }

// discard removes everything.
func (q *sendQueue) discard() {
	for q.head < len(q.segments) {
		q.dropFirst()
	}
	q.confirmed, q.reached, q.known = q.end, q.end, q.end
	q.rewind()
	q.closeGap()
}

// dropFirst removes the first segment and gives its memory back.
func (q *sendQueue) dropFirst() {
	s := &q.segments[q.head]
	if s.page != nil {
		s.page.Free()
	} else if s.chunk.segments--; s.chunk.segments == 0 {
		if q.tail == s.chunk {
			q.tail = nil
		}
		q.chunks.put(s.chunk)
	}
	*s = segment{}
	q.head++
}

func (q *sendQueue) closeGap() {
	left := len(q.segments) - q.head
	if left > 0 && (q.head < segmentsBeforeMove || q.head <= left) {
		return
	}
	copy(q.segments, q.segments[q.head:])
	clear(q.segments[left:])
	q.segments = q.segments[:left]
	q.cursor -= q.head
	q.head = 0
}
