package collective

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"dsmd/dsm"
)

// prefix begins the names of reductions and of memory that calls use. So a name is free for
// everything else.
const prefix = "collective/"

// Broadcast returns the slice v of the rank with index root to all ranks, each a copy of its own.
// What others give as v does not matter. T must be shareable, as for dsm.Alloc.
//
// Errors: dsm.ErrType, dsm.ErrMismatch (ranks give different types or roots), dsm.ErrNoSpace (it
// does not fit into shared memory, or root is no index), dsm.ErrInUse, ctx's, dsm.ErrNodeLost,
// dsm.ErrPageLost, dsm.ErrClosed, dsm.ErrLost; see the package comment.
func Broadcast[T any](ctx context.Context, among dsm.Group, name string, root int, v []T) ([]T, error) {
	if _, index := dsm.Member(among); index != root {
		v = nil
	}
	all, err := exchange(ctx, among, name, brought[T]{max(root, noRoot+1), v}, func(from int, part []T) []T {
		if from != root {
			return nil
		}
		return part
	})
	if err != nil {
		return nil, fmt.Errorf("Broadcast %q: %w", name, err)
	}
	return all[root], nil
}

// Gather returns the slices that the ranks bring, in their order, to the rank with index root, and
// nil to the others. Errors are those of Broadcast.
func Gather[T any](ctx context.Context, among dsm.Group, name string, root int, v []T) ([][]T, error) {
	_, index := dsm.Member(among)
	all, err := exchange(ctx, among, name, brought[T]{max(root, noRoot+1), v}, func(_ int, part []T) []T {
		if index != root {
			return nil
		}
		return part
	})
	if err != nil {
		return nil, fmt.Errorf("Gather %q: %w", name, err)
	}
	if index != root {
		return nil, nil
	}
	return all, nil
}

// AllGather returns the slices that the ranks bring, in their order, to all of them. Errors are
// those of Broadcast.
func AllGather[T any](ctx context.Context, among dsm.Group, name string, v []T) ([][]T, error) {
	all, err := exchange(ctx, among, name, brought[T]{noRoot, v}, func(_ int, part []T) []T { return part })
	if err != nil {
		return nil, fmt.Errorf("AllGather %q: %w", name, err)
	}
	return all, nil
}

// Once calls f on the rank with index 0, and returns when it has ended, on all. If f fails, all get
// its error: the others one of the same text. If that rank is lost meanwhile, f may have been done
// or not, and the others get dsm.ErrNodeLost. If f panics, or ends its goroutine, that goes on when
// the others have come, who get an error. Other errors are those of Broadcast.
func Once(ctx context.Context, among dsm.Group, name string, f func() error) error {
	var own error
	var text []byte
	if _, index := dsm.Member(among); index == 0 {
		returns(func() { own = f() }, func() {
			_, _ = Broadcast(ctx, among, name, 0, []byte(" a panic, or runtime.Goexit"))
		})
		if own != nil {
			text = []byte(" " + own.Error()) // an error need not have a text
		}
	}
	text, err := Broadcast(ctx, among, name, 0, text)
	switch {
	case own != nil:
		return fmt.Errorf("Once %q: %w", name, own)
	case err != nil:
		return fmt.Errorf("Once %q: %w", name, err)
	case len(text) > 0:
		return fmt.Errorf("Once %q, on another rank:%s", name, text)
	}
	return nil
}

// returns calls f, which is the caller's. If that does not return, as it panics, ends its goroutine
// or touches a lost page within a Guard, it calls tell: the others wait for this rank.
func returns(f, tell func()) {
	returned := false
	defer func() {
		if !returned {
			tell()
		}
	}()
	f()
	returned = true
}

// Exchange has each rank bring a slice for each, in their order, and returns to each what all have
// brought for it, in their order. What travels is what is for another rank. Errors are those of
// Broadcast, and dsm.ErrMismatch if a rank does not bring a slice for each.
func Exchange[T any](ctx context.Context, among dsm.Group, name string, v [][]T) ([][]T, error) {
	lengths := make([]int, len(v))
	for to := range v {
		lengths[to] = len(v[to])
	}
	all, err := AllGather(ctx, among, name, lengths)
	for from := range all {
		if err == nil && len(all[from]) != len(all) {
			err = fmt.Errorf("%w: rank %d brings slices for %d ranks of %d", dsm.ErrMismatch, from, len(all[from]), len(all))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("Exchange %q: %w", name, err)
	}
	_, index := dsm.Member(among)
	got, err := exchange(ctx, among, name, brought[T]{noRoot, slices.Concat(v...)}, func(from int, part []T) []T {
		for _, n := range all[from][:index] {
			part = part[n:]
		}
		return part[:all[from][index]]
	})
	if err != nil {
		return nil, fmt.Errorf("Exchange %q: %w", name, err)
	}
	return got, nil
}

// brought is what a rank brings to a call: a slice, and the index of the root.
type brought[T any] struct {
	root  int // noRoot where there is none
	slice []T
}

const noRoot = -1 << 31

// head says what a rank brings, and has the values themselves if they are few.
type head struct {
	root, length int
	of           uint64 // dsm.TypeHash of the values; 0: they can't be shared
	few          [fewBytes]byte
}

// fewBytes is small enough for a head to take the short way to the daemon, in a box of the control
// page.
const fewBytes = 32

// exchange returns, of the slices that the ranks bring, the parts that this rank wants.
func exchange[T any](ctx context.Context, among dsm.Group, name string, own brought[T], wanted func(from int, part []T) []T) ([][]T, error) {
	of, unshareable := dsm.TypeHash[T]()
	mine := head{root: own.root, length: len(own.slice), of: of}
	if unshareable == nil {
		copy(mine.few[:], bytesOf(own.slice))
	}
	// Also with values that can't be shared: the others may bring some that can, and wait.
	heads, err := dsm.AllGather(ctx, among, prefix+name, mine)
	if err = cmp.Or(unshareable, err); err != nil {
		return nil, err
	}
	longest := 0 // of what a rank brings, in bytes
	for from, h := range heads {
		switch {
		case h.root != heads[0].root:
			return nil, fmt.Errorf("%w: the root is %d for rank 0, and %d for rank %d", dsm.ErrMismatch, heads[0].root, h.root, from)
		case h.root != noRoot && (h.root < 0 || h.root >= len(heads)):
			return nil, fmt.Errorf("%w: the root is %d, and there are ranks 0 to %d", dsm.ErrNoSpace, h.root, len(heads)-1)
		case h.of != heads[0].of:
			return nil, fmt.Errorf("%w: ranks 0 and %d bring values of different types", dsm.ErrMismatch, from)
		}
		longest = max(longest, h.length*sizeOf[T]())
	}
	switch {
	case longest <= fewBytes:
		return partsOf(heads, func(from int) []byte { return heads[from].few[:] }, wanted), nil
	case longest <= dsm.MaxReduceBytes && longest*len(heads) <= someBytes:
		padded := make([]byte, longest)
		copy(padded, bytesOf(own.slice))
		all, err := dsm.AllGatherBytes(ctx, among, prefix+name, padded)
		if err != nil {
			return nil, err
		}
		return partsOf(heads, func(from int) []byte { return all[from] }, wanted), nil
	default:
		return manyOf(ctx, meeting{among, name, heads}, own.slice, wanted)
	}
}

// someBytes bounds what all ranks together send in a second meeting. It is less than can travel,
// because every rank gets all of it.
const someBytes = dsm.MaxReduceTotal / 4

// partsOf returns what is wanted of what each rank has brought, whose memory begins as broughtBy
// says.
func partsOf[T any](heads []head, broughtBy func(from int) []byte, wanted func(from int, part []T) []T) [][]T {
	got := make([][]T, len(heads))
	for from, h := range heads {
		part := make([]T, h.length)
		copy(bytesOf(part), broughtBy(from))
		got[from] = wanted(from, part)
	}
	return got
}

// meeting is who exchanges, and how much.
type meeting struct {
	among dsm.Group
	name  string
	heads []head
}

// manyOf returns what is wanted, and exchanges it through shared memory.
func manyOf[T any](ctx context.Context, m meeting, own []T, wanted func(from int, part []T) []T) ([][]T, error) {
	ends := make([]int, len(m.heads)) // of each rank's part
	total := 0
	for from, h := range m.heads {
		total += h.length
		ends[from] = total
	}
	got := make([][]T, len(m.heads))
	c, index := dsm.Member(m.among)
	// Survivors have memory of their own: with fewer of them it has another name. So has each job,
	// as it meets by itself: the name does not begin with dsm.Everywhere.
	memory, failed := dsm.Alloc[T](ctx, c, fmt.Sprintf("%s%s/%d", prefix, m.name, m.among.Size()), total, dsm.Unsaved())
	part := func(from int) []T { return memory[ends[from]-m.heads[from].length : ends[from]] }
	if failed == nil {
		failed = dsm.Guard(func() { copy(part(index), own) })
	}
	err := meet(ctx, m.among, m.name, failed)
	if err == nil {
		for from := range m.heads {
			if failed == nil {
				got[from], failed = fetch(ctx, c, wanted(from, part(from)))
			}
		}
	}
	failed = errors.Join(failed, dsm.Free(context.WithoutCancel(ctx), c, memory))
	if err != nil {
		return nil, err
	}
	// When all have given it back, the name is free for the next call.
	if err := meet(ctx, m.among, m.name, failed); err != nil {
		return nil, err
	}
	return got, nil
}

// fetch returns a copy of shared memory, whose pages it fetches at once.
func fetch[T any](ctx context.Context, c *dsm.Cluster, part []T) (copied []T, err error) {
	if err := dsm.Prefetch(ctx, c, part, dsm.Read); err != nil {
		return nil, err
	}
	err = dsm.Guard(func() { copied = slices.Clone(part) })
	return copied, err
}

// meet waits for all. If any rank has failed before, it returns an error to all of them.
func meet(ctx context.Context, among dsm.Group, name string, failed error) error {
	any, err := dsm.Reduce(ctx, among, prefix+name, failed != nil, func(a, b bool) bool { return a || b })
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	case any:
		return errors.New("another rank has failed")
	}
	return nil
}
