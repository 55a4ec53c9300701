package parallel

import (
	"sync/atomic"

	"dsmd/dsm"
)

const (
	// batch is how many tasks a rank offers to the others at most. Tasks of up to 48 bytes lie on
	// one page then, which comes with them.
	batch = 64
	// maxParents bounds the tasks whose children are offered to others, or with them.
	maxParents = 240
)

// offered is a task that other ranks may take, and the number of its parent (offers).
type offered[T any] struct {
	Parent uint32
	Value  T
}

// ring is the tasks that a rank offers. It lies on pages of its own, which are at the rank's node
// unless somebody looks at them. Only the rank puts tasks in; who takes some out, has them as soon
// as the bounds say so.
type ring[T any] struct {
	// bounds are the numbers of the oldest task, in the upper half, and of the one to come.
	bounds atomic.Uint64
	tasks  [batch]offered[T]
}

func (r *ring[T]) empty() bool {
	b := r.bounds.Load()
	return uint32(b>>32) == uint32(b)
}

// put offers tasks, when there are none.
func (r *ring[T]) put(tasks []offered[T]) {
	b := r.bounds.Load()
	for i, t := range tasks {
		r.tasks[(uint32(b)+uint32(i))%batch] = t
	}
	end := uint32(b) + uint32(len(tasks))
	r.bounds.Store(b>>32<<32 | uint64(end))
}

// rob takes the older half. What it copies is theirs who change the bounds: if another has, the
// copy is of no use, whatever it holds.
func (r *ring[T]) rob() []offered[T] {
	for {
		b := r.bounds.Load()
		first, end := uint32(b>>32), uint32(b)
		n := (end - first + 1) / 2
		taken := make([]offered[T], n)
		for i := range taken {
			taken[i] = r.tasks[(first+uint32(i))%batch]
		}
		if n == 0 || r.bounds.CompareAndSwap(b, uint64(first+n)<<32|uint64(end)) {
			return taken
		}
	}
}

// join counts what has to end before a task has ended: its body, and its children.
type join struct {
	left   atomic.Int64
	above  *join                         // to which the task belongs
	waiter atomic.Pointer[chan struct{}] // is told when only the body is left

	// It stands for count tasks of the same parent that were taken from another rank, if count is
	// not 0. That rank knows the parent by its number.
	from, count int
	number      uint32

	// How many children are offered, or with others, and the number by which these know it if there
	// are any. These belong to deal.
	out int
	as  uint32
}

// offers are the tasks of this rank whose children are offered to others, or with them.
type offers struct {
	parents [maxParents]*join
	free    []uint32
	seen    [maxParents]uint32 // how many had ended when this rank looked last
}

func (o *offers) begin(own *slot) {
	for i := range o.parents {
		o.free = append(o.free, uint32(i))
		o.seen[i] = own.ended[i].Load()
	}
}

// give notes that another child of j is offered, and returns the number of j. There is a free one.
func (o *offers) give(j *join) uint32 {
	if j.out == 0 {
		last := len(o.free) - 1
		j.as, o.free = o.free[last], o.free[:last]
		o.parents[j.as] = j
	}
	j.out++
	return j.as
}

// take notes that n children of the parent of that number are not with others any more.
func (o *offers) take(number uint32, n int) *join {
	j := o.parents[number]
	if j.out -= n; j.out == 0 {
		o.parents[number] = nil
		o.free = append(o.free, number)
	}
	return j
}

// offer lets others take the older half of a worker's tasks, if they have taken all that was
// offered before.
func (r *run[T]) offer(w *worker[T]) bool {
	own := r.rings.At(r.t.index)
	if len(r.t.victims) == 0 || !own.empty() {
		return false
	}
	var all []offered[T]
	for _, t := range w.rob(min(batch, len(r.offers.free))) {
		all = append(all, offered[T]{r.offers.give(t.parent), t.value})
	}
	if len(all) > 0 {
		own.put(all)
	}
	return len(all) > 0
}

// takeBack takes half of what is offered.
func (r *run[T]) takeBack() bool {
	taken := r.rings.At(r.t.index).rob()
	for _, t := range taken {
		r.taken.push(task[T]{t.Value, r.offers.take(t.Parent, 1)})
	}
	return len(taken) > 0
}

// steal takes tasks from the nearest rank that offers some.
func (r *run[T]) steal() bool {
	for _, v := range r.t.victims {
		var taken []offered[T]
		// A ring that is lost offers nothing: its rank is lost, too.
		if lost := dsm.Guard(func() { taken = r.rings.At(v).rob() }); lost != nil || len(taken) == 0 {
			continue
		}
		for len(taken) > 0 {
			j := &join{from: v, number: taken[0].Parent}
			for j.count < len(taken) && taken[j.count].Parent == j.number {
				j.count++
			}
			j.left.Store(int64(j.count))
			for _, t := range taken[:j.count] {
				r.taken.push(task[T]{t.Value, j})
			}
			taken = taken[j.count:]
		}
		return true
	}
	return false
}

// hear takes note of tasks that have ended on other ranks.
func (r *run[T]) hear() {
	own := r.t.own()
	for i, j := range &r.offers.parents {
		if j == nil {
			continue
		}
		now := own.ended[i].Load()
		if n := int(now - r.offers.seen[i]); n > 0 {
			r.offers.seen[i] = now
			r.ended(r.offers.take(uint32(i), n), n)
		}
	}
}

// ended says that n of what j counts have ended. If they were the last, so has what j stands for.
func (r *run[T]) ended(j *join, n int) {
	for ; j != nil; j, n = j.above, 1 {
		left := j.left.Add(int64(-n))
		if waiter := j.waiter.Load(); left == 1 && waiter != nil {
			signal(*waiter)
		}
		if left > 0 {
			return
		}
		if j.count > 0 {
			// Who is lost needs no telling.
			_ = dsm.Guard(func() { r.t.slots.At(j.from).ended[j.number].Add(uint32(j.count)) })
		}
	}
}
