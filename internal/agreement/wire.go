package agreement

import (
	"errors"
	"fmt"

	"dsmd/internal/wire"
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

// fields are those that stand behind Mark and the kind.
func (m *message) fields() []any {
	return []any{
		&m.epoch, &m.ballot, &m.voted, wire.List(&m.members, MaxNodes, wire.Item), wire.List(&m.leaving, MaxNodes, wire.Item),
		wire.List(&m.processes, MaxNodes, func(p *process) []any { return []any{&p.node, &p.id} }),
	}
}

// appendMessage appends m in wire form.
func appendMessage(b []byte, m *message) []byte {
	return wire.Append(append(b, Mark|byte(m.kind)), m.fields()...)
}

// decodeMessage reads what appendMessage wrote, and nothing else: two messages never have the same
// bytes.
func decodeMessage(b []byte) (message, error) {
	if len(b) == 0 || b[0]&Mark == 0 {
		return message{}, fmt.Errorf("%w: %d bytes that are none", ErrMalformed, len(b))
	}
	m := message{kind: kind(b[0] &^ Mark)}
	switch err := wire.Decode(b[1:], m.fields()...); {
	case err != nil:
		return message{}, fmt.Errorf("%w: %v: %w", ErrMalformed, m.kind, err)
	case m.kind == 0 || m.kind >= kindEnd || m.epoch == 0:
		return message{}, fmt.Errorf("%w: kind %d for epoch %d", ErrMalformed, m.kind, m.epoch)
	case !m.ordered():
		return message{}, fmt.Errorf("%w: %v with members that are not in order", ErrMalformed, m.kind)
	case !m.sound():
		return message{}, fmt.Errorf("%w: %v with ballot %d, vote %d and %d members", ErrMalformed, m.kind, m.ballot, m.voted, len(m.members))
	}
	return m, nil
}

// ordered reports whether the members are sorted, and so are those of them that leave or have come.
func (m *message) ordered() bool {
	came := make([]NodeID, len(m.processes))
	for i, p := range m.processes {
		if came[i] = p.node; p.id == 0 {
			return false
		}
	}
	for _, list := range [][]NodeID{m.members, m.leaving, came} {
		for i, n := range list {
			if n >= MaxNodes || i > 0 && n <= list[i-1] || !contains(m.members, n) {
				return false
			}
		}
	}
	return true
}

// sound reports whether the message has exactly the fields that belong to its kind.
func (m *message) sound() bool {
	hasBallot := m.kind != decided && m.kind != query
	hasMembers := m.kind == accept || m.kind == decided || m.kind == promise && m.voted != 0
	return (m.ballot != 0) == hasBallot && (m.voted == 0 || m.kind == promise && m.voted < m.ballot) && (len(m.members) > 0) == hasMembers &&
		(len(m.members) == 0 || len(m.leaving) < len(m.members))
}
