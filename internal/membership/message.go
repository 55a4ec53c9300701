package membership

import (
	"fmt"
	"net"

	"dsmd/internal/wire"
)

// kind is what a message says.
type kind uint8

const (
	// propose: these are to be the nodes; do you accept?
	propose kind = iota + 1
	// accept: I accept it, and nothing else until you withdraw it.
	accept
	// withdraw: what I proposed, up to this round, is void.
	withdraw
	// commit: all have accepted; start.
	commit
	// done: I have heard the commit.
	done
	// leaving: I end.
	leaving
	// ask: which are the nodes? From one that comes back.
	ask
	// tell: these are.
	tell

	kindEnd
)

func (k kind) String() string {
	return [...]string{"?", "propose", "accept", "withdraw", "commit", "done", "leaving", "ask", "tell"}[k%kindEnd]
}

// maxTable bounds the nodes of a table: protocol.MaxNodes, and what a message with that many fits
// into.
const maxTable = 1024

// maxName bounds a node's name, in bytes: its address and incarnation.
const maxName = MaxAddress + 17

// maxReason bounds message.reason.
const maxReason = 240

// message is what nodes say to each other besides gossip. Each is sent by a connection of its own,
// so they can overtake each other.
type message struct {
	kind   kind
	round  uint32 // of the proposal; 0 for leaving
	from   string // name of the sender
	digest digest // of the table; zero for withdraw, leaving and ask
	nodes  []Node // propose and tell: the table
	reason string // leaving: why, "" if it was told to
}

func (n *Node) fields() []any {
	return []any{wire.Line(&n.name, maxName), wire.Line(&n.Data, MaxAddress), &n.reactors}
}

func (m *message) fields() []any {
	return []any{
		&m.kind, &m.round, &m.digest, wire.Line(&m.from, maxName), wire.List(&m.nodes, maxTable, (*Node).fields), wire.Line(&m.reason, maxReason),
	}
}

// appendMessage appends m in wire form.
func appendMessage(b []byte, m *message) []byte {
	return wire.Append(append(b, metaVersion), m.fields()...)
}

// decodeMessage reads what appendMessage wrote.
func decodeMessage(b []byte) (m message, err error) {
	if err := decode(b, "a message", m.fields()...); err != nil {
		return message{}, err
	}
	if m.kind == 0 || m.kind >= kindEnd || (len(m.nodes) > 0) != (m.kind == propose || m.kind == tell) || m.reason != "" && m.kind != leaving {
		return message{}, fmt.Errorf("%w: a message of kind %d with %d nodes and the reason %q", ErrMalformed, m.kind, len(m.nodes), m.reason)
	}
	for id := range m.nodes {
		n := &m.nodes[id]
		n.ID = id
		if _, _, err := net.SplitHostPort(n.Data); err != nil {
			return message{}, fmt.Errorf("%w: a node at %q, which is no address", ErrMalformed, n.Data)
		}
	}
	return m, nil
}
