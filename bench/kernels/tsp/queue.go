package tsp

import (
	"errors"
	"fmt"
)

// ErrFull is returned when the queue of tours cannot take another one.
var ErrFull = errors.New("the queue of tours is full")

// A queue is a priority queue (a binary heap) of tours in memory that all threads share. Whoever
// uses it holds its lock.
type queue struct {
	count *int64
	tours []tour
}

// capacity is how many tours can ever be in the queue at once: those of all depths up to
// splitDepth.
func capacity(n int) int {
	total, ofDepth := 1, 1
	for depth := 1; depth < splitDepth; depth++ {
		ofDepth *= max(n-depth, 1)
		total += ofDepth
	}
	return total
}

// less orders tours: the most promising first, and of these the longest, since it will lead to a
// round trip soonest.
func (q queue) less(i, j int) bool {
	a, b := &q.tours[i], &q.tours[j]
	return a.bound < b.bound || a.bound == b.bound && a.depth > b.depth
}

func (q queue) push(t tour) error {
	i := int(*q.count)
	if i == len(q.tours) {
		return fmt.Errorf("%w: it holds %d", ErrFull, i)
	}
	q.tours[i] = t
	*q.count++
	for i > 0 && q.less(i, (i-1)/2) {
		above := (i - 1) / 2
		q.tours[i], q.tours[above] = q.tours[above], q.tours[i]
		i = above
	}
	return nil
}

// pop takes the most promising tour out of the queue; ok is false if there is none.
func (q queue) pop() (t tour, ok bool) {
	if *q.count == 0 {
		return tour{}, false
	}
	t = q.tours[0]
	*q.count--
	last := int(*q.count)
	q.tours[0] = q.tours[last]
	for i := 0; ; {
		least := i
		for below := 2*i + 1; below <= 2*i+2 && below < last; below++ {
			if q.less(below, least) {
				least = below
			}
		}
		if least == i {
			return t, true
		}
		q.tours[i], q.tours[least] = q.tours[least], q.tours[i]
		i = least
	}
}
