package membership

import (
	"encoding/binary"
	"fmt"
	"net"
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

// printable makes a reason of any text.
func printable(text string) string {
	b := []byte(text)
	for i, c := range b {
		if c < ' ' || c > '~' {
			b[i] = '?'
		}
	}
	return string(b[:min(len(b), maxReason)])
}

// message is what nodes say to each other besides gossip. Each is sent by a connection of its own,
// so they can overtake each other.
type message struct {
	kind   kind
	round  uint32 // of the proposal; 0 for leaving
	from   string // name of the sender
	digest digest // of the table; zero for withdraw, leaving and ask
	nodes  []Node // propose and tell: the table
	reason string // leaving: why, "" if it was told to; at most maxReason bytes
}

// appendMessage appends m in wire form.
func appendMessage(b []byte, m *message) []byte {
	b = append(b, metaVersion, byte(m.kind))
	b = binary.LittleEndian.AppendUint32(b, m.round)
	b = append(b, m.digest[:]...)
	b = appendText(b, m.from)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(m.nodes)))
	for i := range m.nodes {
		b = appendText(appendText(b, m.nodes[i].name), m.nodes[i].Data)
	}
	if m.kind == leaving {
		b = appendText(b, m.reason)
	}
	return b
}

// decodeMessage reads what appendMessage wrote.
func decodeMessage(b []byte) (message, error) {
	r := reader{b: b}
	version, k := r.u8(), kind(r.u8())
	if version != metaVersion || k == 0 || k >= kindEnd {
		return message{}, fmt.Errorf("%w: a message of version %d and kind %d", ErrMalformed, version, k)
	}
	m := message{kind: k, round: r.u32()}
	copy(m.digest[:], r.take(len(m.digest)))
	m.from = r.text(maxName)
	count := int(r.u16())
	if count > maxTable || (count > 0) != (k == propose || k == tell) {
		return message{}, fmt.Errorf("%w: a %v with %d nodes", ErrMalformed, k, count)
	}
	for id := range count {
		n := Node{ID: id, name: r.text(maxName), Data: r.text(MaxAddress)}
		if r.failed {
			break // count is what the sender says
		}
		if _, _, err := net.SplitHostPort(n.Data); err != nil {
			return message{}, fmt.Errorf("%w: a node at %q, which is no address", ErrMalformed, n.Data)
		}
		m.nodes = append(m.nodes, n)
	}
	if k == leaving {
		m.reason = r.text(maxReason)
	}
	if r.failed || len(r.b) != 0 {
		return message{}, fmt.Errorf("%w: a %v of %d bytes", ErrMalformed, k, len(b))
	}
	return m, nil
}
