package collections

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"

	"dsmd/dsm"
)

// Accumulator is a sum that all ranks add to. Each adds to a part of its own, on a page of its own,
// which stays at its node; Sum adds the parts up.
type Accumulator[T int64 | float64] struct {
	parts *Padded[part[T]] // of each rank
	own   *part[T]
}

// part is a T that is changed atomically. To dsm the part of another T is another type.
type part[T any] struct {
	bits atomic.Uint64
	_    T
}

// NewAccumulator returns the accumulator of that name, 0 if it is new. Errors are those of
// dsm.Alloc.
func NewAccumulator[T int64 | float64](ctx context.Context, c *dsm.Cluster, name string, opts ...dsm.AllocOption) (*Accumulator[T], error) {
	parts, err := newPadded[part[T]](ctx, c, name, c.Size(), opts)
	if err != nil {
		return nil, fmt.Errorf("collections: NewAccumulator %q: %w", name, wanting(fmt.Sprintf("an accumulator of %v", reflect.TypeFor[T]()), err))
	}
	return &Accumulator[T]{parts, parts.At(c.Rank())}, nil
}

// Add adds v. It waits for nobody, but when a Sum on another node has looked at this rank's part
// since the last Add.
func (a *Accumulator[T]) Add(v T) {
	for {
		old := a.own.bits.Load()
		if a.own.bits.CompareAndSwap(old, bits(value[T](old)+v)) {
			return
		}
	}
}

// Sum returns the sum of all that has been added. Every Add that has ended before Sum began counts,
// and none that begins after Sum has ended; those in between may. Floating-point sums depend on the
// order in which the goroutines of a rank have added.
//
// It fetches the parts of ranks that have added since this node's last Sum, all at once. Errors: an
// error that wraps dsm.ErrPageLost or dsm.ErrNodeLost if a part was lost with a node, ctx's,
// dsm.ErrClosed, dsm.ErrLost.
func (a *Accumulator[T]) Sum(ctx context.Context) (sum T, err error) {
	if err := a.parts.Prefetch(ctx, dsm.Read); err != nil {
		return 0, err
	}
	lost := dsm.Guard(func() {
		for i := range a.parts.Len() {
			sum += value[T](a.parts.At(i).bits.Load())
		}
	})
	if lost != nil {
		return 0, lost
	}
	return sum, nil
}

// Free gives the memory back, as dsm.Free does, with its errors.
func (a *Accumulator[T]) Free(ctx context.Context) error { return a.parts.Free(ctx) }

// bits and value turn a T into what a part holds, and back. All bits 0 are 0.
func bits[T int64 | float64](v T) uint64 {
	switch v := any(v).(type) {
	case float64:
		return math.Float64bits(v)
	case int64:
		return uint64(v)
	}
	panic("unreachable")
}

func value[T int64 | float64](b uint64) (v T) {
	switch p := any(&v).(type) {
	case *float64:
		*p = math.Float64frombits(b)
	case *int64:
		*p = int64(b)
	}
	return v
}
