package rdma

import "dsmd/transport/chassis"

// maxSparePieces bounds how many unused buffers of queues are held back for reuse (1 MiB); more go
// to the garbage collector.
const maxSparePieces = 1024

// message is one that waits for a number: a piece of a control part and, with the last piece, the
// page.
type message struct {
	piece []byte
	more  bool
	page  *chassis.Payload
}

func (m message) flags() uint32 {
	switch {
	case m.more:
		return flagMore
	case m.page != nil:
		return flagPage
	}
	return 0
}

// messageQueue is a first-in-first-out queue that allocates only while it grows longer than it ever
// was.
type messageQueue struct {
	list []message // those from head on wait
	head int
}

func (q *messageQueue) empty() bool { return q.head == len(q.list) }

func (q *messageQueue) first() *message { return &q.list[q.head] }

func (q *messageQueue) push(m message) {
	if q.head > 64 && q.head > len(q.list)/2 { // Moving costs each message at most one move.
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, m)
}

func (q *messageQueue) pop() message {
	m := q.list[q.head]
	q.list[q.head] = message{}
	if q.head++; q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
	return m
}
