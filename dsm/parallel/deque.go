package parallel

import "sync"

// task is a task that nobody has begun, and what waits for its end.
type task[T any] struct {
	value  T
	parent *join
}

// deque is the tasks that a goroutine has forked, in this rank's own memory. The goroutine puts and
// takes at the end, where the newest are. Others take the oldest, which lead to most, from the
// front. They are counted from the first that ever was, so that a place in them stays what it is.
type deque[T any] struct {
	mu    sync.Mutex
	tasks []task[T] // guarded by mu
	gone  int       // how many were taken from the front; guarded by mu
}

// push puts tasks at the end, and returns the place of the first.
func (d *deque[T]) push(tasks ...task[T]) (place int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	place = d.gone + len(d.tasks)
	d.tasks = append(d.tasks, tasks...)
	return place
}

// pop takes the newest task, unless its place lies before the given one.
func (d *deque[T]) pop(from int) (t task[T], ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.tasks) - 1
	if last < 0 || d.gone+last < from {
		return t, false
	}
	t, d.tasks[last] = d.tasks[last], t
	d.tasks = d.tasks[:last]
	return t, true
}

// rob takes the older half of the tasks, at most so many.
func (d *deque[T]) rob(most int) []task[T] {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min((len(d.tasks)+1)/2, most)
	taken := append([]task[T](nil), d.tasks[:n]...)
	clear(d.tasks[:n])
	d.tasks, d.gone = d.tasks[n:], d.gone+n
	return taken
}

func (d *deque[T]) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.tasks)
}
