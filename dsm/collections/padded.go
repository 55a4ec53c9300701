package collections

import (
	"context"
	"fmt"
	"math"
	"reflect"

	"dsmd/dsm"
)

// Padded is n values, numbered from 0, no two of which share a page: one for each rank, or for each
// thread of all ranks, to store to often.
type Padded[T any] struct {
	c      *dsm.Cluster
	all    []T
	n      int
	stride int // from one value to the next, in elements
}

// NewPadded returns n zeroed values of type T in shared memory, which name names as in dsm.Alloc.
// Each takes a page, or as many as T is long, and one more if it does not divide a page. Errors are
// those of dsm.Alloc.
func NewPadded[T any](ctx context.Context, c *dsm.Cluster, name string, n int, opts ...dsm.AllocOption) (*Padded[T], error) {
	p, err := newPadded[T](ctx, c, name, n, opts)
	if err != nil {
		return nil, fmt.Errorf("collections: NewPadded %q: %w", name, wanting(fmt.Sprintf("%d values of %v", n, reflect.TypeFor[T]()), err))
	}
	return p, nil
}

func newPadded[T any](ctx context.Context, c *dsm.Cluster, name string, n int, opts []dsm.AllocOption) (*Padded[T], error) {
	stride := 1
	if size := int(reflect.TypeFor[T]().Size()); size > 0 {
		// From the end of one value to the beginning of the next it is a page at least.
		stride += (c.PageBytes() + size - 1) / size
	}
	if n < 0 || n > math.MaxInt/stride {
		return nil, fmt.Errorf("%w: the number of values is %d; 0 to %d are allowed", dsm.ErrNoSpace, n, math.MaxInt/stride)
	}
	all, err := dsm.Alloc[T](ctx, c, name, n*stride, opts...)
	if err != nil {
		return nil, err
	}
	return &Padded[T]{c, all, n, stride}, nil
}

// Len is the number of values.
func (p *Padded[T]) Len() int { return p.n }

// At is value i, from 0 to Len-1. It panics if there is no such value.
func (p *Padded[T]) At(i int) *T {
	if i < 0 || i >= p.n {
		panic(fmt.Sprintf("collections: value %d of %d of a Padded", i, p.n))
	}
	return &p.all[i*p.stride]
}

// Prefetch fetches the pages of all values at once, as dsm.Prefetch does, with its errors.
func (p *Padded[T]) Prefetch(ctx context.Context, access dsm.Access) error {
	return dsm.Prefetch(ctx, p.c, p.all, access)
}

// Free gives the memory back, as dsm.Free does, with its errors.
func (p *Padded[T]) Free(ctx context.Context) error { return dsm.Free(ctx, p.c, p.all) }
