package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Message is what engines say to each other: one of the kinds, from one node to another. What the
// kind says is in the fields that are not exported, its slots; see the types of the kinds. The
// contents of a page never are part of it.
type Message struct {
	Kind     Kind
	From, To NodeID
	// Object is what the message is about, if anything: a page, a lock, the hash of a barrier's
	// name, or the first page of a run.
	Object ObjectID
	// Payload is what the kind has of variable length, at most MaxPayload bytes.
	Payload []byte

	access   Access
	flags    flags
	contents Contents
	fold     Fold
	status   Status
	node     NodeID
	acks     uint16
	word     uint32
	rank     uint32
	ticket   Ticket
}

type flags uint8

const (
	flagHasCopy flags = 1 << iota
	flagBackup
	flagAnew
	flagMoves
)

func flagIf(is bool, f flags) flags {
	if is {
		return f
	}
	return 0
}

// SentBy is the message with a sender.
func (m Message) SentBy(n NodeID) Message {
	m.From = n
	return m
}

// Contents is what the message brings of a page.
func (m *Message) Contents() Contents { return m.contents }

// ZeroPage has a message that brings a page of zeros say so instead.
// Preconditions: it brings the contents of a page.
func (m *Message) ZeroPage() { m.contents = ZeroContents }

// FirstPage has a message that brings the contents of a page say instead that they are what the
// page began with, which the host at the other end must have, too. Preconditions: it brings the
// contents of a page.
func (m *Message) FirstPage() { m.contents = FirstContents }

// headerBytes is the length of a Message without its payload on the wire.
const headerBytes = 40

// MaxPayload bounds Message.Payload, in bytes. A BarrierBroadcast of the longest result to every
// node is the largest.
const MaxPayload = MaxResult + 4 + MaxNodes*addresseeBytes

// MaxResult bounds what is answered to a call, in bytes: what all parties of a reduction bring.
const MaxResult = 64 << 10

// MaxContribution bounds what one party may bring to a reduction, in bytes.
const MaxContribution = 1 << 10

// ErrMalformed is wrapped by all errors of DecodeMessage.
var ErrMalformed = errors.New("protocol: malformed message")

// AppendMessage appends m in wire form (little-endian, fixed header, payload). To is not sent: it
// is whoever receives.
func AppendMessage(b []byte, m *Message) []byte {
	b = append(b, byte(m.Kind), byte(m.access), byte(m.flags), byte(m.status))
	b = binary.LittleEndian.AppendUint16(b, uint16(m.From))
	b = binary.LittleEndian.AppendUint16(b, uint16(m.node))
	b = binary.LittleEndian.AppendUint16(b, m.acks)
	b = append(b, byte(m.contents), byte(m.fold))
	b = binary.LittleEndian.AppendUint32(b, m.word)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Object))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.ticket))
	b = binary.LittleEndian.AppendUint32(b, m.rank)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Payload)))
	return append(b, m.Payload...)
}

// DecodeMessage reads what AppendMessage wrote. It accepts nothing else, never panics, and checks
// all that can be checked without state; Engine.Step checks the rest. m.Payload points into b.
func DecodeMessage(b []byte) (Message, error) {
	if len(b) < headerBytes {
		return Message{}, fmt.Errorf("%w: %d bytes, a header has %d", ErrMalformed, len(b), headerBytes)
	}
	m := Message{
		Kind: Kind(b[0]), access: Access(b[1]), flags: flags(b[2]), status: Status(b[3]),
		From:     NodeID(binary.LittleEndian.Uint16(b[4:])),
		node:     NodeID(binary.LittleEndian.Uint16(b[6:])),
		acks:     binary.LittleEndian.Uint16(b[8:]),
		contents: Contents(b[10]),
		fold:     Fold(b[11]),
		word:     binary.LittleEndian.Uint32(b[12:]),
		Object:   ObjectID(binary.LittleEndian.Uint64(b[16:])),
		ticket:   Ticket(binary.LittleEndian.Uint64(b[24:])),
		rank:     binary.LittleEndian.Uint32(b[32:]),
	}
	n := binary.LittleEndian.Uint32(b[36:])
	if n > MaxPayload || int(n) != len(b)-headerBytes {
		return Message{}, fmt.Errorf("%w: %v says %d payload bytes and carries %d", ErrMalformed, m.Kind, n, len(b)-headerBytes)
	}
	if n > 0 {
		m.Payload = b[headerBytes:]
	}
	if err := m.wellFormed(b); err != nil {
		return Message{}, err
	}
	return m, nil
}

// wellFormed says what is wrong with a message, and with its header, whoever gets it.
func (m *Message) wellFormed(header []byte) error {
	switch {
	case m.Kind == 0 || m.Kind >= kindEnd:
		return fmt.Errorf("%w: unknown kind %d", ErrMalformed, m.Kind)
	case strays(header):
		return fmt.Errorf("%w: %v with a field that this kind does not use", ErrMalformed, m.Kind)
	case m.access > Write:
		return fmt.Errorf("%w: %v with unknown access %d", ErrMalformed, m.Kind, m.access)
	case m.contents > FirstContents:
		return fmt.Errorf("%w: %v with unknown contents %d", ErrMalformed, m.Kind, m.contents)
	case m.status >= statusEnd:
		return fmt.Errorf("%w: %v with unknown status %d", ErrMalformed, m.Kind, m.status)
	case !m.fold.Fits(len(m.Payload)):
		return fmt.Errorf("%w: %v that is to fold %d bytes as %v", ErrMalformed, m.Kind, len(m.Payload), m.fold)
	case m.acks > MaxNodes:
		return fmt.Errorf("%w: %v with %d acks, a cluster has at most %d nodes", ErrMalformed, m.Kind, m.acks, MaxNodes)
	}
	return nil
}

func (k Kind) String() string {
	if k < kindEnd && kindTable[k].name != "" {
		return kindTable[k].name
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// HasObject reports whether messages of the kind are about an object.
func (k Kind) HasObject() bool { return k < kindEnd && kindTable[k].uses&slotObject != 0 }
