package attach

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

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

// AppendHello appends m as a frame.
func AppendHello(b []byte, m *Hello) []byte {
	start := len(b)
	b = beginFrame(b, KindHello)
	b = le.AppendUint32(b, m.Version)
	b = le.AppendUint32(b, m.PID)
	b = le.AppendUint32(b, uint32(m.Rank))
	b = le.AppendUint32(b, m.Size)
	b = appendBytes(b, m.Job, MaxJob)
	b = appendBytes(b, clip(m.Program, MaxText), MaxText)
	return endFrame(b, start)
}

// HelloVersion is the version in a Hello of this or any other version.
func HelloVersion(b []byte) (uint32, error) {
	r := body{b: b}
	v := r.u32()
	if r.failed {
		return 0, fmt.Errorf("%w: Hello without a version", ErrMalformed)
	}
	return v, nil
}

// DecodeHello reads the body of a Hello. It wants this Version: ask HelloVersion first.
func DecodeHello(b []byte) (Hello, error) {
	r := body{b: b}
	m := Hello{Version: r.u32(), PID: r.u32(), Rank: int32(r.u32()), Size: r.u32(), Job: r.text(MaxJob), Program: r.text(MaxText)}
	if err := r.end(KindHello); err != nil {
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

// Trap hands the daemon its side of the program's trap, a descriptor which is attached to the
// frame: a userfaultfd, or, with Sigsegv, the socket that package sigsegv makes. A second one may
// come with it: a stream socket for questions (Ask). Who passes none cannot be asked.
type Trap struct {
	Sigsegv      bool   // Welcome.Trap was "sigsegv"
	UserModeOnly bool   // the descriptor reports no faults that happen inside system calls
	Features     uint64 // UFFD_FEATURE_ bits that were enabled with UFFDIO_API
}

const (
	trapUserModeOnly = 1 << iota
	trapSigsegv
)

// AppendTrap appends m as a frame.
func AppendTrap(b []byte, m *Trap) []byte {
	start := len(b)
	b = beginFrame(b, KindTrap)
	var flags byte
	if m.UserModeOnly {
		flags |= trapUserModeOnly
	}
	if m.Sigsegv {
		flags |= trapSigsegv
	}
	b = append(b, flags)
	b = le.AppendUint64(b, m.Features)
	return endFrame(b, start)
}

// DecodeTrap reads the body of a Trap.
func DecodeTrap(b []byte) (Trap, error) {
	r := body{b: b}
	flags := r.u8()
	m := Trap{UserModeOnly: flags&trapUserModeOnly != 0, Sigsegv: flags&trapSigsegv != 0, Features: r.u64()}
	if err := r.end(KindTrap); err != nil {
		return Trap{}, err
	}
	if flags&^(trapUserModeOnly|trapSigsegv) != 0 {
		return Trap{}, fmt.Errorf("%w: Trap with unknown flags %#x", ErrMalformed, flags)
	}
	return m, nil
}

// Welcome tells a program about its cluster. The memfd to map is attached to the frame.
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
	Trap        string // the trap back end, "uffd" or "sigsegv"
	Transport   string // how nodes talk, for people
	Priority    string // that of the daemon over programs that compute, for people
}

// AppendWelcome appends m as a frame.
func AppendWelcome(b []byte, m *Welcome) []byte {
	start := len(b)
	b = beginFrame(b, KindWelcome)
	for _, v := range [...]uint32{m.Version, m.Node, m.Nodes, m.Rank, m.Size, m.PageBytes, m.HomeStripe} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, m.RegionBase)
	b = le.AppendUint64(b, m.RegionBytes)
	b = appendBytes(b, m.Trap, MaxText)
	b = appendBytes(b, clip(m.Transport, MaxText), MaxText)
	b = appendBytes(b, clip(m.Priority, MaxText), MaxText)
	return endFrame(b, start)
}

// DecodeWelcome reads the body of a Welcome and checks that it describes a cluster which can exist.
func DecodeWelcome(b []byte) (Welcome, error) {
	r := body{b: b}
	m := Welcome{
		Version: r.u32(), Node: r.u32(), Nodes: r.u32(), Rank: r.u32(), Size: r.u32(), PageBytes: r.u32(), HomeStripe: r.u32(),
		RegionBase: r.u64(), RegionBytes: r.u64(), Trap: r.text(MaxText), Transport: r.text(MaxText), Priority: r.text(MaxText),
	}
	if err := r.end(KindWelcome); err != nil {
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

// AppendRefuse appends m as a frame.
func AppendRefuse(b []byte, m *Refuse) []byte {
	start := len(b)
	b = append(beginFrame(b, KindRefuse), byte(m.Code))
	b = appendBytes(b, clip(m.Reason, MaxText), MaxText)
	return endFrame(b, start)
}

// DecodeRefuse reads the body of a Refuse.
func DecodeRefuse(b []byte) (Refuse, error) {
	r := body{b: b}
	m := Refuse{Code: RefuseCode(r.u8()), Reason: r.text(MaxText)}
	if err := r.end(KindRefuse); err != nil {
		return Refuse{}, err
	}
	return m, nil
}

// AppendLost appends the frame that tells a program that the cluster is broken. reason is cut to
// MaxText.
func AppendLost(b []byte, reason string) []byte {
	start := len(b)
	b = appendBytes(beginFrame(b, KindLost), clip(reason, MaxText), MaxText)
	return endFrame(b, start)
}

// DecodeLost reads the body of a Lost.
func DecodeLost(b []byte) (reason string, err error) {
	r := body{b: b}
	reason = r.text(MaxText)
	return reason, r.end(KindLost)
}

// AppendReady appends the frame that says that the program's faults are served from now on. The
// program's control page is attached to it.
func AppendReady(b []byte) []byte { return endFrame(beginFrame(b, KindReady), len(b)) }

// AppendBye appends the frame with which a program leaves in order.
func AppendBye(b []byte) []byte { return endFrame(beginFrame(b, KindBye), len(b)) }

// DecodeEmpty checks the body of a frame that has none: Ready or Bye.
func DecodeEmpty(f Frame) error {
	r := body{b: f.Body}
	return r.end(f.Kind)
}
