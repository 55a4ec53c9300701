package protocol

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
)

// Fold says what the home of a barrier makes of what the ranks bring. NoFold: it gives all of it to
// everybody. Else each brings as many numbers, and the home combines them element by element, in
// the order of ranks, so everybody gets only as much as one brings. Nothing is combined on its way
// to the home, because each arrival can still be cancelled there.
type Fold uint8

// NoFold leaves what the ranks bring as it is.
const NoFold Fold = 0

// FoldOp is how two numbers are combined.
type FoldOp uint8

const (
	FoldSum FoldOp = iota + 1 // of integers without regard to overflow
	FoldMin                   // of floating point NaN, if either is
	FoldMax                   // as FoldMin
	foldOpEnd
)

// Number is what kind of number is combined, each little-endian.
type Number uint8

const (
	NumberInt8 Number = iota
	NumberInt16
	NumberInt32
	NumberInt64
	NumberUint8
	NumberUint16
	NumberUint32
	NumberUint64
	NumberFloat32
	NumberFloat64
	numberEnd
)

// numbers are by Number how it is called and how many bytes it has.
var numbers = [numberEnd]struct {
	name  string
	bytes int
}{{"int8", 1}, {"int16", 2}, {"int32", 4}, {"int64", 8}, {"uint8", 1}, {"uint16", 2}, {"uint32", 4}, {"uint64", 8}, {"float32", 4}, {"float64", 8}}

var foldOps = [foldOpEnd]string{FoldSum: "the sum", FoldMin: "the least", FoldMax: "the greatest"}

// FoldOf is what combines such numbers so.
func FoldOf(op FoldOp, n Number) Fold { return Fold(op)<<4 | Fold(n) }

func (f Fold) op() FoldOp     { return FoldOp(f >> 4) }
func (f Fold) number() Number { return Number(f & 0xf) }

// Fits reports whether there is such a fold, and so many bytes are such numbers, at least one.
func (f Fold) Fits(bytes int) bool {
	if f == NoFold {
		return true
	}
	return f.op() > 0 && f.op() < foldOpEnd && f.number() < numberEnd && bytes > 0 && bytes%numbers[f.number()].bytes == 0
}

func (f Fold) String() string {
	switch {
	case f == NoFold:
		return "all of it"
	case !f.Fits(8):
		return fmt.Sprintf("Fold(%#x)", uint8(f))
	}
	return foldOps[f.op()] + " of " + numbers[f.number()].name
}

// form is how a number lies in memory.
type form[T cmp.Ordered] struct {
	bytes int
	get   func([]byte) T
	put   func([]byte, T)
}

// combine puts the numbers in next together with those in to, which it changes. Preconditions: both
// are as long, and fit.
func (f Fold) combine(to, next []byte) {
	le := binary.LittleEndian
	switch f.number() {
	case NumberInt8:
		combineAs(f.op(), to, next, form[int8]{1, func(b []byte) int8 { return int8(b[0]) }, func(b []byte, v int8) { b[0] = byte(v) }})
	case NumberUint8:
		combineAs(f.op(), to, next, form[uint8]{1, func(b []byte) uint8 { return b[0] }, func(b []byte, v uint8) { b[0] = v }})
	case NumberInt16:
		combineAs(f.op(), to, next, form[int16]{2, func(b []byte) int16 { return int16(le.Uint16(b)) }, func(b []byte, v int16) { le.PutUint16(b, uint16(v)) }})
	case NumberUint16:
		combineAs(f.op(), to, next, form[uint16]{2, le.Uint16, le.PutUint16})
	case NumberInt32:
		combineAs(f.op(), to, next, form[int32]{4, func(b []byte) int32 { return int32(le.Uint32(b)) }, func(b []byte, v int32) { le.PutUint32(b, uint32(v)) }})
	case NumberUint32:
		combineAs(f.op(), to, next, form[uint32]{4, le.Uint32, le.PutUint32})
	case NumberInt64:
		combineAs(f.op(), to, next, form[int64]{8, func(b []byte) int64 { return int64(le.Uint64(b)) }, func(b []byte, v int64) { le.PutUint64(b, uint64(v)) }})
	case NumberUint64:
		combineAs(f.op(), to, next, form[uint64]{8, le.Uint64, le.PutUint64})
	case NumberFloat32:
		combineAs(f.op(), to, next, form[float32]{4, func(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }, func(b []byte, v float32) { le.PutUint32(b, math.Float32bits(v)) }})
	case NumberFloat64:
		combineAs(f.op(), to, next, form[float64]{8, func(b []byte) float64 { return math.Float64frombits(le.Uint64(b)) }, func(b []byte, v float64) { le.PutUint64(b, math.Float64bits(v)) }})
	}
}

func combineAs[T cmp.Ordered](op FoldOp, to, next []byte, number form[T]) {
	for i := 0; i < len(to); i += number.bytes {
		a, b := number.get(to[i:]), number.get(next[i:])
		switch op {
		case FoldSum:
			a += b
		case FoldMin:
			a = min(a, b)
		case FoldMax:
			a = max(a, b)
		}
		number.put(to[i:], a)
	}
}
