package attach

import (
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/wire"
)

// A program has a second socket to its daemon, which it passes with its Trap. By it a daemon asks
// what the program does, and the program asks what all ranks of its job do. It is apart from the
// conversation of calls, because there nobody reads while no call is open.

// Question is what an Ask wants to know.
type Question uint8

const (
	// AskRanks, of a program to its daemon: what does each rank of my job do. The daemon answers by
	// a Tell for each rank, and a last one without a rank. A new question ends the one before.
	AskRanks Question = iota + 1
	// AskSelf, of a daemon to a program: what do you wait for, and what do you hold. The program
	// answers by one Tell, of which only the Body counts.
	AskSelf
	// AskStacks, of a daemon to a program: write your stacks to the descriptor that comes with
	// this. There is no other answer.
	AskStacks

	questionEnd
)

// Ask is a question.
type Ask struct {
	Ticket   uint64
	Question Question
	// Watcher is the rank that asks because it has waited for so long that the job may hang;
	// NoRank: it is asked for another reason. Others need not ask, too, while a lower rank does.
	Watcher int32
	// Blocked, of AskStacks: for how many pages threads of the program have waited for long. They
	// cannot be stopped.
	Blocked uint32
}

func (m *Ask) fields() []any { return []any{&m.Question, &m.Ticket, &m.Watcher, &m.Blocked} }

// AppendAsk appends m as a frame.
func AppendAsk(b []byte, m *Ask) []byte { return appendFrame(b, KindAsk, m.fields()...) }

// DecodeAsk reads the body of an Ask.
func DecodeAsk(b []byte) (Ask, error) {
	m, err := decoded(b, KindAsk, (*Ask).fields)
	if err == nil && (m.Question == 0 || m.Question >= questionEnd || m.Watcher < NoRank) {
		err = fmt.Errorf("%w: Ask with question %d of rank %d", ErrMalformed, m.Question, m.Watcher)
	}
	return m, err
}

// Presence is whether a rank is there.
type Presence uint8

const (
	Answers Presence = iota // it has answered: Body is what it says
	Silent                  // it is attached, and has not answered
	Left                    // it has left in order, or died
	Gone                    // its whole node has not answered; Rank means nothing

	presenceEnd
)

const (
	// MaxBody bounds what a program says of itself, in bytes.
	MaxBody = 16 << 10
	// MaxPageWaits bounds the pages that a Statement names.
	MaxPageWaits = 4
)

// PageStage is how far a page has got for which threads wait.
type PageStage uint8

const (
	PageAsked  PageStage = iota // a node was asked for it: see PageWait.From
	PageParked                  // it is not asked for: no room, no quorum, or a recovery
	PageHere                    // it is on a disk of its node, or waits for one
	PageBusy                    // it is being copied to its backups, or is pinned, or about to go
	pageStageEnd
)

// PageWait is a page for which threads of a program wait.
type PageWait struct {
	Page   uint64
	Memory string // the allocation; "": none that the node knows
	// From is, at PageAsked, the node that was asked: the page's home, or, where that is the
	// program's own node, who has the page; or that node, if others have to give up their copies.
	From   uint32
	Stage  PageStage
	Waited time.Duration
}

// Statement is what is known of one rank.
type Statement struct {
	Rank, Node uint32
	Presence   Presence
	Ago        time.Duration // Left: since when
	Pages      []PageWait    // for which its threads have waited longest; at most MaxPageWaits
	// Body is its own words; at most MaxBody bytes. After decoding it points into the frame.
	Body []byte
}

// Tell is an answer, or a part of one.
type Tell struct {
	Ticket uint64
	Last   bool // there is no more, and no Statement
	Statement
}

func (p *PageWait) fields() []any {
	return []any{&p.Page, &p.Waited, &p.From, &p.Stage, wire.Cut(&p.Memory, MaxName)}
}

func (m *Tell) fields() []any {
	return []any{
		&m.Ticket, &m.Last, &m.Presence, &m.Rank, &m.Node, &m.Ago, wire.Text(&m.Body, MaxBody), wire.List(&m.Pages, MaxPageWaits, (*PageWait).fields),
	}
}

// AppendTell appends m as a frame. It panics on what is too long.
func AppendTell(b []byte, m *Tell) []byte { return appendFrame(b, KindTell, m.fields()...) }

// AppendTellBody appends the body of a Tell, as daemons pass it on.
func AppendTellBody(b []byte, m *Tell) []byte { return wire.Append(b, m.fields()...) }

// DecodeTell reads the body of a Tell.
func DecodeTell(b []byte) (Tell, error) {
	m, err := decoded(b, KindTell, (*Tell).fields)
	unknown := func(p PageWait) bool { return p.Stage >= pageStageEnd }
	if err == nil && (m.Presence >= presenceEnd || slices.ContainsFunc(m.Pages, unknown)) {
		err = fmt.Errorf("%w: Tell with presence %d and pages %v", ErrMalformed, m.Presence, m.Pages)
	}
	return m, err
}

// Pair makes a second socket: the program's end, and the descriptor for its daemon.
func Pair() (own *Conn, theirs int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("attach: make a second socket: %w", os.NewSyscallError("socketpair", err))
	}
	f := os.NewFile(uintptr(fds[0]), "dsmd")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		unix.Close(fds[1])
		return nil, -1, fmt.Errorf("attach: make a second socket: %w", err)
	}
	return NewConn(c.(*net.UnixConn)), fds[1], nil
}
