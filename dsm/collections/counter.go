package collections

import (
	"context"
	"fmt"
	"sync/atomic"

	"dsmd/dsm"
)

// Counter is a number that all ranks share. It is linearizable: each Add takes effect at once, for
// everybody. So its page has to be at the node that adds, and goes there from the node that added
// last. Goroutines of one node add at the price of an atomic instruction until another node wants
// the page. Who draws numbers from it draws many with one Add; what is only summed up is cheaper in
// an Accumulator.
type Counter struct {
	c     *dsm.Cluster
	value *atomic.Int64
}

// NewCounter returns the counter of that name, 0 if it is new. Errors are those of dsm.Isolate.
func NewCounter(ctx context.Context, c *dsm.Cluster, name string, opts ...dsm.AllocOption) (*Counter, error) {
	value, err := dsm.Isolate[atomic.Int64](ctx, c, name, opts...)
	if err != nil {
		return nil, fmt.Errorf("collections: NewCounter %q: %w", name, wanting("a counter", err))
	}
	return &Counter{c, value}, nil
}

// Add adds n, which may be negative, and returns the sum. Of all calls anywhere, each gets another
// part of the numbers: the caller has those above the sum less n, up to the sum.
func (k *Counter) Add(n int64) int64 { return k.value.Add(n) }

// Load returns the number. To load it again costs nothing while nobody adds.
func (k *Counter) Load() int64 { return k.value.Load() }

// Free gives the memory back, as dsm.Free does, with its errors.
func (k *Counter) Free(ctx context.Context) error { return dsm.FreeIsolated(ctx, k.c, k.value) }
