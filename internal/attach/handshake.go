package attach

import (
	"fmt"

	"dsmd/internal/wire"
)

// NoRank is Hello.Rank of a program that was not told its rank: the daemon chooses one.
const NoRank int32 = -1

// Hello is a program's first frame. Its version comes first in the body and will in every future
// version, so that a daemon can always say which version it met (HelloVersion).
type Hello struct {
	Version uint32
	PID     uint32
	Rank    int32  // or NoRank
	Size    uint32 // programs of the job, if Job has a name; 0: as many as the daemon was told
	// at most MaxJob bytes; "": the one that all programs belong to which say nothing
	Job     string
	Program string // for logs; cut to MaxText
}

func (m *Hello) fields() []any {
	return []any{&m.Version, &m.PID, &m.Rank, &m.Size, wire.Text(&m.Job, MaxJob), wire.Cut(&m.Program, MaxText)}
}

// AppendHello appends m as a frame.
func AppendHello(b []byte, m *Hello) []byte { return appendFrame(b, KindHello, m.fields()...) }

// HelloVersion is the version in a Hello of this or any other version.
func HelloVersion(b []byte) (uint32, error) {
	if len(b) < 4 {
		return 0, fmt.Errorf("%w: Hello without a version", ErrMalformed)
	}
	return le.Uint32(b), nil
}

// DecodeHello reads the body of a Hello. It wants this Version: ask HelloVersion first.
func DecodeHello(b []byte) (Hello, error) {
	m, err := decoded(b, KindHello, (*Hello).fields)
	if err != nil {
		return Hello{}, err
	}
	if m.Version != Version {
		return Hello{}, fmt.Errorf("%w: Hello of version %d, this is version %d", ErrMalformed, m.Version, Version)
	}
	if m.Rank < NoRank {
		return Hello{}, fmt.Errorf("%w: Hello with rank %d", ErrMalformed, m.Rank)
	}
	if m.Job == "" && m.Size != 0 {
		return Hello{}, fmt.Errorf("%w: Hello with a size of %d and no job", ErrMalformed, m.Size)
	}
	return m, nil
}

// Trap hands the daemon its side of the program's trap: descriptors which are attached to the
// frame, a userfaultfd for each reactor, or, with Sigsegv, the socket that package sigsegv makes.
// One more may come with them: a stream socket for questions (Ask). Who passes none cannot be
// asked.
type Trap struct {
	Sigsegv      bool   // Welcome.Trap was "sigsegv"
	UserModeOnly bool   // the descriptor reports no faults that happen inside system calls
	Features     uint64 // UFFD_FEATURE_ bits that were enabled with UFFDIO_API
}

func (m *Trap) fields() []any { return []any{&m.Sigsegv, &m.UserModeOnly, &m.Features} }

// AppendTrap appends m as a frame.
func AppendTrap(b []byte, m *Trap) []byte { return appendFrame(b, KindTrap, m.fields()...) }

// DecodeTrap reads the body of a Trap.
func DecodeTrap(b []byte) (Trap, error) { return decoded(b, KindTrap, (*Trap).fields) }

// MaxReactors bounds the reactors of a daemon.
const MaxReactors = 16

// Welcome tells a program about its cluster. The memfds to map are attached to the frame, one for
// each reactor: its pages lie there at their places in the region.
type Welcome struct {
	Version     uint32 // the daemon's
	Node        uint32 // this node, below Nodes
	Nodes       uint32
	Rank        uint32 // this program, below Size
	Size        uint32 // programs that take part
	RegionBase  uint64 // address of the region in every program, page-aligned
	RegionBytes uint64 // whole pages
	PageBytes   uint32 // a power of two
	HomeStripe  uint32 // pages in a row which have the same home, for programs that place data
	Reactors    uint32 // of the daemon, at least 1
	StripePages uint32 // that one reactor serves in a row, at least 1; see package stripes
	Trap        string // the trap back end, "uffd" or "sigsegv"
	Transport   string // how nodes talk, for people
	Priority    string // that of the daemon over programs that compute, for people
}

func (m *Welcome) fields() []any {
	return []any{
		&m.Version, &m.Node, &m.Nodes, &m.Rank, &m.Size, &m.PageBytes, &m.HomeStripe, &m.Reactors, &m.StripePages, &m.RegionBase, &m.RegionBytes,
		wire.Text(&m.Trap, MaxText), wire.Cut(&m.Transport, MaxText), wire.Cut(&m.Priority, MaxText),
	}
}

// AppendWelcome appends m as a frame.
func AppendWelcome(b []byte, m *Welcome) []byte { return appendFrame(b, KindWelcome, m.fields()...) }

// DecodeWelcome reads the body of a Welcome and checks that it describes a cluster which can exist.
func DecodeWelcome(b []byte) (Welcome, error) {
	m, err := decoded(b, KindWelcome, (*Welcome).fields)
	if err != nil {
		return Welcome{}, err
	}
	mask := uint64(m.PageBytes) - 1
	switch {
	case m.Nodes == 0 || m.Node >= m.Nodes:
		return Welcome{}, fmt.Errorf("%w: Welcome to node %d of %d", ErrMalformed, m.Node, m.Nodes)
	case m.Size == 0 || m.Rank >= m.Size:
		return Welcome{}, fmt.Errorf("%w: Welcome to rank %d of %d", ErrMalformed, m.Rank, m.Size)
	case m.PageBytes == 0 || uint64(m.PageBytes)&mask != 0:
		return Welcome{}, fmt.Errorf("%w: Welcome with pages of %d bytes, not a power of two", ErrMalformed, m.PageBytes)
	case m.Reactors == 0 || m.Reactors > MaxReactors || m.StripePages == 0:
		return Welcome{}, fmt.Errorf("%w: Welcome to a daemon of %d reactors, with stripes of %d pages", ErrMalformed, m.Reactors, m.StripePages)
	case m.HomeStripe == 0:
		return Welcome{}, fmt.Errorf("%w: Welcome with a home stripe of no pages", ErrMalformed)
	case m.RegionBase == 0 || m.RegionBytes == 0 || (m.RegionBase|m.RegionBytes)&mask != 0 || m.RegionBase+m.RegionBytes < m.RegionBase:
		return Welcome{}, fmt.Errorf("%w: Welcome with a region of %d bytes at %#x, which is not a run of pages of %d bytes",
			ErrMalformed, m.RegionBytes, m.RegionBase, m.PageBytes)
	}
	return m, nil
}

// RefuseCode says why a daemon turned a program away, for programs; Refuse.Reason says it for
// people.
type RefuseCode uint8

const (
	RefuseOther   RefuseCode = iota
	RefuseVersion            // the program speaks another version
	RefuseRank               // the rank is taken, or no rank of this cluster
	RefuseTrap               // the program's faults can't be served
)

// Refuse turns a program away.
type Refuse struct {
	// Code: a value that the receiver does not know means RefuseOther: the sender may be of another
	// version.
	Code   RefuseCode
	Reason string // says what to do next; cut to MaxText
}

func (m *Refuse) fields() []any { return []any{&m.Code, wire.Cut(&m.Reason, MaxText)} }

// AppendRefuse appends m as a frame.
func AppendRefuse(b []byte, m *Refuse) []byte { return appendFrame(b, KindRefuse, m.fields()...) }

// DecodeRefuse reads the body of a Refuse.
func DecodeRefuse(b []byte) (Refuse, error) { return decoded(b, KindRefuse, (*Refuse).fields) }

// AppendLost appends the frame that tells a program that the cluster is broken. reason is cut to
// MaxText.
func AppendLost(b []byte, reason string) []byte {
	return appendFrame(b, KindLost, wire.Cut(&reason, MaxText))
}

// DecodeLost reads the body of a Lost.
func DecodeLost(b []byte) (reason string, err error) {
	err = decodeFields(b, KindLost, wire.Cut(&reason, MaxText))
	return reason, err
}

// AppendReady appends the frame that says that the program's faults are served from now on. The
// program's control page is attached to it.
func AppendReady(b []byte) []byte { return appendFrame(b, KindReady) }

// AppendBye appends the frame with which a program leaves in order.
func AppendBye(b []byte) []byte { return appendFrame(b, KindBye) }

// DecodeEmpty checks the body of a frame that has none: Ready or Bye.
func DecodeEmpty(f Frame) error { return decodeFields(f.Body, f.Kind) }
