package dsm

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

const (
	// MaxReduceBytes is the size of the largest value that Reduce takes.
	MaxReduceBytes = attach.MaxContribution - headBytes
	// MaxReduceTotal bounds what all ranks bring together, in bytes, with 8 more for each.
	MaxReduceTotal = attach.MaxPayload

	// headBytes travel with a value: by them ranks check that all mean the same type.
	headBytes = 8
)

// Reduce combines a value of every rank of among with op and returns the result to all of them: of
// the job, if that is the Cluster, or of those that are left, if it is the Survivors. It is also a
// barrier: it waits for every rank, and what any rank stored before, every rank sees after.
//
// Every rank folds all values itself, in the order of ranks: op(op(v0, v1), v2) and so on. So op
// must be the same everywhere. Then every rank gets the same bits, also for floating point, where
// order matters. op need be neither commutative nor associative. Sum, Min and Max are ready-made.
//
// One goroutine of each rank takes part for each name. T must be shareable as for Alloc and at most
// MaxReduceBytes long, and all ranks' values with 8 more bytes each at most MaxReduceTotal: up to
// 64 ranks can bring the longest. Arrays and structs let one Reduce carry several figures.
//
// If ranks bring types of one size, all get ErrMismatch. If they bring types of other sizes, those
// do that come with another than the first: it goes on waiting, with those that came like it, until
// all others come so, too, or ctx ends.
//
// When ctx ends first, this rank has not taken part: the others go on waiting, and the error wraps
// ctx.Err(). Other errors: ErrType, ErrMismatch (another rank brings another type), ErrNoSpace (T
// is too large, or with so many ranks), ErrInUse (another goroutine of this process is in the same
// reduction), ErrNodeLost (a rank is lost, so that not all can come), ErrClosed, ErrLost.
func Reduce[T any](ctx context.Context, among Group, name string, v T, op func(a, b T) T) (T, error) {
	all, err := gather(ctx, among, name, v)
	if err != nil {
		var zero T
		return zero, failure(fmt.Sprintf("Reduce %q", name), err)
	}
	result := all[0]
	for _, next := range all[1:] {
		result = op(result, next)
	}
	return result, nil
}

// AllGather returns the values that the ranks of among bring, in their order, to all of them. It is
// otherwise like Reduce, with the same bound for a value and the same errors, and a name stands for
// the same meeting. Package collective has it for slices of any length.
func AllGather[T any](ctx context.Context, among Group, name string, v T) ([]T, error) {
	all, err := gather(ctx, among, name, v)
	if err != nil {
		return nil, failure(fmt.Sprintf("AllGather %q", name), err)
	}
	return all, nil
}

// AllGatherBytes is AllGather for bytes whose number the program finds out as it runs. All ranks
// bring as many; else the error is ErrMismatch.
func AllGatherBytes(ctx context.Context, among Group, name string, v []byte) ([][]byte, error) {
	all, err := gatherBytes(ctx, among, reduction(name), name, brought{"[]byte", attach.NameHash(attach.NameType, "bytes"), v})
	if err != nil {
		return nil, failure(fmt.Sprintf("AllGatherBytes %q", name), err)
	}
	return all, nil
}

// gather returns the values of all ranks, in their order.
func gather[T any](ctx context.Context, among Group, name string, v T) ([]T, error) {
	return gatherAs(ctx, among, reduction(name), name, v)
}

// reduction is a wait in a reduction of this name.
func reduction(name string) item { return item{runstats.Reduction, strings.TrimPrefix(name, hidden)} }

// gatherAs is gather in a call that people know by another name.
func gatherAs[T any](ctx context.Context, among Group, told item, name string, v T) ([]T, error) {
	l, err := layoutOf[T]()
	if err != nil {
		return nil, err
	}
	parts, err := gatherBytes(ctx, among, told, name, brought{l.name, l.hash, bytesOf(&v)})
	if err != nil {
		return nil, err
	}
	all := make([]T, len(parts))
	for i, part := range parts {
		copy(bytesOf(&all[i]), part)
	}
	return all, nil
}

// brought is a value that a rank brings.
type brought struct {
	kind  string // its type, for messages
	hash  uint64 // of the type; the same at all ranks
	bytes []byte
}

// gatherBytes returns what the ranks of among bring, in their order.
func gatherBytes(ctx context.Context, among Group, told item, name string, own brought) ([][]byte, error) {
	g, size := among.group(), among.Size()
	if len(own.bytes) > MaxReduceBytes {
		return nil, fmt.Errorf("%w: a %s has %d bytes, and a rank can bring %d; reduce in parts, or put the values into shared memory and add them up after a barrier",
			ErrNoSpace, own.kind, len(own.bytes), MaxReduceBytes)
	}
	contribution := append(binary.LittleEndian.AppendUint64(nil, own.hash), own.bytes...)
	r, err := enterReduction(among, told, name)
	if err != nil {
		return nil, err
	}
	defer r.leave()
	payload, err := r.meet(ctx, attach.NoFold, contribution)
	if err != nil {
		return nil, err
	}
	all := make([][]byte, 0, size)
	for part := range slices.Chunk(payload, len(contribution)) {
		if binary.LittleEndian.Uint64(part) != own.hash {
			return nil, fmt.Errorf("%w: rank %d brings a value of another type than rank %d's %s", ErrMismatch, g.rank(len(all)), g.c.Rank(), own.kind)
		}
		all = append(all, part[headBytes:])
	}
	return all, nil
}

// reducing is a reduction that this rank is in.
type reducing struct {
	g       group
	parties int
	told    item // for people
	hash    uint64
}

// enterReduction notes that this rank is in a reduction of among, until leave. It sends nothing.
func enterReduction(among Group, told item, name string) (*reducing, error) {
	r := &reducing{g: among.group(), parties: among.Size(), told: told}
	r.hash = attach.NameHash(attach.NameReduce, r.g.c.within(name)+r.g.suffix)
	if !r.g.c.occupied.enter(r.hash) {
		return nil, fmt.Errorf("%w: a rank takes part once at a time; combine the values of goroutines first, or use another name", ErrInUse)
	}
	return r, nil
}

func (r *reducing) leave() { r.g.c.occupied.leave(r.hash) }

// meet waits for all ranks, and returns what they have brought, one behind the other, or what fold
// makes of it.
func (r *reducing) meet(ctx context.Context, fold attach.Fold, contribution []byte) ([]byte, error) {
	c := r.g.c
	w := c.attendant.begin(&wait{item: r.told, object: r.hash, parties: r.parties, ranks: r.g.losses == 0})
	payload, err := r.g.arrive(ctx, w, fold, contribution)
	c.attendant.end(w)
	want := len(contribution)
	if fold == attach.NoFold {
		want *= r.parties
	}
	if err == nil && len(payload) != want {
		return nil, fmt.Errorf("the daemon sent %d bytes where %d ranks bring %d each: it is faulty", len(payload), r.parties, len(contribution))
	}
	return payload, err
}

// Number is what Sum adds up.
type Number interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// Sum is a + b, for Reduce.
func Sum[T Number](a, b T) T { return a + b }

// Min is the smaller of a and b, or NaN if either is, for Reduce.
func Min[T cmp.Ordered](a, b T) T { return min(a, b) }

// Max is the larger of a and b, or NaN if either is, for Reduce.
func Max[T cmp.Ordered](a, b T) T { return max(a, b) }
