package collections

// BeginClose does what Close begins with, and no more: as a program that dies then.
func (q *Queue[T]) BeginClose() { q.control.closed.Store(true) }

// ID is the number by which a handle locks pages.
func (m *Map[K, V]) ID() uint64 { return m.id }
