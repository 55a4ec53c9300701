package tcp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"dsmd/transport"
)

const testPageBytes = 64

// FuzzFrame: any input, however it is cut into pieces, gives the same frames or an error, never a panic; frames are
// written again as they were read.
func FuzzFrame(f *testing.F) {
	good := append(appendFrameHeader(nil, 3, testPageBytes), make([]byte, 3+testPageBytes)...)
	f.Add(good, uint8(1))
	f.Add(append(append([]byte{}, good...), appendFrameHeader(nil, 1, 0)...), uint8(9))
	f.Add(appendFrameHeader(nil, transport.MaxControlBytes+1, 0), uint8(3))
	f.Add(appendFrameHeader(nil, 0, 0), uint8(3))
	f.Add(appendFrameHeader(nil, 1, testPageBytes-1), uint8(3))
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

// readFrames reads frames as a Transport does, through a receive buffer, and returns them in wire form.
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
			frames = appendFrameHeader(frames, len(f.control), len(f.page))
			frames = append(append(frames, f.control...), f.page...)
		}
		if err != nil {
			return frames, nil
		}
	}
}

// TestSendQueueBoundaries: control parts that end at, before and after the end of a chunk come out as they went in, however
// much is taken at a time, and all memory returns to the pools.
func TestSendQueueBoundaries(t *testing.T) {
	for _, taken := range []int{1, 7, chunkBytes - 1, chunkBytes, 3 * chunkBytes} {
		var chunks chunkPool
		pages := pagePool{pageBytes: testPageBytes}
		q := sendQueue{chunks: &chunks}
		var want []byte
		for i, size := range []int{5, chunkBytes - 5, 1, chunkBytes, chunkBytes + 1, 2*chunkBytes - 2, 30} {
			part := bytes.Repeat([]byte{byte('a' + i)}, size)
			q.write(part)
			want = append(want, part...)
			p := pages.get()
			p.reserve()
			for j := range p.own {
				p.own[j] = byte(i)
			}
			q.attach(p)
			want = append(want, p.own...)
		}
		var got []byte
		for !q.empty() {
			left := min(taken, q.bytes)
			for _, s := range q.segments[q.head:] {
				n := min(left, len(s.data))
				got = append(got, s.data[:n]...)
				left -= n
			}
			q.advance(min(taken, q.bytes))
		}
		if !bytes.Equal(got, want) {
			t.Errorf("taken by %d: %d bytes came out, %d went in, or they differ", taken, len(got), len(want))
		}
		if len(pages.spare) != 7 || len(q.segments) != 0 || q.tail != nil || len(chunks.spare) == 0 {
			t.Errorf("taken by %d: %d pages of 7 returned, %d segments and tail %v are left, %d chunks returned",
				taken, len(pages.spare), len(q.segments), q.tail, len(chunks.spare))
		}
	}
}

// TestPoolsAreBounded: a burst does not hold its memory for ever.
func TestPoolsAreBounded(t *testing.T) {
	pages := pagePool{pageBytes: testPageBytes}
	for range maxSparePages + 10 {
		pages.put(&page{pool: &pages})
	}
	var chunks chunkPool
	for range maxSpareChunks + 10 {
		chunks.put(new(chunk))
	}
	if len(pages.spare) != maxSparePages || len(chunks.spare) != maxSpareChunks {
		t.Errorf("%d spare pages, %d spare chunks; the limits are %d and %d",
			len(pages.spare), len(chunks.spare), maxSparePages, maxSpareChunks)
	}
}
