package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// allReducer adds up slices of all kinds of numbers, compares them with what it computes itself,
// and comes with slices that do not fit.
var allReducer = testcluster.Define("all reducer", func(s *testcluster.Self) error {
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	type celsius float32
	err = errors.Join(
		adds(s.Ctx, c, func(rank, i int) float64 { return math.Pow(-10, float64(5*rank+i%3)) / 3 }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) celsius { return celsius(math.Pow(-10, float64(2*rank+i%3))) / 3 }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) int8 { return int8(100*rank + i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) int16 { return int16(30000*rank - i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) int32 { return int32(rank)<<30 - int32(i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) int { return rank<<62 - i }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) uint8 { return uint8(100*rank + i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) uint16 { return uint16(30000*rank - i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) uint32 { return uint32(rank)<<30 - uint32(i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) uint { return uint(rank)<<62 - uint(i) }, dsm.Sum, dsm.Min, dsm.Max),
		adds(s.Ctx, c, func(rank, i int) complex64 { return complex(float32(rank)/3, float32(i)/7) }, dsm.Sum[complex64]),
		adds(s.Ctx, c, func(rank, i int) complex128 { return complex(float64(rank)/3, float64(i)/7) }, dsm.Sum[complex128]),
		differs(s.Ctx, c),
		unlikeMeets(s.Ctx, c, "longer", []int64{1, 2}, []int64{1}),
		unlikeMeets(s.Ctx, c, "as long as what ranks agree on", []int64{1, 2}, slices.Repeat([]int64{1}, 1000)))
	if err != nil {
		return err
	}
	return c.Close()
})

// adds reduces slices of several lengths, of which the last goes in some parts, by each operation,
// and by the first one the longest slice that there may be.
func adds[T dsm.Number](ctx context.Context, c *dsm.Cluster, value func(rank, i int) T, ops ...func(a, b T) T) error {
	longest := dsm.MaxAllReduceBytes / int(reflect.TypeFor[T]().Size())
	for _, n := range []int{0, 1, 5, 64, 129, 1025, longest} {
		for op, combine := range ops {
			if n == longest && op > 0 {
				break
			}
			own, want := make([]T, n), make([]T, n)
			for i := range n {
				own[i], want[i] = value(c.Rank(), i), value(0, i)
				for rank := 1; rank < c.Size(); rank++ {
					want[i] = combine(want[i], value(rank, i))
				}
			}
			got, err := dsm.AllReduce(ctx, c, "all", dsm.OpSum+dsm.Op(op), own)
			if err != nil {
				return err
			}
			for i := range n {
				if got[i] != want[i] {
					return fmt.Errorf("%v of %d %T: at %d it is %v, want %v", dsm.OpSum+dsm.Op(op), n, want[i], i, got[i], want[i])
				}
				if own[i] != value(c.Rank(), i) {
					return fmt.Errorf("it has changed what it was given at %d: %v", i, own[i])
				}
			}
		}
	}
	return nil
}

// differs has ranks come with other lengths of slices that go in parts, with other types and with
// other operations: every rank hears of it. Then they agree.
func differs(ctx context.Context, c *dsm.Cluster) error {
	if c.Size() == 1 {
		return nil
	}
	n, op := 1000, dsm.OpMax
	for _, differ := range []func(){func() { n++ }, func() { op = dsm.OpMin }} {
		if c.Rank() == 1 {
			differ()
		}
		if _, err := dsm.AllReduce(ctx, c, "differs", op, make([]float64, n)); !errors.Is(err, dsm.ErrMismatch) {
			return fmt.Errorf("rank %d brings %d values for %v, and hears %v", c.Rank(), n, op, err)
		}
		n, op = 1000, dsm.OpMax
	}
	var err error
	if c.Rank() == 1 {
		_, err = dsm.AllReduce(ctx, c, "differs", op, make([]int64, n))
	} else {
		_, err = dsm.AllReduce(ctx, c, "differs", op, make([]float64, n))
	}
	if !errors.Is(err, dsm.ErrMismatch) {
		return fmt.Errorf("rank %d brings another type, and hears %v", c.Rank(), err)
	}
	_, err = dsm.AllReduce(ctx, c, "differs", op, make([]float64, n))
	return err
}

// unlikeMeets has a rank come with another slice than the others. Either that rank or the others
// hear of it, whoever comes later, and the others go on waiting for it.
func unlikeMeets(ctx context.Context, c *dsm.Cluster, name string, unlike, like []int64) error {
	if c.Size() == 1 {
		return nil
	}
	if c.Rank() == 1 {
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := dsm.AllReduce(soon, c, name, dsm.OpMax, unlike); !errors.Is(err, dsm.ErrMismatch) && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%d values where others bring %d: %v", len(unlike), len(like), err)
		}
	}
	for {
		most, err := dsm.AllReduce(ctx, c, name, dsm.OpMax, like)
		if errors.Is(err, dsm.ErrMismatch) {
			continue
		}
		if err == nil && !slices.Equal(most, like) {
			return fmt.Errorf("the most of %d is %d", like, most)
		}
		return err
	}
}

// TestAllReduce: the daemons combine what ranks bring as the ranks would.
func TestAllReduce(t *testing.T) {
	long(t)
	t.Parallel()
	uffdtest.Require(t)
	for _, ranks := range []int{1, 4} {
		testcluster.Job{Nodes: ranks, Program: allReducer}.Succeed(t)
	}
}
