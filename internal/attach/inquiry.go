package attach

import (
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
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

// AppendAsk appends m as a frame.
func AppendAsk(b []byte, m *Ask) []byte {
	start := len(b)
	b = append(beginFrame(b, KindAsk), byte(m.Question))
	b = le.AppendUint32(le.AppendUint64(b, m.Ticket), uint32(m.Watcher))
	return endFrame(le.AppendUint32(b, m.Blocked), start)
}

// DecodeAsk reads the body of an Ask.
func DecodeAsk(b []byte) (Ask, error) {
	r := body{b: b}
	m := Ask{Question: Question(r.u8()), Ticket: r.u64(), Watcher: int32(r.u32()), Blocked: r.u32()}
	if err := r.end(KindAsk); err != nil {
		return Ask{}, err
	}
	if m.Question == 0 || m.Question >= questionEnd || m.Watcher < NoRank {
		return Ask{}, fmt.Errorf("%w: Ask with question %d of rank %d", ErrMalformed, m.Question, m.Watcher)
	}
	return m, nil
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

// AppendTell appends m as a frame. It panics on what is too long.
func AppendTell(b []byte, m *Tell) []byte {
	start := len(b)
	return endFrame(AppendTellBody(beginFrame(b, KindTell), m), start)
}

// AppendTellBody appends the body of a Tell, as daemons pass it on.
func AppendTellBody(b []byte, m *Tell) []byte {
	last := byte(0)
	if m.Last {
		last = 1
	}
	if len(m.Pages) > MaxPageWaits {
		panic(fmt.Sprintf("attach: %d pages, at most %d are allowed", len(m.Pages), MaxPageWaits))
	}
	b = append(le.AppendUint64(b, m.Ticket), last, byte(m.Presence), byte(len(m.Pages)))
	b = le.AppendUint32(le.AppendUint32(b, m.Rank), m.Node)
	b = appendBytes(le.AppendUint64(b, uint64(m.Ago)), m.Body, MaxBody)
	for i := range m.Pages {
		p := &m.Pages[i]
		b = le.AppendUint64(le.AppendUint64(b, p.Page), uint64(p.Waited))
		b = append(le.AppendUint32(b, p.From), byte(p.Stage))
		b = appendBytes(b, clip(p.Memory, MaxName), MaxName)
	}
	return b
}

// DecodeTell reads the body of a Tell.
func DecodeTell(b []byte) (Tell, error) {
	r := body{b: b}
	m := Tell{Ticket: r.u64()}
	last, presence, pages := r.u8(), Presence(r.u8()), int(r.u8())
	m.Last, m.Presence = last == 1, presence
	m.Rank, m.Node, m.Ago = r.u32(), r.u32(), time.Duration(r.u64())
	m.Body = r.bytes(MaxBody)
	sound := last <= 1 && presence < presenceEnd && pages <= MaxPageWaits
	for range min(pages, MaxPageWaits) {
		p := PageWait{Page: r.u64(), Waited: time.Duration(r.u64()), From: r.u32(), Stage: PageStage(r.u8())}
		p.Memory = r.text(MaxName)
		m.Pages = append(m.Pages, p)
		sound = sound && p.Stage < pageStageEnd
	}
	if err := r.end(KindTell); err != nil {
		return Tell{}, err
	}
	if !sound {
		return Tell{}, fmt.Errorf("%w: Tell with presence %d, %d pages, last %d", ErrMalformed, presence, pages, last)
	}
	return m, nil
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
