package rdma

import (
	"encoding/binary"
	"fmt"
)

// A page fills a packet: no packet of RDMA has more than 4096 bytes. So a message about it is a
// second packet, which costs a fraction of what the page costs. But messages about pages are much
// alike: usually one differs from an earlier one in the number of the page alone. Such a message
// goes in the immediate value of the page's write, and the page is all that is sent. What else it
// says follows from what was said before on the same queue pair, which keeps the order and loses
// nothing: both sides remember that (past). Any other message is sent behind the page's write.
//
// The value of a short message, from the highest bit:
//
//	1 bit   1, by which a value that is none is known
//	2 bits  which of the remembered control parts it is like
//	3 bits  how many messages it acknowledges beyond those that were
//	1 bit   the page is in the first slot; else in the next one
//	4 bits  which 32-bit word of the control part differs
//	21 bits in what it differs, as the exclusive or of the two words (little-endian): page numbers 8 GiB apart, if pages have 4 KiB
//
// Its number is the next one.
const (
	shortMark = 1 << 31
	pastParts = 4 // remembered control parts: of reads and of writes, and of two more kinds
	// shortBytes is the longest control part that is remembered; those of the protocol that come
	// with a page have 40.
	shortBytes = 64

	partShift = 29
	acksShift = 26
	acksMax   = 7
	firstSlot = 1 << 25
	wordShift = 21
	wordMask  = shortBytes/4 - 1
	xorLimit  = 1 << 21
)

// part is a control part that is remembered, with zeros behind it. It is unused if it has no bytes.
type part struct {
	bytes int
	data  [shortBytes]byte
}

// set remembers a control part, if it is not too long to be.
func (p *part) set(control []byte) bool {
	if len(control) > shortBytes {
		return false
	}
	p.bytes = copy(p.data[:], control)
	clear(p.data[p.bytes:])
	return true
}

// differs returns the only word in which a control part differs from the remembered one, and in
// what; false if more than one differs.
func (p *part) differs(control []byte) (word int, xor uint32, ok bool) {
	if p.bytes != len(control) {
		return 0, 0, false
	}
	for at := 0; at < len(control); at += 4 {
		x := binary.LittleEndian.Uint32(p.data[at:]) ^ wordOf(control[at:])
		if x == 0 {
			continue
		}
		if xor != 0 {
			return 0, 0, false
		}
		word, xor = at/4, x
	}
	return word, xor, xor < xorLimit
}

// wordOf is the first word of some bytes, with zeros behind them if they are fewer.
func wordOf(b []byte) uint32 {
	if len(b) >= 4 {
		return binary.LittleEndian.Uint32(b)
	}
	var word [4]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint32(word[:])
}

// past is what was said in one direction of a queue pair, as far as a short message builds on it.
// The zero value is the past of a new queue pair.
type past struct {
	number, ack uint64 // of the last message
	slot        int    // the receiver's, where the next page goes
	parts       [pastParts]part
	next        int // which of the parts is forgotten next
}

// abridge returns the value that stands for a message about a page, and remembers the message;
// false: the message cannot be short. The page goes to the first slot or to the next one, of so
// many.
func (s *past) abridge(h header, control []byte, slots int) (value uint32, ok bool) {
	acks := h.ack - s.ack
	if h.flags != flagPage || h.number != s.number+1 || acks > acksMax || h.slot != 0 && int(h.slot) != s.slot {
		return 0, false
	}
	for i := range s.parts {
		if word, xor, ok := s.parts[i].differs(control); ok {
			value = shortMark | uint32(i)<<partShift | uint32(acks)<<acksShift | uint32(word)<<wordShift | xor
			if h.slot == 0 {
				value |= firstSlot
			}
			copy(s.parts[i].data[:], control)
			s.number, s.ack, s.slot = h.number, h.ack, (int(h.slot)+1)%slots
			return value, true
		}
	}
	return 0, false
}

// restore returns the message that a value of abridge stands for. Its control part is put at the
// beginning of b, which has room for shortBytes.
func (s *past) restore(value uint32, slots int, b []byte) (h header, control []byte, err error) {
	p := &s.parts[value>>partShift%pastParts]
	word := int(value >> wordShift & wordMask)
	if value&shortMark == 0 || 4*word >= p.bytes {
		return header{}, nil, fmt.Errorf("%w: a short message %#x, which is like none that was sent", ErrMalformed, value)
	}
	at := p.data[4*word:]
	binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)^value%xorLimit)
	clear(p.data[p.bytes:])
	if value&firstSlot != 0 {
		s.slot = 0
	}
	s.number++
	s.ack += uint64(value >> acksShift & acksMax)
	h = header{number: s.number, ack: s.ack, slot: uint32(s.slot), flags: flagPage}
	s.slot = (s.slot + 1) % slots
	return h, b[:copy(b, p.data[:p.bytes])], nil
}

// remember notes a message that was not short.
func (s *past) remember(h header, control []byte, slots int) {
	s.ack = h.ack
	if h.number != 0 {
		s.number = h.number
	}
	if h.flags&flagPage == 0 {
		return
	}
	s.slot = (int(h.slot) + 1) % slots
	if s.parts[s.next].set(control) {
		s.next = (s.next + 1) % pastParts
	}
}
