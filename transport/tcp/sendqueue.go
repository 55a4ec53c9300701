package tcp

import "dsmd/internal/netio"

const (
	// chunkBytes is how much control data one chunk holds: some hundred messages, so that a batch of
	// small frames is one piece of memory for the kernel.
	chunkBytes = 32 << 10
	// maxSpareChunks bounds how many unused chunks are held back for reuse (2 MiB); more go to the
	// garbage collector. A peer that keeps up needs one at a time.
	maxSpareChunks = 64
	// segmentsBeforeMove is how many sent segments may lie at the front of a queue before the others
	// are moved over them. Moving only when they are also the larger part costs each segment
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
	data  []byte // what is left to send
	chunk *chunk // exactly one of chunk and page is set
	page  *page
}

// sendQueue is what waits to be sent to one peer, in order. Its methods allocate only while it
// grows longer than it ever was.
type sendQueue struct {
	chunks   *chunkPool
	segments []segment // those from head on are queued
	head     int
	tail     *chunk // where the next control part goes; nil: take a new chunk
	bytes    int    // sum of the lengths of all queued segments
	orphaned bool   // sent pages are not given back: Close sends them, and the pool is the reactor's
}

func (q *sendQueue) empty() bool { return q.bytes == 0 }

// write appends a copy of b.
func (q *sendQueue) write(b []byte) {
	for len(b) > 0 {
		if q.tail == nil || q.tail.used == chunkBytes {
			q.tail = q.chunks.get()
		}
		c := q.tail
		n := copy(c.buf[c.used:], b)
		if last := q.last(); last != nil && last.chunk == c {
			// A chunk is filled from front to back, so the new bytes follow those of its last segment.
			last.data = last.data[:len(last.data)+n]
		} else {
			q.segments = append(q.segments, segment{data: c.buf[c.used : c.used+n], chunk: c})
			c.segments++
		}
		c.used += n
		q.bytes += n
		b = b[n:]
	}
}

// attach appends a page without copying it and owns it from here on.
func (q *sendQueue) attach(p *page) {
	q.segments = append(q.segments, segment{data: p.own, page: p})
	q.bytes += len(p.own)
}

func (q *sendQueue) last() *segment {
	if len(q.segments) == q.head {
		return nil
	}
	return &q.segments[len(q.segments)-1]
}

// gather fills v with as much of the front of the queue as it takes.
func (q *sendQueue) gather(v *netio.Vector) {
	v.Reset()
	for i := q.head; i < len(q.segments) && v.Add(q.segments[i].data); i++ {
	}
}

// advance removes n bytes from the front, which have been sent.
// Preconditions: n <= q.bytes.
func (q *sendQueue) advance(n int) {
	q.bytes -= n
	for n > 0 {
		s := &q.segments[q.head]
		if n < len(s.data) {
			s.data = s.data[n:]
			break
		}
		n -= len(s.data)
		q.dropFirst()
	}
	q.closeGap()
}

// discard removes everything.
func (q *sendQueue) discard() {
	for q.head < len(q.segments) {
		q.dropFirst()
	}
	q.bytes = 0
	q.closeGap()
}

// dropFirst removes the first segment and gives its memory back.
func (q *sendQueue) dropFirst() {
	s := &q.segments[q.head]
	switch {
	case s.page != nil && q.orphaned:
	case s.page != nil:
		s.page.pool.put(s.page)
	default:
		s.chunk.segments--
		if s.chunk.segments == 0 {
			if q.tail == s.chunk {
				q.tail = nil
			}
			q.chunks.put(s.chunk)
		}
	}
	*s = segment{}
	q.head++
}

func (q *sendQueue) closeGap() {
	switch queued := len(q.segments) - q.head; {
	case queued == 0:
		q.segments, q.head = q.segments[:0], 0
	case q.head >= segmentsBeforeMove && q.head > queued:
		copy(q.segments, q.segments[q.head:])
		clear(q.segments[queued:])
		q.segments, q.head = q.segments[:queued], 0
	}
}
