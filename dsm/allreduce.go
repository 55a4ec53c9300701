package dsm

import (
	"context"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"time"

	"dsmd/internal/attach"
)

// Op is how AllReduce combines two numbers.
type Op uint8

const (
	OpSum Op = Op(attach.FoldSum) // their sum; of integers without regard to overflow
	OpMin Op = Op(attach.FoldMin) // the smaller one; of floating point NaN, if either is
	OpMax Op = Op(attach.FoldMax) // the greater one, as OpMin
)

// String is the operation's name.
func (op Op) String() string {
	switch op {
	case OpSum:
		return "OpSum"
	case OpMin:
		return "OpMin"
	case OpMax:
		return "OpMax"
	}
	return fmt.Sprintf("Op(%d)", uint8(op))
}

// MaxAllReduceBytes is the size of the longest slice that AllReduce takes.
const MaxAllReduceBytes = 64 * attach.MaxContribution

// numbers are by reflect.Kind what AllReduce can combine, and how many of them a value is.
var numbers = map[reflect.Kind]struct {
	is  attach.Number
	per int
}{
	reflect.Int8: {attach.NumberInt8, 1}, reflect.Int16: {attach.NumberInt16, 1}, reflect.Int32: {attach.NumberInt32, 1}, reflect.Int64: {attach.NumberInt64, 1},
	reflect.Uint8: {attach.NumberUint8, 1}, reflect.Uint16: {attach.NumberUint16, 1}, reflect.Uint32: {attach.NumberUint32, 1}, reflect.Uint64: {attach.NumberUint64, 1},
	reflect.Int: {attach.NumberInt64, 1}, reflect.Uint: {attach.NumberUint64, 1}, reflect.Uintptr: {attach.NumberUint64, 1},
	reflect.Float32: {attach.NumberFloat32, 1}, reflect.Float64: {attach.NumberFloat64, 1},
	reflect.Complex64: {attach.NumberFloat32, 2}, reflect.Complex128: {attach.NumberFloat64, 2},
}

// AllReduce combines the slices that the ranks of among bring, which are equally long, element by
// element, and returns the result to all of them. It is otherwise like Reduce with Sum, Min or Max:
// the values are combined in the order of ranks, every rank gets the same bits, and it is a
// barrier.
//
// What differs is what travels. With Reduce each rank gets what all have brought. Here the daemon
// that has the reduction combines it, so each rank gets only the result, and of a longer slice than
// 1 KiB four bytes from each other rank before. That pays with many ranks, and with long slices: up
// to 1 KiB goes in one round, and the longest in 65.
//
// When ctx ends before all ranks are there, this rank has not taken part. When it ends later, with
// more than 1 KiB, this rank goes on with the others, and gives up after 30 seconds: then one has
// ended in the middle, though its node is there, and nobody may have a result.
//
// Errors: those of Reduce; ErrMismatch also if ranks bring other lengths, types or operations (if
// all bring more than 1 KiB, all get it; else those that bring something else than the first, which
// goes on waiting); ErrNoSpace if the slice has more than MaxAllReduceBytes, or more than 1 KiB
// with more than 16,384 ranks; ErrType for the least of complex numbers.
func AllReduce[T Number](ctx context.Context, among Group, name string, op Op, v []T) ([]T, error) {
	failed := func(err error) ([]T, error) { return nil, failure(fmt.Sprintf("AllReduce %q", name), err) }
	kind := numbers[reflect.TypeFor[T]().Kind()]
	size := int(reflect.TypeFor[T]().Size())
	switch {
	case op < OpSum || op > OpMax:
		return failed(fmt.Errorf("%w: there is no %v; use OpSum, OpMin or OpMax", ErrMismatch, op))
	case kind.per > 1 && op != OpSum:
		return failed(fmt.Errorf("%w: of complex numbers none is the least", ErrType))
	case len(v)*size > MaxAllReduceBytes:
		return failed(fmt.Errorf("%w: %d values have %d bytes, and a rank can bring %d; collective.AllReduce has no such bound",
			ErrNoSpace, len(v), len(v)*size, MaxAllReduceBytes))
	}
	r, err := enterReduction(among, reduction(name), name)
	if err != nil {
		return failed(err)
	}
	defer r.leave()
	result := slices.Clone(v)
	if err := r.all(ctx, attach.FoldOf(attach.FoldOp(op), kind.is), bytesOfAll(result)); err != nil {
		return failed(err)
	}
	return result, nil
}

// all combines what the ranks bring, and puts the result in its place.
func (r *reducing) all(ctx context.Context, fold attach.Fold, v []byte) error {
	switch {
	case len(v) == 0:
		_, err := r.meet(ctx, attach.NoFold, nil)
		return err
	case len(v) > attach.MaxContribution:
		if err := r.agreeOn(ctx, fold, len(v)); err != nil {
			return err
		}
		coming, end := late(ctx) // all ranks are here, and come to each part
		defer end()
		err := r.parts(coming, fold, v)
		if err != nil && coming.Err() != nil {
			err = fmt.Errorf("%w, and then, for %v: %w", ctx.Err(), comingTime, err)
		}
		return err
	}
	return r.parts(ctx, fold, v)
}

// comingTime is how long after its context has ended a rank waits for the others, which have come
// once, to come again. A test makes it short.
var comingTime = 30 * time.Second

// late is a context that ends comingTime after ctx has.
func late(ctx context.Context) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(comingTime, cancel) })
	return later, func() {
		stop()
		cancel()
	}
}

// parts combines one part of v after the other.
func (r *reducing) parts(ctx context.Context, fold attach.Fold, v []byte) error {
	// A part has whole values, which are of 1, 2, 4, 8 or 16 bytes.
	for part := range slices.Chunk(v, attach.MaxContribution) {
		combined, err := r.meet(ctx, fold, part)
		if err != nil {
			return err
		}
		copy(part, combined)
	}
	return nil
}

// agreeOn waits until all ranks have come, and checks that they want the same. What it brings is
// not folded, and shorter than any value of Reduce: so it is taken neither for a short slice nor
// for a value.
func (r *reducing) agreeOn(ctx context.Context, fold attach.Fold, bytes int) error {
	own := uint32(fold)<<agreedBits | uint32(bytes)
	all, err := r.meet(ctx, attach.NoFold, binary.LittleEndian.AppendUint32(nil, own))
	if err != nil {
		return err
	}
	for from := 0; len(all) > 0; from, all = from+1, all[4:] {
		if other := binary.LittleEndian.Uint32(all); other != own {
			return fmt.Errorf("%w: rank %d brings %d bytes, and rank %d brings %d, or another type or operation",
				ErrMismatch, r.g.c.Rank(), bytes, r.g.rank(from), other&(1<<agreedBits-1))
		}
	}
	return nil
}

// agreedBits are for the bytes of a slice, in what agreeOn brings.
const agreedBits = 24

const _ = uint(1<<agreedBits - 1 - MaxAllReduceBytes)
