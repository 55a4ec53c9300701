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
	lengths []length // by thread
	items   []T      // of all threads, one after another, each room long
	room    int
	locks   []Mutex
}

// granule is the size in bytes of which a queue's memory is a multiple, so that no page of up to
// that size has parts of two.
const granule = 4096

// A length lies on a page of its own, of up to a granule. It is changed under the queue's lock, and
// atomically.
type length struct {
	n int64
	_ [granule - 8]byte
}

// ShareQueues allocates queues that can hold so many items each. They are empty.
func ShareQueues[T any](t *Team, name string, room int) *Queues[T] {
	whole := max(1, granule/int(reflect.TypeFor[T]().Size()))
	room = (room + whole - 1) / whole * whole
	return &Queues[T]{
		lengths: Share[length](t, name+"/lengths", t.Total),
		items:   Share[T](t, name+"/items", t.Total*room),
		room:    room,
		locks:   t.Mutexes(name, t.Total),
	}
}

// Len is how many items are in a thread's queue.
func (q *Queues[T]) Len(thread int) int { return int(atomic.LoadInt64(&q.lengths[thread].n)) }

// At is an item of a thread's queue, the first one if i is 0.
func (q *Queues[T]) At(thread, i int) T { return q.items[thread*q.room+i] }

// put appends an item. It must be there before it counts: the length is read without the lock.
func (q *Queues[T]) put(thread int, item T) {
	n := q.Len(thread)
	q.items[thread*q.room : (thread+1)*q.room][n] = item
	atomic.StoreInt64(&q.lengths[thread].n, int64(n+1))
}

// Fill makes the items the queue of t, while the run is prepared and nobody else looks at it.
func (q *Queues[T]) Fill(t *Thread, items []T) {
	atomic.StoreInt64(&q.lengths[t.Index].n, 0)
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
			atomic.StoreInt64(&q.lengths[thread].n, int64(n-1))
		}
	})
	return item, ok
}
