package model

import (
	"cmp"
	"container/heap"
)

// An Agenda is the clock of a simulation, and what will happen in it: in the order of time, and at
// the same time in the order in which it was entered. So the same entries give the same run.
type Agenda[T cmp.Ordered, E any] struct {
	now     T
	entered int
	entries entries[T, E]
}

// Now is when the last thing happened that Next has returned.
func (a *Agenda[T, E]) Now() T { return a.now }

// Len is how many things will happen.
func (a *Agenda[T, E]) Len() int { return len(a.entries) }

// Enter has e happen at a time, which is not before now.
func (a *Agenda[T, E]) Enter(at T, e E) {
	a.entered++
	heap.Push(&a.entries, &entry[T, E]{at: at, number: a.entered, what: e})
}

// Next goes on to what happens next; ok is false if nothing does.
func (a *Agenda[T, E]) Next() (e E, ok bool) {
	if len(a.entries) == 0 {
		return e, false
	}
	first := heap.Pop(&a.entries).(*entry[T, E])
	a.now = first.at
	return first.what, true
}

// Delete takes out what will not happen any more, and returns how many things that are.
func (a *Agenda[T, E]) Delete(void func(*E) bool) int {
	kept := a.entries[:0]
	for _, e := range a.entries {
		if !void(&e.what) {
			kept = append(kept, e)
		}
	}
	deleted := len(a.entries) - len(kept)
	clear(a.entries[len(kept):])
	a.entries = kept
	heap.Init(&a.entries)
	return deleted
}

type entry[T cmp.Ordered, E any] struct {
	at     T
	number int
	what   E
}

type entries[T cmp.Ordered, E any] []*entry[T, E]

func (q entries[T, E]) Len() int { return len(q) }
func (q entries[T, E]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(q[i].at, q[j].at), cmp.Compare(q[i].number, q[j].number)) < 0
}
func (q entries[T, E]) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *entries[T, E]) Push(x any)   { *q = append(*q, x.(*entry[T, E])) }
func (q *entries[T, E]) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
