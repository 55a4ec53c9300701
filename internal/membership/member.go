package membership

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hashicorp/memberlist"

	"dsmd/internal/wire"
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
const metaVersion = 4

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
	reactors   uint32 // that it can have
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

func (a *Agreement) fields() []any {
	return []any{wire.Line(&a.Name, maxText), wire.Line(&a.Value, maxText)}
}

func (m *member) fields(id *int32) []any {
	return []any{
		&m.incarnation, id, &m.returns, &m.sealed, wire.Line(&m.cluster, MaxCluster), wire.Line(&m.data, MaxAddress), wire.Line(&m.transports, maxText),
		&m.reactors, wire.List(&m.agree, maxAgree, (*Agreement).fields),
	}
}

// appendMember appends m in wire form.
func appendMember(b []byte, m *member) []byte {
	id := int32(m.id)
	return wire.Append(append(b, metaVersion), m.fields(&id)...)
}

// decodeMember reads what appendMember wrote.
func decodeMember(b []byte) (m member, err error) {
	var id int32
	if err := decode(b, "a member's description", m.fields(&id)...); err != nil {
		return member{}, err
	}
	m.id = int(id)
	if _, _, err := net.SplitHostPort(m.data); err != nil || id < Auto {
		return member{}, fmt.Errorf("%w: member %d at %q, which is no address, or no number", ErrMalformed, id, m.data)
	}
	return m, nil
}

// decode reads the fields of what, behind the version.
func decode(b []byte, what string, fields ...any) error {
	switch {
	case len(b) == 0:
		return fmt.Errorf("%w: %s of no bytes", ErrMalformed, what)
	case b[0] != metaVersion:
		return fmt.Errorf("%w: %s of version %d, this node knows version %d", ErrMalformed, what, b[0], metaVersion)
	}
	if err := wire.Decode(b[1:], fields...); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, what, err)
	}
	return nil
}

// fits says what is too long to be told to others.
func (m *member) fits() error {
	if n := len(appendMember(nil, m)); n > memberlist.MetaMaxSize {
		return fmt.Errorf("membership: what this node has to tell of itself has %d bytes, and %d are possible: choose a shorter name for the cluster", n, memberlist.MetaMaxSize)
	}
	got, err := decodeMember(appendMember(nil, m))
	// Append has changed what is too long, or can't be printed.
	if err == nil && (got.cluster != m.cluster || got.data != m.data || got.transports != m.transports || !slices.Equal(got.agree, m.agree)) {
		err = ErrMalformed
	}
	return err
}
