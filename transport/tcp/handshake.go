package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"dsmd/internal/wire"
	"dsmd/transport"
)

// WireVersion is the version of everything that nodes say to each other through this package and of
// what they put into the frames. Nodes of different versions refuse each other.
const WireVersion = 26

// ErrRefused is wrapped by the errors of Connect when this node and a peer cannot work together:
// they differ in version, number of channels, cluster, number of nodes or page size. Trying again
// does not help.
var ErrRefused = errors.New("refused")

// errNotOurs says that whoever is on the other side speaks another protocol.
var errNotOurs = errors.New("it does not speak dsmd's protocol; check the address")

const (
	// magic starts an opening and a greeting. Its last byte is not a character, so that no text
	// protocol sends it.
	magic = "dsmdtcp\x01"
	// greetingPrefixBytes is magic, version u16, node u16, length of the rest u16. The prefix is
	// the same in all versions, so that nodes of different versions can tell each other what
	// differs.
	greetingPrefixBytes = len(magic) + 6
	// maxGreetingRest bounds what is read before anything is known of the sender. Later versions
	// may say more than this one; 1 KiB leaves room.
	maxGreetingRest = 1024
	// verdictPrefixBytes is the part of a verdict before its text.
	verdictPrefixBytes = 3
	// maxVerdictBytes bounds the text of a refusal.
	maxVerdictBytes = 512
)

// MaxClusterBytes bounds the length of Config.Cluster.
const MaxClusterBytes = 255

// MaxHelloBytes bounds the length of Config.Hello.
const MaxHelloBytes = 64

// purpose is what a caller wants.
type purpose uint8

const (
	// purposeCall is to make a connection. Nodes with higher numbers call those with lower ones.
	purposeCall purpose = iota
	// purposeAsk is to find out what became of a peer that does not call again. Nodes with lower
	// numbers ask. No connection comes of it, but a peer that has not noticed the end of the last
	// one learns of it.
	purposeAsk
	purposes // how many there are
)

// standing is what the sender of a greeting is to a cluster, as far as the addressee is concerned.
type standing uint8

const (
	founding standing = iota // it founds one, with all others
	joining                  // it wants to come into one that runs
	// belonging: it belongs to one that runs, in which the addressee is not, or not yet.
	belonging
	// acquainted: it was connected to the addressee or to its predecessor, and has not gone on
	// without that.
	acquainted
	standings // how many there are
)

// greeting is how a node introduces itself.
type greeting struct {
	version uint16
	node    transport.NodeID
	// addressee is whom the sender believes to be talking to; its own number if it cannot know.
	addressee   transport.NodeID
	nodes       uint16
	pageBytes   uint32
	purpose     purpose // the answer to a greeting has the same
	listens     bool    // others can connect to the sender
	standing    standing
	incarnation uint64 // drawn by each Transport anew, never 0: tells a node from its successor
	expected    uint64 // the addressee's incarnation; 0: the sender has never been connected to it
	// call is the number of this attempt, counted by the caller from 1, and in the answer the same
	// number. Of two connections the one with the higher number is valid. Who asks names the last
	// one that it knows of.
	call uint64
	// received is how many bytes of the addressee's stream the sender has: the stream goes on
	// behind them. What arrives meanwhile by an earlier connection is skipped when it comes again.
	received uint64
	channels uint8 // that each node has; 0: one
	cluster  string
	hello    string // see Config.Hello
}

// fields are those behind the prefix.
func (g *greeting) fields() []any {
	return []any{
		&g.addressee, &g.nodes, &g.pageBytes, &g.purpose, &g.listens, &g.standing, &g.incarnation, &g.expected, &g.call, &g.received, &g.channels,
		wire.Text(&g.cluster, MaxClusterBytes), wire.Text(&g.hello, MaxHelloBytes),
	}
}

// appendGreeting appends g in wire form.
func appendGreeting(b []byte, g greeting) []byte {
	rest := wire.Append(nil, g.fields()...)
	return append(appendPrefix(b, g.version, g.node, len(rest)), rest...)
}

// appendPrefix appends the prefix of an opening or a greeting.
func appendPrefix(b []byte, version uint16, node transport.NodeID, restBytes int) []byte {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = binary.LittleEndian.AppendUint16(b, uint16(node))
	return binary.LittleEndian.AppendUint16(b, uint16(restBytes))
}

// readPrefixed reads a prefix and the rest that it announces, which stays in buf.
func readPrefixed(r io.Reader, buf *[greetingPrefixBytes + maxGreetingRest]byte) (version uint16, node transport.NodeID, rest []byte, err error) {
	prefix := buf[:greetingPrefixBytes]
	n, err := io.ReadFull(r, prefix)
	switch {
	case speaksTLS(prefix[:n]):
		return 0, 0, nil, errSpeaksTLS
	case err != nil:
		return 0, 0, nil, err
	case string(prefix[:len(magic)]) != magic:
		return 0, 0, nil, errNotOurs
	}
	fields := prefix[len(magic):]
	restBytes := int(binary.LittleEndian.Uint16(fields[4:]))
	if restBytes > maxGreetingRest {
		return 0, 0, nil, fmt.Errorf("its greeting has %d bytes, more than the %d allowed", restBytes, maxGreetingRest)
	}
	rest = buf[greetingPrefixBytes:][:restBytes]
	if _, err := io.ReadFull(r, rest); err != nil {
		return 0, 0, nil, err
	}
	return binary.LittleEndian.Uint16(fields), transport.NodeID(binary.LittleEndian.Uint16(fields[2:])), rest, nil
}

// readGreeting reads what appendGreeting wrote, and not a byte more: frames may follow. Of a
// greeting in another version it understands the version and the node alone.
func readGreeting(r io.Reader) (greeting, error) {
	var buf [greetingPrefixBytes + maxGreetingRest]byte
	version, node, rest, err := readPrefixed(r, &buf)
	g := greeting{version: version, node: node}
	if err != nil || version != WireVersion {
		return g, err
	}
	switch err := wire.Decode(rest, g.fields()...); {
	case err != nil:
		return greeting{}, fmt.Errorf("its greeting is none of version %d: %w", WireVersion, err)
	case g.purpose >= purposes || g.standing >= standings || g.incarnation == 0:
		return greeting{}, fmt.Errorf("its greeting has purpose %d, standing %d and incarnation %d, which version %d does not know",
			g.purpose, g.standing, g.incarnation, WireVersion)
	}
	return g, nil
}

// otherVersion says that two versions differ.
func otherVersion(mine, theirs uint16) string {
	return fmt.Sprintf("it runs wire version %d, this node %d", theirs, mine)
}

// mismatch says why the senders of the two greetings cannot work together, in the words of the
// sender of mine, or "" if they can.
func mismatch(mine, theirs greeting) string {
	switch {
	case theirs.version != mine.version:
		return otherVersion(mine.version, theirs.version)
	case theirs.channels != mine.channels:
		return fmt.Sprintf("it runs with --reactors %d, this node with %d; give all daemons of a cluster the same number",
			max(theirs.channels, 1), max(mine.channels, 1))
	case theirs.cluster != mine.cluster:
		return fmt.Sprintf("it belongs to cluster %q, this node to %q", theirs.cluster, mine.cluster)
	case theirs.nodes != mine.nodes:
		return fmt.Sprintf("its cluster has %d nodes, this node's %d", theirs.nodes, mine.nodes)
	case theirs.pageBytes != mine.pageBytes:
		return fmt.Sprintf("its pages have %d bytes, this node's %d", theirs.pageBytes, mine.pageBytes)
	}
	return ""
}

// verdict is what one side of a handshake makes of the other. The zero value accepts.
type verdict struct {
	why string // it is not accepted; "": it is
	// later: it may be accepted later, with nothing changed but what this side knows of its peers.
	later bool
}

// appendVerdict appends a verdict: length of the text u16, later u8, text. Longer texts are cut.
func appendVerdict(b []byte, v verdict) []byte {
	text := v.why[:min(len(v.why), maxVerdictBytes)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	b = append(b, 0)
	if v.later {
		b[len(b)-1] = 1
	}
	return append(b, text...)
}

// readVerdict reads what appendVerdict wrote, and not a byte more.
func readVerdict(r io.Reader) (verdict, error) {
	var buf [verdictPrefixBytes + maxVerdictBytes]byte
	if _, err := io.ReadFull(r, buf[:verdictPrefixBytes]); err != nil {
		return verdict{}, err
	}
	textBytes := int(binary.LittleEndian.Uint16(buf[:]))
	if textBytes > maxVerdictBytes {
		return verdict{}, fmt.Errorf("its verdict has %d bytes, more than the %d allowed", textBytes, maxVerdictBytes)
	}
	if buf[2] > 1 || buf[2] == 1 && textBytes == 0 {
		return verdict{}, fmt.Errorf("its verdict of %d bytes has flag %d, which version %d does not know", textBytes, buf[2], WireVersion)
	}
	text := buf[verdictPrefixBytes:][:textBytes]
	if _, err := io.ReadFull(r, text); err != nil {
		return verdict{}, err
	}
	return verdict{why: printable(text), later: buf[2] == 1}, nil
}

// printable is what a peer says, for this node's log: of anything but printable ASCII only that it
// was there is kept.
func printable(text []byte) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, string(text))
}
