package collective

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"dsmd/dsm"
)

// AllReduce combines the slices that the ranks bring, which are equally long, element by element
// with op, and returns the result to all of them. Each element is combined in the order of ranks,
// op(op(v0, v1), v2) and so on, so every rank gets the same bits. For up to some KiB of numbers
// dsm.AllReduce is faster.
//
// Of a long slice, with more than two ranks, each rank combines a part, of which it gets what the
// others have brought; then it gets the results of the others. So a rank receives about twice the
// slice, however many ranks there are.
//
// Errors are those of Broadcast, and dsm.ErrMismatch if ranks bring slices of different lengths. A
// panic of op is that rank's caller's; the others get an error, or have their results.
func AllReduce[T any](ctx context.Context, among dsm.Group, name string, v []T, op func(a, b T) T) ([]T, error) {
	result, err := allReduce(ctx, among, name, v, op)
	if err != nil {
		return nil, fmt.Errorf("AllReduce %q: %w", name, err)
	}
	return result, nil
}

// wholeBytes is up to how many bytes more than with parts a rank gets whole slices of the others:
// parts take more meetings. With 4 and with 8 ranks on two cores both ways took as long where it
// was 512 KiB to 1 MiB; of two ranks each gets as much either way.
const wholeBytes = 512 << 10

func allReduce[T any](ctx context.Context, among dsm.Group, name string, v []T, op func(a, b T) T) ([]T, error) {
	type slice struct {
		length int
		of     uint64 // dsm.TypeHash of the values; 0: they can't be shared
	}
	of, unshareable := dsm.TypeHash[T]()
	all, err := dsm.AllGather(ctx, among, prefix+name, slice{len(v), of})
	if err = cmp.Or(unshareable, err); err != nil {
		return nil, err
	}
	for from, s := range all {
		if s.length != all[0].length {
			return nil, fmt.Errorf("%w: rank 0 brings %d values, and rank %d brings %d", dsm.ErrMismatch, all[0].length, from, s.length)
		}
		if s.of != all[0].of {
			return nil, fmt.Errorf("%w: ranks 0 and %d bring values of different types", dsm.ErrMismatch, from)
		}
	}
	ranks := len(all)
	if len(v)*sizeOf[T]()*(ranks-2) <= wholeBytes {
		all, err := AllGather(ctx, among, name, v)
		if err != nil {
			return nil, err
		}
		return combined(all, op), nil
	}
	parts := make([][]T, ranks)
	for to := range parts {
		parts[to] = v[to*len(v)/ranks : (to+1)*len(v)/ranks]
	}
	mine, err := Exchange(ctx, among, name, parts)
	if err != nil {
		return nil, err
	}
	returns(func() { mine[0] = combined(mine, op) }, func() { _, _ = AllGather[T](ctx, among, name, nil) })
	results, err := AllGather(ctx, among, name, mine[0])
	if err != nil {
		return nil, err
	}
	for from, result := range results {
		if len(result) != len(parts[from]) {
			return nil, fmt.Errorf("op has panicked on rank %d, or ended its goroutine", from)
		}
	}
	return slices.Concat(results...), nil
}

// combined is what op makes of slices that are equally long. It is in the place of the first.
func combined[T any](all [][]T, op func(a, b T) T) []T {
	result := all[0]
	for _, next := range all[1:] {
		for i := range result {
			result[i] = op(result[i], next[i])
		}
	}
	return result
}
