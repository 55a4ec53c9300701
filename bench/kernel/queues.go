package kernel

import (
	"reflect"
	"sync/atomic"
)

// Queues are a queue for each thread of a team, in memory that all share. A queue's lock is taken
// to change it. How long it is can be told without the lock: so the owner of a queue that nobody
// fills looks at a page that it has a copy of, and a queue that only becomes shorter is known to be
// empty.
type Queues[T any] struct {
	entries []entry[T] // of all threads, one queue after another, each room long
	room    int
	locks   []Mutex
}

// granule is the size in bytes of which a queue's memory is a multiple, so that no page of up to
// that size has parts of two.
const granule = 4096

// An entry is an item and, in the first one of a queue, how many items there are. That lies beside
// them, so that whoever changes a queue changes one page of a short one.
type entry[T any] struct {
	count int32 // changed under the queue's lock, and atomically
	item  T
}

// ShareQueues allocates queues that can hold so many items each, at least 1. They are empty.
func ShareQueues[T any](t *Team, name string, room int) *Queues[T] {
	whole := 1 // so many entries are whole granules
	for size := int(reflect.TypeFor[entry[T]]().Size()); whole*size%granule != 0; {
		whole *= 2
	}
	room = (room + whole - 1) / whole * whole
	return &Queues[T]{
		entries: Share[entry[T]](t, name, t.Total*room),
		room:    room,
		locks:   t.Mutexes(name, t.Total),
	}
}

// of is a thread's queue.
func (q *Queues[T]) of(thread int) []entry[T] { return q.entries[thread*q.room : (thread+1)*q.room] }

// Len is how many items are in a thread's queue.
func (q *Queues[T]) Len(thread int) int { return int(atomic.LoadInt32(&q.of(thread)[0].count)) }

// At is an item of a thread's queue, the first one if i is 0.
func (q *Queues[T]) At(thread, i int) T { return q.of(thread)[i].item }

func (q *Queues[T]) setLen(thread, n int) { atomic.StoreInt32(&q.of(thread)[0].count, int32(n)) }

// put appends an item. It must be there before it counts: the length is read without the lock.
func (q *Queues[T]) put(thread int, item T) {
	n := q.Len(thread)
	q.of(thread)[n].item = item
	q.setLen(thread, n+1)
}

// Fill makes the items the queue of t, while the run is prepared and nobody else looks at it.
func (q *Queues[T]) Fill(t *Thread, items []T) {
	q.setLen(t.Index, 0)
	for _, item := range items {
		q.put(t.Index, item)
	}
}

// Put appends an item to a thread's queue.
func (q *Queues[T]) Put(t *Thread, thread int, item T) {
	t.Locked(q.locks[thread], func() { q.put(thread, item) })
}

// TakeLast takes the last item out of a thread's queue; ok is false if there is none.
func (q *Queues[T]) TakeLast(t *Thread, thread int) (item T, ok bool) {
	if q.Len(thread) == 0 {
		return item, false
	}
	t.Locked(q.locks[thread], func() {
		n := q.Len(thread)
		if ok = n > 0; ok {
			item = q.At(thread, n-1)
			q.setLen(thread, n-1)
		}
	})
	return item, ok
}
