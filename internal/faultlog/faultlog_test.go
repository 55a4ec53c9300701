package faultlog

import (
	"errors"
	"math"
	"reflect"
	"testing"
	"time"
)

func everything(*Fault) bool { return true }

// sample is a batch that has each field at its edges.
func sample() *Batch {
	return &Batch{
		First: 7, Next: 20, Lost: 3,
		Faults: []Fault{
			{Page: 5, Offset: 4095, Access: Upgrade, PID: 12, Thread: 13, Began: 1 << 60, Granted: 5, Waited: 9, From: 2, Contents: true, Taker: 1, TakerAccess: Read, Lock: 1 << 63},
			{Page: math.MaxUint64, Offset: math.MaxUint32, Access: Read, PID: math.MaxUint32, Thread: math.MaxUint32, Began: math.MinInt64, Granted: math.MaxInt64, Waited: math.MaxInt64, From: NoNode, Taker: NoNode},
			{Access: Write, Began: math.MaxInt64},
		},
		Departures: []Departure{
			{Place: 7, Page: 3, At: 1 << 60, By: 9, Access: Read, Written: []uint64{1, 0, math.MaxUint64}},
			{Place: 19, Page: 4, At: -1, By: NoNode, Access: Write},
		},
	}
}

// TestCodec: a batch comes back as it went, and anything that is cut off it is an error.
func TestCodec(t *testing.T) {
	x := sample()
	b := Append([]byte("before"), x)[len("before"):]
	got, err := Decode(b)
	if err != nil || !reflect.DeepEqual(&got, x) {
		t.Fatalf("%+v, %v; want %+v", got, err, x)
	}
	whole := 0
	for n := range len(b) {
		if part, err := Decode(b[:n]); err == nil {
			whole++ // it ends between two entries
			if len(part.Faults)+len(part.Departures) == 5 {
				t.Errorf("%d of %d bytes are all", n, len(b))
			}
		} else if !errors.Is(err, ErrMalformed) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if whole != 5 {
		t.Errorf("%d beginnings are batches, want one before each entry", whole)
	}
}

// TestRing: a reader gets everything in order, in batches that fit, and learns how much it has
// missed.
func TestRing(t *testing.T) {
	const capacity, all = 7000, 10000
	r := NewRing(capacity, 10)
	for i := range uint64(all) {
		if i%5 == 0 {
			r.AddDeparture(&Departure{Page: i, At: int64(i), By: 1, Access: Write, Written: make([]uint64, 8)})
		} else {
			r.AddFault(&Fault{Page: i, Access: Read, PID: uint32(i % 2), Began: int64(i), Granted: time.Second, Waited: time.Minute})
		}
	}
	at, lost, seen, batches := uint64(0), uint64(0), map[uint64]bool{}, 0
	for ; at < r.Next(); batches++ {
		b := r.Append(nil, at, func(f *Fault) bool { return f.PID == 1 })
		x, err := Decode(b)
		if err != nil || x.Next <= at {
			t.Fatalf("from %d: %d to %d, %v", at, x.First, x.Next, err)
		}
		for _, f := range x.Faults {
			seen[f.Page] = true
		}
		for _, d := range x.Departures {
			if d.Place != d.Page+10 || d.Place < x.First || d.Place >= x.Next {
				t.Fatalf("departure %d of a batch from %d to %d has the place %d", d.Page, x.First, x.Next, d.Place)
			}
			seen[d.Page] = true
		}
		at, lost = x.Next, lost+x.Lost
	}
	if lost != all-capacity+10 || batches < 2 {
		t.Errorf("%d entries were lost, in %d batches", lost, batches)
	}
	for i := range uint64(all) {
		if want := i >= all-capacity && (i%5 == 0 || i%2 == 1); seen[i] != want {
			t.Fatalf("entry %d was seen: %v", i, seen[i])
		}
	}
	if x, err := Decode(r.Append(nil, End, everything)); err != nil || x.First != r.Next() || x.Next != r.Next() || x.Lost != 0 {
		t.Errorf("at the end: %+v, %v", x, err)
	}
}

// TestLargest: a batch has room for the largest departure there is.
func TestLargest(t *testing.T) {
	r := NewRing(4, 0)
	words := make([]uint64, MaxWords)
	for i := range words {
		words[i] = math.MaxUint64
	}
	for range 2 {
		r.AddDeparture(&Departure{Page: math.MaxUint64, At: math.MinInt64, By: math.MaxUint32 - 1, Access: Write, Written: words})
	}
	for at := range uint64(2) {
		x, err := Decode(r.Append(nil, at, everything))
		if err != nil || len(x.Departures) != 1 || x.Next != at+1 || len(x.Departures[0].Written) != MaxWords {
			t.Fatalf("from %d: %d departures, next is %d, %v", at, len(x.Departures), x.Next, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Append(nil, sample()))
	f.Add(make([]byte, headerBytes))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		// Entries that are encoded by less than they can need may not fit a batch again.
		if maxFaultBytes*len(x.Faults) > MaxBytes/4 || maxDepartureBytes*len(x.Departures)+10*len(b) > MaxBytes/4 {
			return
		}
		if y, err := Decode(Append(nil, &x)); err != nil || !reflect.DeepEqual(x, y) {
			t.Fatalf("%+v has become %+v, %v", x, y, err)
		}
	})
}

// TestGaps: what several readers of one log have missed counts once, and all that any has missed
// counts.
func TestGaps(t *testing.T) {
	var g Gaps
	for i, x := range []struct{ from, to, want uint64 }{
		{0, 0, 0},
		{10, 30, 20}, // the first reader
		{15, 30, 0},  // the second one
		{5, 35, 10},  // the third one, which is behind
		{35, 35, 0},  // the second one again, which has missed nothing
		{35, 60, 25},
		{50, 70, 10},
		{90, 91, 1},
		{72, 75, 3}, // it comes late
		{91, 92, 1},
	} {
		if got := g.Add(&Batch{First: x.to, Next: x.to, Lost: x.to - x.from}); got != x.want {
			t.Errorf("gap %d: %d are new, want %d", i, got, x.want)
		}
	}
	// from a program that lies
	if got := new(Gaps).Add(&Batch{First: 3, Lost: math.MaxUint64}); got != 3 {
		t.Errorf("of 3 entries %d are missing", got)
	}
}
