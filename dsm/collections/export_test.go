package collections

import (
	"context"
	"time"
)

// BeginClose does what Close begins with, and no more: as a program that dies then.
func (q *Queue[T]) BeginClose() { q.control.closed.Store(true) }

// Age has the caller's lane, which is empty, be as after so many times around.
func (q *Queue[T]) Age(laps int64) {
	for number := range int64(q.pages) {
		p, _ := q.page(q.c.Rank(), number)
		p[0].Store(uint64(laps) * uint64(q.count.oneLap))
	}
}

// AwaitPut returns when a Put of this handle is under way.
func (q *Queue[T]) AwaitPut(ctx context.Context) {
	for len(q.turn) == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// ID is the number by which a handle locks pages.
func (m *Map[K, V]) ID() uint64 { return m.id }
