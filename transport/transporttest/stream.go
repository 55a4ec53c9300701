package transporttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"dsmd/transport"
)

// stream is the sequence of frames that one node sends to another. Sender and receiver each run
// their own copy: equal streams prove order, completeness and contents at once, also for frames of
// a single byte.
type stream struct {
	random    *rand.Rand
	control   []byte
	page      []byte // what the current frame carries; nil: no payload
	pageSpace []byte
	index     int // number of the current frame, from 1
}

func newStream(from, to, pageBytes int) *stream { return newStreamOf(0, from, to, pageBytes) }

// newStreamOf is another sequence for each round, of which there are at most 1<<32.
func newStreamOf(round, from, to, pageBytes int) *stream {
	return &stream{
		random:    rand.New(rand.NewPCG(uint64(from)+1, uint64(round)<<32|uint64(to)+1)),
		control:   make([]byte, 0, transport.MaxControlBytes),
		pageSpace: make([]byte, pageBytes),
	}
}

// next steps to the next frame: mostly small ones as the protocol sends them, some of a kilobyte,
// now and then one of a single byte or of the greatest length; every second with a page.
func (s *stream) next() {
	s.index++
	controlBytes := 16 + s.random.IntN(64)
	switch kind := s.random.IntN(64); {
	case kind == 0:
		controlBytes = transport.MaxControlBytes
	case kind < 4:
		controlBytes = 1
	case kind < 12:
		controlBytes = 1 + s.random.IntN(4096)
	}
	s.control = s.control[:controlBytes]
	s.fill(s.control)
	s.page = nil
	if s.random.IntN(2) == 0 {
		s.page = s.pageSpace
		s.fill(s.page)
	}
}

// patternBytes is after how many bytes contents repeat. It divides neither a page nor a buffer, so
// that a piece in the wrong place is noticed, and is short, because the race detector makes every
// word that is computed dear.
const patternBytes = 1016

// fill gives b contents of its own.
func (s *stream) fill(b []byte) {
	word := s.random.Uint64()
	var buf [8]byte
	filled := 0
	for filled < min(len(b), patternBytes) {
		binary.LittleEndian.PutUint64(buf[:], word)
		filled += copy(b[filled:], buf[:])
		word = word*6364136223846793005 + 1442695040888963407
	}
	for filled < len(b) {
		filled += copy(b[filled:], b[:filled])
	}
}

// send sends the current frame.
func (s *stream) send(tr transport.Transport, to transport.NodeID) error {
	var payload transport.Payload
	if s.page != nil {
		payload = tr.Lease(to)
		copy(payload.Bytes(), s.page)
	}
	return tr.Send(to, s.control, payload)
}

// take steps to the next frame, and compares one that has arrived with it.
func (s *stream) take(control []byte, payload transport.Payload) error {
	s.next()
	if !bytes.Equal(control, s.control) {
		return fmt.Errorf("frame %d: the control part has %d bytes that differ from the %d sent", s.index, len(control), len(s.control))
	}
	if (payload != nil) != (s.page != nil) {
		return fmt.Errorf("frame %d: payload arrived: %v; sent: %v", s.index, payload != nil, s.page != nil)
	}
	if payload != nil && !bytes.Equal(payload.Bytes(), s.page) {
		return fmt.Errorf("frame %d: the payload differs from what was sent", s.index)
	}
	return nil
}
