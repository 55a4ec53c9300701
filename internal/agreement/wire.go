package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Mark is a bit of the first byte of each message. It tells messages from other frames on the same
// connections.
const Mark = 0x80

// ErrMalformed is wrapped by the errors of State.Message for bytes that are no message.
var ErrMalformed = errors.New("agreement: malformed message")

// kind says what a message is.
type kind uint8

const (
	prepare  kind = iota + 1 // will you accept nothing below this ballot?
	promise                  // I will not; this is what I have accepted so far
	accept                   // accept these members
	accepted                 // I have
	refuse                   // I have promised a higher ballot, which is this one
	decided                  // the view of this epoch has these members
	query                    // do you know the decision for this epoch?
	kindEnd
)

func (k kind) String() string {
	return [...]string{"nothing", "prepare", "promise", "accept", "accepted", "refuse", "decided", "query"}[min(k, kindEnd)%kindEnd]
}

// ballot orders attempts to decide one epoch: the round, and below it, in sixteen bits, the node
// that has made it. 0 is before all of them.
type ballot uint64

func makeBallot(round uint64, n NodeID) ballot { return ballot(round<<16 | uint64(n)) }

func (b ballot) round() uint64 { return uint64(b) >> 16 }

func (b ballot) node() NodeID { return NodeID(b) }

// message is one message. Which fields are used depends on its kind, see has; the others are zero.
type message struct {
	kind   kind
	epoch  uint32 // the one that is to be decided, or was; at least 1
	ballot ballot // the attempt
	voted  ballot // promise: at which members were accepted; 0: none were
	view          // its members are sorted, without repetitions, and not all are leaving
}

// In the wire form of a member leavingBit is set if it is leaving, and cameBit if it is a process
// that has come.
const leavingBit, cameBit = 1 << 15, 1 << 14

// headerBytes is how long a message without members is.
const headerBytes = 1 + 4 + 8 + 8 + 2

// appendMessage appends m in wire form: Mark and kind, then little-endian epoch, ballot, voted, the
// number of members, each member with its bits, and the processes of those with cameBit.
func appendMessage(b []byte, m *message) []byte {
	b = append(b, Mark|byte(m.kind))
	b = binary.LittleEndian.AppendUint32(b, m.epoch)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.ballot))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.voted))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.members)))
	for _, n := range m.members {
		if contains(m.leaving, n) {
			n |= leavingBit
		}
		if _, came := searchProcess(m.processes, n&^leavingBit); came {
			n |= cameBit
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	for _, p := range m.processes {
		b = binary.LittleEndian.AppendUint64(b, p.id)
	}
	return b
}

// decodeMessage reads what appendMessage wrote, and nothing else: two messages never have the same
// bytes.
func decodeMessage(b []byte) (message, error) {
	if len(b) < headerBytes || b[0]&Mark == 0 {
		return message{}, fmt.Errorf("%w: %d bytes that are none", ErrMalformed, len(b))
	}
	m := message{
		kind: kind(b[0] &^ Mark), epoch: binary.LittleEndian.Uint32(b[1:]),
		ballot: ballot(binary.LittleEndian.Uint64(b[5:])), voted: ballot(binary.LittleEndian.Uint64(b[13:])),
	}
	count := int(binary.LittleEndian.Uint16(b[21:]))
	if m.kind == 0 || m.kind >= kindEnd || m.epoch == 0 {
		return message{}, fmt.Errorf("%w: kind %d for epoch %d", ErrMalformed, m.kind, m.epoch)
	}
	if count > MaxNodes || len(b) < headerBytes+2*count {
		return message{}, fmt.Errorf("%w: %v of %d bytes with %d members", ErrMalformed, m.kind, len(b), count)
	}
	rest := b[headerBytes+2*count:]
	for i := range count {
		n := NodeID(binary.LittleEndian.Uint16(b[headerBytes+2*i:]))
		if n&leavingBit != 0 {
			n &^= leavingBit
			m.leaving = append(m.leaving, n&^cameBit)
		}
		if n&cameBit != 0 && len(rest) >= 8 {
			n &^= cameBit
			m.processes = append(m.processes, process{n, binary.LittleEndian.Uint64(rest)})
			rest = rest[8:]
		}
		if n >= MaxNodes || i > 0 && n <= m.members[i-1] {
			return message{}, fmt.Errorf("%w: %v with members that are not in order", ErrMalformed, m.kind)
		}
		m.members = append(m.members, n)
	}
	if len(rest) > 0 || slices.ContainsFunc(m.processes, func(p process) bool { return p.id == 0 }) {
		return message{}, fmt.Errorf("%w: %v of %d bytes with %d members, of which %d have come", ErrMalformed, m.kind, len(b), count, len(m.processes))
	}
	if !m.sound() {
		return message{}, fmt.Errorf("%w: %v with ballot %d, vote %d and %d members", ErrMalformed, m.kind, m.ballot, m.voted, count)
	}
	return m, nil
}

// sound reports whether the message has exactly the fields that belong to its kind.
func (m *message) sound() bool {
	hasBallot := m.kind != decided && m.kind != query
	hasMembers := m.kind == accept || m.kind == decided || m.kind == promise && m.voted != 0
	return (m.ballot != 0) == hasBallot && (m.voted == 0 || m.kind == promise && m.voted < m.ballot) && (len(m.members) > 0) == hasMembers &&
		(len(m.members) == 0 || len(m.leaving) < len(m.members))
}
