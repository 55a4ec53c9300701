package protocol

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestFolds: every operation on every kind of number does what Go does, element by element, also
// where integers overflow and floating point numbers are none.
func TestFolds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	testFold(t, NumberInt8, func() int8 { return int8(r.Uint32()) })
	testFold(t, NumberInt16, func() int16 { return int16(r.Uint32()) })
	testFold(t, NumberInt32, func() int32 { return int32(r.Uint32()) })
	testFold(t, NumberInt64, func() int64 { return int64(r.Uint64()) })
	testFold(t, NumberUint8, func() uint8 { return uint8(r.Uint32()) })
	testFold(t, NumberUint16, func() uint16 { return uint16(r.Uint32()) })
	testFold(t, NumberUint32, r.Uint32)
	testFold(t, NumberUint64, r.Uint64)
	odd := []float64{0, math.Copysign(0, -1), 1e300, -1e300, 1, math.Inf(1), math.Inf(-1), math.NaN(), 0.1}
	testFold(t, NumberFloat32, func() float32 { return float32(odd[r.IntN(len(odd))]) })
	testFold(t, NumberFloat64, func() float64 { return odd[r.IntN(len(odd))] })
}

func testFold[T cmp.Ordered](t *testing.T, n Number, random func() T) {
	t.Helper()
	const count = 100
	encode := func(v []T) []byte {
		b, err := binary.Append(nil, binary.LittleEndian, v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for op, want := range map[FoldOp]func(a, b T) T{
		FoldSum: func(a, b T) T { return a + b }, FoldMin: func(a, b T) T { return min(a, b) }, FoldMax: func(a, b T) T { return max(a, b) },
	} {
		a, b, both := make([]T, count), make([]T, count), make([]T, count)
		for i := range a {
			a[i], b[i] = random(), random()
			both[i] = want(a[i], b[i])
		}
		f, to := FoldOf(op, n), encode(a)
		if !f.Fits(len(to)) || !f.Fits(numbers[n].bytes) || f.Fits(0) || numbers[n].bytes > 1 && f.Fits(len(to)-1) {
			t.Errorf("%v fits other lengths than those of some numbers", f)
		}
		if f.combine(to, encode(b)); !bytes.Equal(to, encode(both)) {
			t.Errorf("%v of %v and %v is %x, want %v", f, a, b, to, both)
		}
	}
}

// TestNoSuchFold: what is no fold fits nothing, and says so.
func TestNoSuchFold(t *testing.T) {
	for f := range 256 {
		fold := Fold(f)
		known := fold == NoFold || fold.op() >= FoldSum && fold.op() <= FoldMax && fold.number() <= NumberFloat64
		if fold.Fits(8) != known || strings.HasPrefix(fold.String(), "Fold(") == known {
			t.Errorf("%#x: %v fits 8 bytes: %t", f, fold, fold.Fits(8))
		}
	}
	if !NoFold.Fits(0) || !NoFold.Fits(3) {
		t.Error("bytes that are not folded must not be numbers")
	}
}

// TestFoldedBarrier: the home combines what ranks bring in the order of ranks, whoever comes first,
// and everybody gets as much as one has brought. Ranks that want something else are told what.
func TestFoldedBarrier(t *testing.T) {
	home, barrier := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1}), LockObject(0)
	sum := FoldOf(FoldSum, NumberFloat64)
	number := func(x float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)) }
	values := []float64{1, 1e100, 1, -1e100} // only this order makes 0
	arrive := func(ticket Ticket, rank uint32, f Fold, b []byte) []Message {
		sent, rejected := said(home, BarrierArrive{ticket, uint32(len(values)), rank, f, b}.To(0, barrier).SentBy(1))
		if rejected {
			t.Errorf("rejected: rank %d with %v", rank, f)
		}
		return sent
	}
	for _, rank := range []uint32{2, 0, 3} {
		if sent := arrive(Ticket(rank+1), rank, sum, number(values[rank])); len(sent) > 0 {
			t.Fatalf("rank %d: %v", rank, sent)
		}
	}
	for f, why := range map[Fold]string{
		NoFold: "rank 1 wants all of it, others the sum of float64", FoldOf(FoldMax, NumberFloat64): "rank 1 wants the greatest of float64, others the sum of float64",
	} {
		sent := arrive(9, 1, f, number(0))
		if len(sent) != 1 || sent[0].AsBarrierRelease().Status != StatusMismatch || string(sent[0].AsBarrierRelease().Result) != why {
			t.Errorf("%v: %v", f, sent)
		}
	}
	told := answers(arrive(2, 1, sum, number(values[1])))
	if len(told) != len(values) {
		t.Fatalf("%d were released: %v", len(told), told)
	}
	want := number(((values[0] + values[1]) + values[2]) + values[3])
	for _, k := range told {
		if k.Status != StatusOK || !bytes.Equal(k.Result, want) {
			t.Errorf("ticket %d: %v with %x, want %x", k.Ticket, k.Status, k.Result, want)
		}
	}
}

// TestMalformedFold: nobody is sent numbers that are none.
func TestMalformedFold(t *testing.T) {
	for _, k := range []BarrierArrive{
		{Parties: 2, Fold: FoldOf(FoldSum, NumberInt64), Contribution: make([]byte, 12)}, {Parties: 2, Fold: FoldOf(FoldSum, NumberInt8)},
		{Parties: 2, Fold: FoldOf(foldOpEnd, NumberInt8), Contribution: []byte{1}}, {Parties: 2, Fold: FoldOf(FoldMin, numberEnd), Contribution: make([]byte, 8)},
	} {
		m := k.To(0, LockObject(0)).SentBy(1)
		if _, err := DecodeMessage(AppendMessage(nil, &m)); err == nil {
			t.Errorf("%v of %d bytes arrives", k.Fold, len(k.Contribution))
		}
		g := relayed{node: 1, parties: 2, object: LockObject(0), ticket: 1, fold: k.Fold, payload: k.Contribution}
		if _, err := decodeRelayed(g.append(nil)); err == nil {
			t.Errorf("%v of %d bytes is relayed", k.Fold, len(k.Contribution))
		}
	}
	good := relayed{node: 1, parties: 2, object: LockObject(0), ticket: 1, fold: FoldOf(FoldMin, NumberFloat32), payload: make([]byte, 8)}
	if all, err := decodeRelayed(good.append(nil)); err != nil || len(all) != 1 || all[0].fold != good.fold || !slices.Equal(all[0].payload, good.payload) {
		t.Errorf("%+v, %v", all, err)
	}
}
