package faultlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// MaxBytes bounds an encoded Batch.
const MaxBytes = 64 << 10

// MaxWords bounds the elements of Departure.Written: those of a page of 2 MiB.
const MaxWords = 2 << 20 / 8 / 64

// ErrMalformed is wrapped by all errors of Decode.
var ErrMalformed = errors.New("faultlog: malformed")

// An encoded batch is a header, First, Next and Lost, and the entries. Each begins with its tag.
const (
	headerBytes = 3 * 8

	tagFault     = 1
	tagDeparture = 2

	// Beside the accesses of a fault, which are in the nibbles.
	withContents = 1 << 7
	withLock     = 1 << 3

	// What an entry takes at most: of a fault, and of a departure without its words.
	maxFaultBytes     = 2 + 8*binary.MaxVarintLen64 + 8
	maxDepartureBytes = 2 + 5*binary.MaxVarintLen64
)

var le = binary.LittleEndian

// writer appends a batch to b, entry by entry. Times and places are differences to the last ones.
type writer struct {
	b     []byte
	start int
	at    int64
	place uint64
}

func beginBatch(b []byte, first uint64, lost uint64) writer {
	w := writer{b: b, start: len(b), place: first}
	w.b = le.AppendUint64(w.b, first)
	w.b = le.AppendUint64(w.b, first)
	w.b = le.AppendUint64(w.b, lost)
	return w
}

// end says where the next batch goes on.
func (w *writer) end(next uint64) []byte {
	le.PutUint64(w.b[w.start+8:], next)
	return w.b
}

// has is whether there is room for an entry of so many bytes.
func (w *writer) has(bytes int) bool { return len(w.b)-w.start+bytes <= MaxBytes }

func (w *writer) uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }

func (w *writer) time(at int64) {
	w.b = binary.AppendVarint(w.b, at-w.at)
	w.at = at
}

// node writes a node's number. That of none is the shortest.
func (w *writer) node(n uint32) { w.uint(uint64(n + 1)) }

func (w *writer) fault(f *Fault) bool {
	if !w.has(maxFaultBytes) {
		return false
	}
	bits := byte(f.Access) | byte(f.TakerAccess)<<4
	if f.Contents {
		bits |= withContents
	}
	if f.Lock != 0 {
		bits |= withLock
	}
	w.b = append(w.b, tagFault, bits)
	w.uint(f.Page)
	w.uint(uint64(f.Offset))
	w.uint(uint64(f.PID))
	w.uint(uint64(f.Thread))
	w.time(f.Began)
	w.uint(uint64(f.Granted))
	w.uint(uint64(f.Waited))
	w.node(f.From)
	w.node(f.Taker)
	if f.Lock != 0 {
		w.b = le.AppendUint64(w.b, f.Lock)
	}
	return true
}

func (w *writer) departure(d *Departure) bool {
	if !w.has(maxDepartureBytes + len(d.Written)*binary.MaxVarintLen64) {
		return false
	}
	w.b = append(w.b, tagDeparture, byte(d.Access))
	w.uint(d.Place - w.place)
	w.place = d.Place
	w.uint(d.Page)
	w.time(d.At)
	w.node(d.By)
	w.uint(uint64(len(d.Written)))
	for _, words := range d.Written {
		w.uint(words)
	}
	return true
}

// Append appends an encoded batch of at most MaxBytes to b. It panics if the batch has more, or
// what Decode refuses.
func Append(b []byte, x *Batch) []byte {
	w := beginBatch(b, x.First, x.Lost)
	fits := true
	for i := range x.Faults {
		fits = fits && w.fault(&x.Faults[i])
	}
	for i := range x.Departures {
		fits = fits && w.departure(&x.Departures[i])
	}
	if !fits {
		panic(fmt.Sprintf("faultlog: a batch of %d faults and %d departures, more than %d bytes", len(x.Faults), len(x.Departures), MaxBytes))
	}
	encoded := w.end(x.Next)
	if _, err := Decode(encoded[len(b):]); err != nil {
		panic(err)
	}
	return encoded
}

// reader takes a batch apart.
type reader struct {
	b      []byte
	failed bool
	at     int64
	place  uint64
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.failed = true
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

// uint reads a number of at most most.
func (r *reader) uint(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint32() uint32 { return uint32(r.uint(math.MaxUint32)) }

func (r *reader) node() uint32 { return r.uint32() - 1 }

func (r *reader) duration() time.Duration { return time.Duration(r.uint(math.MaxInt64)) }

func (r *reader) time() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.b = r.b[n:]
	r.at += v
	return r.at
}

func (r *reader) access(a byte, may bool) Access {
	if a >= byte(accessEnd) || a == 0 && !may {
		r.failed = true
	}
	return Access(a)
}

func (r *reader) fault() (f Fault) {
	bits := r.byte()
	f.Contents = bits&withContents != 0
	locked := bits&withLock != 0
	bits &^= withContents | withLock
	f.Access, f.TakerAccess = r.access(bits&0xf, false), r.access(bits>>4, true)
	f.Page, f.Offset, f.PID, f.Thread = r.uint(math.MaxUint64), r.uint32(), r.uint32(), r.uint32()
	f.Began, f.Granted, f.Waited = r.time(), r.duration(), r.duration()
	f.From, f.Taker = r.node(), r.node()
	if locked {
		f.Lock = r.hash()
	}
	r.failed = r.failed || f.Granted > f.Waited
	return f
}

// hash reads the hash of a name, which is not 0.
func (r *reader) hash() (hash uint64) {
	if len(r.b) >= 8 {
		hash, r.b = le.Uint64(r.b), r.b[8:]
	}
	r.failed = r.failed || hash == 0
	return hash
}

func (r *reader) departure() (d Departure) {
	d.Access = r.access(r.byte(), false)
	d.Place = r.place + r.uint(math.MaxUint64)
	r.failed = r.failed || d.Place < r.place
	r.place = d.Place
	d.Page, d.At, d.By = r.uint(math.MaxUint64), r.time(), r.node()
	words := r.uint(MaxWords)
	if r.failed || words > uint64(len(r.b)) { // each takes a byte at least
		r.failed = true
		return d
	}
	for range words {
		d.Written = append(d.Written, r.uint(math.MaxUint64))
	}
	return d
}

// Decode reads what Append or Ring.Append wrote. The batch shares nothing with b. Errors wrap
// ErrMalformed, and come with a batch that has nothing.
func Decode(b []byte) (Batch, error) {
	if len(b) < headerBytes || len(b) > MaxBytes {
		return Batch{}, fmt.Errorf("%w: a batch of %d bytes; %d to %d are possible", ErrMalformed, len(b), headerBytes, MaxBytes)
	}
	x := Batch{First: le.Uint64(b), Next: le.Uint64(b[8:]), Lost: le.Uint64(b[16:])}
	if x.Next < x.First {
		return Batch{}, fmt.Errorf("%w: a batch that begins at %d and ends at %d", ErrMalformed, x.First, x.Next)
	}
	for r := (reader{b: b[headerBytes:], place: x.First}); len(r.b) > 0; {
		at := len(b) - len(r.b)
		switch tag := r.byte(); tag {
		case tagFault:
			x.Faults = append(x.Faults, r.fault())
		case tagDeparture:
			x.Departures = append(x.Departures, r.departure())
		default:
			r.failed = true
		}
		if r.failed {
			return Batch{}, fmt.Errorf("%w: the entry at byte %d of %d makes no sense", ErrMalformed, at, len(b))
		}
	}
	x.Faults, x.Departures = slices.Clip(x.Faults), slices.Clip(x.Departures)
	return x, nil
}
