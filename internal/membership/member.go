package membership

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/hashicorp/memberlist"
)

// Auto is Config.ID of a node whose number is assigned.
const Auto = -1

// Bounds of what a member says of itself, in bytes. All together must fit into
// memberlist.MetaMaxSize.
const (
	MaxCluster = 100
	MaxAddress = 128 // of Config.Data
	maxAgree   = 16  // agreements
	maxText    = 64  // of an agreement's name or value
)

// ErrMalformed is wrapped by the errors of decoders: what was sent is nothing that this version
// sends.
var ErrMalformed = errors.New("membership: malformed")

// metaVersion is the version of what members say of themselves and to each other. It comes first in
// both.
const metaVersion = 2

// Agreement is a setting on which all nodes must agree, in the words of an error: "region",
// "64GiB".
type Agreement struct{ Name, Value string }

// digest names a table. The zero digest names none.
type digest [16]byte

func (d digest) String() string { return hex.EncodeToString(d[:]) }

// member is a node as it describes itself.
type member struct {
	incarnation uint64 // when it was started, in nanoseconds since 1970
	id          int    // that it must have, or Auto
	// returns: it takes the place that an earlier incarnation had in a cluster that is complete.
	returns    bool
	sealed     digest // of the table that it has started with; zero: none yet
	cluster    string
	data       string // where it takes data connections, HOST:PORT
	transports string // that it has, separated by commas; for people
	agree      []Agreement
	// heard counts members in the order in which this node first heard of them; it is not sent.
	heard uint64
}

// name is how memberlist knows the node.
func (m *member) name() string { return nameOf(m.data, m.incarnation) }

func nameOf(data string, incarnation uint64) string {
	return data + "#" + strconv.FormatUint(incarnation, 16)
}

// earlier reports whether m goes before o: it was started first.
func (m *member) earlier(o *member) bool {
	return cmp.Or(cmp.Compare(m.incarnation, o.incarnation), cmp.Compare(m.data, o.data)) < 0
}

// compareAddress orders members by address, so that automatic numbers do not depend on who was
// started when.
func compareAddress(a, b *member) int {
	hostA, portA, _ := net.SplitHostPort(a.data)
	hostB, portB, _ := net.SplitHostPort(b.data)
	ipA, errA := netip.ParseAddr(hostA)
	ipB, errB := netip.ParseAddr(hostB)
	hosts := cmp.Compare(hostA, hostB)
	if errA == nil && errB == nil {
		hosts = ipA.Compare(ipB)
	}
	// As numbers, not as text: 7400 comes before 10400.
	a16, _ := strconv.ParseUint(portA, 10, 16)
	b16, _ := strconv.ParseUint(portB, 10, 16)
	return cmp.Or(hosts, cmp.Compare(a16, b16), cmp.Compare(a.data, b.data))
}

// mismatch is why theirs cannot be in a cluster with mine, in the words of the node that is mine:
// "" if it can.
func mismatch(mine, theirs *member) string {
	if theirs.cluster != mine.cluster {
		return fmt.Sprintf("it belongs to cluster %q, this node to %q", theirs.cluster, mine.cluster)
	}
	for i, want := range mine.agree {
		if i >= len(theirs.agree) || theirs.agree[i].Name != want.Name {
			return fmt.Sprintf("it says nothing of its %s, this node's is %s", want.Name, want.Value)
		}
		if got := theirs.agree[i].Value; got != want.Value {
			return fmt.Sprintf("its %s is %s, this node's is %s", want.Name, got, want.Value)
		}
	}
	return ""
}

// noID is Auto on the wire.
const noID = 0xffff

// appendMember appends m in wire form.
func appendMember(b []byte, m *member) []byte {
	id := uint16(noID)
	if m.id != Auto {
		id = uint16(m.id)
	}
	b = append(b, metaVersion)
	b = binary.LittleEndian.AppendUint64(b, m.incarnation)
	b = binary.LittleEndian.AppendUint16(b, id)
	returns := byte(0)
	if m.returns {
		returns = 1
	}
	b = append(b, returns)
	b = append(b, m.sealed[:]...)
	b = appendText(b, m.cluster)
	b = appendText(b, m.data)
	b = appendText(b, m.transports)
	b = append(b, byte(len(m.agree)))
	for _, a := range m.agree {
		b = appendText(appendText(b, a.Name), a.Value)
	}
	return b
}

// decodeMember reads what appendMember wrote.
func decodeMember(b []byte) (member, error) {
	r := reader{b: b}
	if v := r.u8(); v != metaVersion {
		return member{}, fmt.Errorf("%w: a member's description of version %d, this node knows version %d", ErrMalformed, v, metaVersion)
	}
	m := member{incarnation: r.u64(), id: Auto}
	if id := r.u16(); id != noID {
		m.id = int(id)
	}
	returns := r.u8()
	m.returns = returns == 1
	copy(m.sealed[:], r.take(len(m.sealed)))
	m.cluster, m.data, m.transports = r.text(MaxCluster), r.text(MaxAddress), r.text(maxText)
	count := int(r.u8())
	if count > maxAgree {
		return member{}, fmt.Errorf("%w: a member with %d settings to agree on", ErrMalformed, count)
	}
	for range count {
		m.agree = append(m.agree, Agreement{r.text(maxText), r.text(maxText)})
	}
	if r.failed || len(r.b) != 0 || returns > 1 {
		return member{}, fmt.Errorf("%w: a member's description of %d bytes", ErrMalformed, len(b))
	}
	if _, _, err := net.SplitHostPort(m.data); err != nil {
		return member{}, fmt.Errorf("%w: a member at %q, which is no address", ErrMalformed, m.data)
	}
	return m, nil
}

// fits says what is too long to be told to others.
func (m *member) fits() error {
	if n := len(appendMember(nil, m)); n > memberlist.MetaMaxSize {
		return fmt.Errorf("membership: what this node has to tell of itself has %d bytes, and %d are possible: choose a shorter name for the cluster", n, memberlist.MetaMaxSize)
	}
	got, err := decodeMember(appendMember(nil, m))
	if err == nil && !bytes.Equal(appendMember(nil, &got), appendMember(nil, m)) {
		err = ErrMalformed
	}
	return err
}

// appendText appends a text of at most 255 bytes and its length.
func appendText(b []byte, s string) []byte { return append(append(b, byte(len(s))), s...) }

// reader takes values from the front of a message. Once one is missing it has failed, and all
// others are zero.
type reader struct {
	b      []byte
	failed bool
}

func (r *reader) take(n int) []byte {
	if r.failed || n > len(r.b) {
		r.failed = true
		return nil
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// text is printable: it ends up in logs.
func (r *reader) text(max int) string {
	b := r.take(int(r.u8()))
	if len(b) > max {
		r.failed = true
		return ""
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			r.failed = true
			return ""
		}
	}
	return string(b)
}
