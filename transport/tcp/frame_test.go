package tcp

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"dsmd/transport"
	"dsmd/transport/chassis"
)

const testPageBytes = 64

// FuzzFrame: any input, however it is cut into pieces, gives the same frames or an error, never a
// panic; frames are written again as they were read.
func FuzzFrame(f *testing.F) {
	good := append(appendFrameHeader(nil, framePage, 3, 7), make([]byte, 3+testPageBytes)...)
	f.Add(good, uint8(1))
	f.Add(append(append([]byte{}, good...), appendFrameHeader(nil, frameControl, 1, 0)...), uint8(9))
	f.Add(appendFrameHeader(nil, frameControl, transport.MaxControlBytes+1, 0), uint8(3))
	f.Add(appendFrameHeader(nil, frameControl, 0, 0), uint8(3))
	f.Add(append(appendFrameHeader(nil, frameAck, 0, 1<<63), good...), uint8(3))
	f.Add(appendFrameHeader(nil, frameGoodbye, 0, 0), uint8(1))
	f.Add(append(appendFrameHeader(nil, frameGoodbye, 3, 0), "why"...), uint8(1))
	f.Add(appendFrameHeader(nil, frameAck, 1, 0), uint8(3))
	f.Add(appendFrameHeader(nil, frameKinds, 1, 0), uint8(3))
	f.Fuzz(func(t *testing.T, input []byte, piece uint8) {
		whole, wholeErr := readFrames(t, bytes.NewReader(input))
		pieces, piecesErr := readFrames(t, &pieceReader{bytes.NewReader(input), int(piece) + 1})
		bytewise, bytewiseErr := readFrames(t, iotest.OneByteReader(bytes.NewReader(input)))
		if !bytes.Equal(whole, pieces) || !bytes.Equal(whole, bytewise) {
			t.Errorf("whole, in pieces of %d, and bytewise, %x was read as\n%x\n%x\n%x", piece, input, whole, pieces, bytewise)
		}
		if (wholeErr == nil) != (piecesErr == nil) || (wholeErr == nil) != (bytewiseErr == nil) {
			t.Errorf("errors: whole %v, in pieces %v, bytewise %v", wholeErr, piecesErr, bytewiseErr)
		}
		if !bytes.HasPrefix(input, whole) {
			t.Errorf("%x was read as the frames %x", input, whole)
		}
	})
}

type pieceReader struct {
	io.Reader
	size int
}

func (p *pieceReader) Read(b []byte) (int, error) { return p.Reader.Read(b[:min(len(b), p.size)]) }

// readFrames reads frames as a Transport does, through a receive buffer, and returns them in wire
// form.
func readFrames(t *testing.T, r io.Reader) ([]byte, error) {
	in := newReceiveBuffer(testPageBytes)
	var frames []byte
	for {
		space := in.space()
		if len(space) == 0 {
			t.Fatal("there is no room for the rest of a frame")
		}
		n, err := r.Read(space)
		in.end += n
		for {
			f, malformed := decodeFrame(in.unread(), testPageBytes)
			if malformed != nil {
				if !errors.Is(malformed, ErrMalformed) {
					t.Fatalf("%v does not wrap ErrMalformed", malformed)
				}
				return frames, malformed
			}
			if f.bytes == 0 {
				break
			}
			in.start += f.bytes
			frames = appendFrameHeader(frames, f.kind, len(f.control), f.confirmed)
			frames = append(append(frames, f.control...), f.page...)
		}
		if err != nil {
			return frames, nil
		}
	}
}

// next copies what the queue would send next, at most n bytes.
func (q *sendQueue) next(n int) []byte {
	b := make([]byte, n)
	return b[:q.copyNext(b)]
}

// TestSendQueueBoundaries: control parts that end at, before and after the end of a chunk come out
// as they went in, however much is taken at a time, and all memory returns to the pools.
func TestSendQueueBoundaries(t *testing.T) {
	for _, taken := range []int{1, 7, chunkBytes - 1, chunkBytes, 3 * chunkBytes} {
		var chunks chunkPool
		pages := chassis.Pool{Name: name, PageBytes: testPageBytes, MaxSpare: maxSparePages}
		q := sendQueue{chunks: &chunks}
		var want []byte
		for i, size := range []int{5, chunkBytes - 5, 1, chunkBytes, chunkBytes + 1, 2*chunkBytes - 2, 30} {
			part := bytes.Repeat([]byte{byte('a' + i)}, size)
			q.write(part)
			want = append(want, part...)
			p := pages.Get()
			p.Lease(1, p.Own())
			for j := range p.Page() {
				p.Page()[j] = byte(i)
			}
			q.attach(p)
			want = append(want, p.Page()...)
		}
		for from := 0; !q.empty(); from += taken {
			n := min(taken, q.unsent())
			if from%17 == 0 || n > 7 {
				if got := q.next(n); !bytes.Equal(got, want[from:from+n]) {
					t.Fatalf("taken by %d: the %d bytes from %d on differ from what went in", taken, n, from)
				}
			}
			q.advance(n)
		}
		if pages.Spares() != 0 {
			t.Errorf("taken by %d: %d pages returned before they were confirmed", taken, pages.Spares())
		}
		for q.unconfirmed() > 0 {
			q.confirm(q.confirmed + uint64(min(taken, q.unconfirmed())))
		}
		if pages.Spares() != 7 || len(q.segments) != 0 || q.tail != nil || len(chunks.spare) == 0 {
			t.Errorf("taken by %d: %d pages of 7 returned, %d segments and tail %v are left, %d chunks returned",
				taken, pages.Spares(), len(q.segments), q.tail, len(chunks.spare))
		}
	}
}

// TestSendQueueAgainstBytes compares a queue with a plain slice of bytes while everything that can
// happen to it does, in random order.
func TestSendQueueAgainstBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var chunks chunkPool
	pages := chassis.Pool{Name: name, PageBytes: testPageBytes, MaxSpare: maxSparePages}
	q := sendQueue{chunks: &chunks}
	var stream []byte
	for range 50_000 {
		switch random.IntN(6) {
		case 0, 1:
			b := make([]byte, 1+random.IntN(3*testPageBytes))
			for i := range b {
				b[i] = byte(random.Uint32())
			}
			q.write(b)
			stream = append(stream, b...)
		case 2:
			p := pages.Get()
			p.Lease(1, p.Own())
			for i := range p.Page() {
				p.Page()[i] = byte(random.Uint32())
			}
			q.attach(p)
			stream = append(stream, p.Page()...)
		case 3:
			q.advance(random.IntN(min(q.unsent(), 1000) + 1))
		case 4:
			q.confirm(q.confirmed + uint64(random.IntN(int(q.reached-q.confirmed)+1)))
		case 5:
			if random.IntN(4) == 0 {
				q.resume(q.confirmed + uint64(random.IntN(int(q.reached-q.confirmed)+1)))
			}
		}
		if q.end != uint64(len(stream)) || q.unconfirmed() != len(stream)-int(q.confirmed) {
			t.Fatalf("the queue ends at %d and holds %d bytes, want %d and %d", q.end, q.unconfirmed(), len(stream), len(stream)-int(q.confirmed))
		}
		if q.confirmed != min(max(q.known, q.confirmed), q.sent) {
			t.Fatalf("%d bytes were sent, the peer has %d, and %d are confirmed", q.sent, q.known, q.confirmed)
		}
		if got := q.next(300); !bytes.Equal(got, stream[q.sent:min(len(stream), int(q.sent)+300)]) {
			t.Fatalf("what comes next at byte %d differs from what went in", q.sent)
		}
	}
	q.advance(q.unsent())
	q.confirm(q.sent)
	if len(q.segments) != 0 || q.tail != nil {
		t.Errorf("%d segments and tail %v are left", len(q.segments), q.tail)
	}
}

// TestPoolsAreBounded: a burst does not hold its memory for ever.
func TestPoolsAreBounded(t *testing.T) {
	pages := chassis.Pool{Name: name, PageBytes: testPageBytes, MaxSpare: maxSparePages}
	var taken []*chassis.Payload
	for range maxSparePages + 10 {
		taken = append(taken, pages.Get())
	}
	for _, p := range taken {
		pages.Put(p)
	}
	var chunks chunkPool
	for range maxSpareChunks + 10 {
		chunks.put(new(chunk))
	}
	if pages.Spares() != maxSparePages || len(chunks.spare) != maxSpareChunks {
		t.Errorf("%d spare pages, %d spare chunks; the limits are %d and %d",
			pages.Spares(), len(chunks.spare), maxSparePages, maxSpareChunks)
	}
}
