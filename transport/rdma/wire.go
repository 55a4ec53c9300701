package rdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"dsmd/internal/wire"
	"dsmd/transport"
)

// ErrMalformed is wrapped by the reason of Handler.PeerDown when a peer has sent what this package
// does not understand.
var ErrMalformed = errors.New("rdma: malformed message")

// version is the version of all that this package says to its peers.
const version = 4

// Hello is what a node says of itself in the greeting of the base transport, when it has a device
// and wants to use it.
var Hello = []byte{'r', 'd', 'm', 'a', version}

// header stands before each piece of a control part, on every path.
//
//	number  u64  of the message, from 1, in each direction of a pair; 0: an acknowledgement alone
//	ack     u64  the sender has dealt with all messages up to this number
//	slot    u32  in which of the receiver's slots for this peer the page lies; noSlot if there is none there
//	flags   u32
type header struct {
	number, ack uint64
	slot, flags uint32
}

const (
	headerBytes = 24
	pieceBytes  = blockBytes - headerBytes // of a control part, in one message
	noSlot      = 1<<32 - 1

	flagMore = 1 // the control part goes on in the next message
	flagPage = 2 // a page belongs to the message
	flagAck  = 4 // the sender waits for an acknowledgement; see pagePool.bounce and Transport.drain
	flagsAll = flagMore | flagPage | flagAck
)

func (h header) put(b []byte) {
	binary.LittleEndian.PutUint64(b, h.number)
	binary.LittleEndian.PutUint64(b[8:], h.ack)
	binary.LittleEndian.PutUint32(b[16:], h.slot)
	binary.LittleEndian.PutUint32(b[20:], h.flags)
}

// readHeader reads the header of a message and returns what follows it.
func readHeader(b []byte) (h header, piece []byte, err error) {
	if len(b) < headerBytes {
		return header{}, nil, fmt.Errorf("%w: %d bytes, a header has %d", ErrMalformed, len(b), headerBytes)
	}
	h = header{
		number: binary.LittleEndian.Uint64(b), ack: binary.LittleEndian.Uint64(b[8:]),
		slot: binary.LittleEndian.Uint32(b[16:]), flags: binary.LittleEndian.Uint32(b[20:]),
	}
	piece = b[headerBytes:]
	switch {
	case h.flags&^flagsAll != 0:
		return header{}, nil, fmt.Errorf("%w: unknown flags %#x", ErrMalformed, h.flags)
	case h.flags&flagMore != 0 && h.flags&flagPage != 0:
		return header{}, nil, fmt.Errorf("%w: a page before the end of its control part", ErrMalformed)
	case h.number == 0 && (len(piece) > 0 || h.flags&^flagAck != 0):
		return header{}, nil, fmt.Errorf("%w: an acknowledgement with %d bytes and flags %#x", ErrMalformed, len(piece), h.flags)
	case h.number != 0 && (len(piece) == 0 || len(piece) > pieceBytes):
		return header{}, nil, fmt.Errorf("%w: %d bytes of control part in a message, 1 to %d are possible", ErrMalformed, len(piece), pieceBytes)
	case h.flags&flagPage == 0 && h.slot != noSlot:
		return header{}, nil, fmt.Errorf("%w: slot %d without a page", ErrMalformed, h.slot)
	}
	return h, piece, nil
}

// note says what a frame on the base transport is, in its first byte.
type note byte

const (
	noteMessage note = 1 + iota // a message with its header; its page is the frame's payload
	noteOffer                   // terms: this side has a queue pair and asks for one
	noteAnswer                  // terms: here it is
	noteReady                   // generation: who offered the queue pair has got an answer by it
	// noteBroken: generation, text. The queue pair does not work, or there will be none.
	noteBroken
)

// maxTextBytes bounds the text of noteBroken.
const maxTextBytes = 300

// terms is what a node tells a peer of its queue pair and of the memory that the peer may write.
type terms struct {
	generation uint32 // which attempt of the pair this belongs to
	window     uint16 // messages that the peer may have on their way
	slots      uint16 // pages that it may have on their way
	address    uint64 // of the first slot
	key        uint32
	device     []byte // see endpoint.describe
}

// maxDeviceBytes bounds terms.device.
const maxDeviceBytes = 100

func (t *terms) fields() []any {
	return []any{&t.generation, &t.window, &t.slots, &t.address, &t.key, wire.Text(&t.device, maxDeviceBytes)}
}

func appendTerms(b []byte, n note, t terms) []byte {
	return wire.Append(append(b, byte(n)), t.fields()...)
}

// readTerms reads what appendTerms wrote, note included, which is there.
func readTerms(b []byte) (t terms, err error) {
	switch err := wire.Decode(b[1:], t.fields()...); {
	case err != nil:
		return terms{}, fmt.Errorf("%w: terms: %w", ErrMalformed, err)
	case t.window < 1 || t.slots < 1:
		return terms{}, fmt.Errorf("%w: terms with a window of %d messages and %d slots", ErrMalformed, t.window, t.slots)
	}
	return t, nil
}

func appendGeneration(b []byte, n note, generation uint32, text string) []byte {
	b = binary.LittleEndian.AppendUint32(append(b, byte(n)), generation)
	return append(b, text[:min(len(text), maxTextBytes)]...)
}

// readGeneration reads what appendGeneration wrote. Of the text only printable ASCII is kept: it
// ends up in the log.
func readGeneration(b []byte) (generation uint32, text string, err error) {
	if len(b) < 5 || len(b) > 5+maxTextBytes {
		return 0, "", fmt.Errorf("%w: a note of %d bytes, 5 to %d are possible", ErrMalformed, len(b), 5+maxTextBytes)
	}
	printable := make([]byte, 0, len(b)-5)
	for _, c := range b[5:] {
		if c < ' ' || c > '~' {
			c = '?'
		}
		printable = append(printable, c)
	}
	return binary.LittleEndian.Uint32(b[1:]), string(printable), nil
}

// Precondition of the split of control parts: the longest one has fewer pieces than fit into a
// queue of any size.
const _ = uint(maxPieces - transport.MaxControlBytes/pieceBytes)

const maxPieces = (transport.MaxControlBytes + pieceBytes - 1) / pieceBytes
