package node

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/faultlog"
	"dsmd/internal/netio"
	"dsmd/protocol"

	"golang.org/x/sys/unix"
)

// program is a program that has connected.
type program struct {
	replies *replies
	id      protocol.ClientID
	fd      int
	stream  attach.Stream
	out     []byte // frames not yet taken by the socket
	pass    []int  // descriptors to send with the first byte of out
	stage   stage
	served  bool // its faults are served
	identity
	ranked bool // rank is taken by this program
	bye    bool
	// waiting are open calls that the engine answers, by the program's tickets.
	waiting map[uint64]protocol.Ticket
	fetches map[uint64]*fetch // open prefetches, by the program's ticket
	pins    map[uint64]*pin   // what its answered Pin calls pin, by their tickets
	pinned  int               // pages that its Pin calls pin or want, at most maxPinned
	page    *controlpage.Page // nil before it is served
	frame   []byte            // taken out of its box
	// lost are ranks of its job that were lost since it attached, and their nodes.
	lost  map[uint32]protocol.NodeID
	files files // that it has given, and no call has taken
	// called are names that it has told, of locks and barriers, by their hashes: with its job's.
	called  map[uint64]string
	blocked bool  // its socket has no room; epoll tells when it has
	cut     error // why the node has shut the connection
	line    *line // for questions; nil: it cannot be asked

	joint map[uint64]*joint // calls that several reactors answer, by their tickets
	// relay has the reactor that leads do something with this program, which this one knows only
	// for the sake of its pages; nil: this one leads.
	relay func(func(*program))
}

// identity is who a program is.
type identity struct {
	job   string // "": that of all programs which say nothing
	size  uint32 // programs of the job
	rank  uint32
	pid   int
	name  string    // of its executable
	since time.Time // when it attached
}

type stage uint8

const (
	stageNew     stage = iota // connected, nothing said
	stageGreeted              // has been welcomed
	stageTrapped              // has handed over its trap, and may call
)

// maxOut bounds the answers that a program leaves unread, in bytes: some of the largest. A program
// that reads less fast than it asks is cut off.
const maxOut = 8 * attach.MaxFrame

// replies is what the connections of all programs share.
type replies struct {
	poller *netio.Poller
	put    bool // one was put on a control page since the last yield
	closer *closer
	// unpin ends what a program's Pin call has pinned.
	unpin func(p *program, ticket uint64)
}

func (p *program) close() {
	if p.page != nil {
		p.page.Close()
		p.page = nil
	}
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1 // other reactors may still answer, and the number may be somebody else's by then
	}
	p.line.close()
	p.stream.Close()
	p.files.close()
}

// answer sends a reply, by the control page if the program looks there for it.
func (p *program) answer(r *attach.Reply) {
	if p.relay != nil {
		answer := *r
		p.relay(func(p *program) { p.answer(&answer) })
		return
	}
	if j := p.joint[r.Ticket]; j != nil {
		if r = p.join(j, r); r == nil {
			return
		}
	}
	frame := attach.AppendReply(nil, r)
	if p.page != nil && p.page.Replies().Put(frame) {
		p.replies.put = true
		return
	}
	p.write(frame)
}

// write sends a frame to the program, now or when its socket has room, and descriptors with it.
func (p *program) write(frame []byte, fds ...int) {
	if len(p.out)+len(frame) > maxOut {
		p.cutOff(fmt.Errorf("it leaves more than %d bytes of answers unread", maxOut))
		return
	}
	if p.page != nil {
		p.page.AddSent()
	}
	p.pass = append(p.pass, fds...)
	p.out = append(p.out, frame...)
	p.writeOut()
}

func (p *program) writeOut() {
	for len(p.out) > 0 {
		sent, err := attach.Send(p.fd, p.out, p.pass...)
		if errors.Is(err, unix.EAGAIN) {
			p.watch(true)
			return
		}
		if err != nil {
			p.out = p.out[:0] // the receive will tell why
			return
		}
		p.pass = nil
		p.out = append(p.out[:0], p.out[sent:]...)
	}
	p.watch(false)
}

// watch asks to be told when the program's socket has room.
func (p *program) watch(writable bool) {
	if p.blocked == writable {
		return
	}
	p.blocked = writable
	if err := p.replies.poller.Watch(p.fd, int32(p.id), writable); err != nil {
		p.cutOff(err)
	}
}

// maySee is whether the program may read of a fault: of its own ones, an observer of all.
func (p *program) maySee(f *faultlog.Fault) bool { return !p.ranked || f.PID == uint32(p.pid) }

// cutOff ends the conversation with the program from within, and tells it why, if it reads what it
// is told. The next receive finds the socket shut, and removes the program.
func (p *program) cutOff(why error) {
	if p.cut != nil {
		return
	}
	p.cut = why
	if p.relay != nil {
		p.relay(func(p *program) { p.cutOff(why) })
		return
	}
	p.sayCut(why)
	_ = unix.Shutdown(p.fd, unix.SHUT_RDWR)
}

// sayCut tells the program why its connection ends, unless that has no room for it.
func (p *program) sayCut(why error) {
	if len(p.out) == 0 {
		p.write(attach.AppendLost(nil, "the daemon has cut this program off: "+why.Error()))
	}
}

// hasDied is whether a connection has ended as that of a program does which has died.
func hasDied(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}

// errRefused ends the connection of a program that was told why.
var errRefused = errors.New("refused")

func (p *program) refuse(code attach.RefuseCode, reason string) error {
	p.write(attach.AppendRefuse(nil, &attach.Refuse{Code: code, Reason: reason}))
	return fmt.Errorf("%w: %s", errRefused, reason)
}

// call notes what the program calls a lock or barrier.
func (p *program) call(c *attach.Call) {
	name := strings.ReplaceAll(c.Name, "\x00", "?")   // it stands before and behind the job
	if p.job != "" && !strings.HasPrefix(name, "/") { // else it means the same in every job
		name = "\x00" + p.job + "\x00" + name
	}
	if len(p.called) < attach.MaxNames {
		p.called[c.Object] = name
	}
}

// noNode stands for the node of a rank that is lost without it.
const noNode = protocol.NodeID(protocol.MaxNodes)

// rankLost notes that a rank of the program's job was lost, since it attached, with its node or,
// with noNode, alone. From now on the program waits at no barrier unless it knows of that.
func (p *program) rankLost(rank uint32, with protocol.NodeID) {
	if p.lost == nil {
		p.lost = map[uint32]protocol.NodeID{}
	}
	p.lost[rank] = with
}

// rankDied notes that a rank is lost, perhaps without its node. If it is with its node, the program
// knows already or is told.
func (p *program) rankDied(rank uint32) {
	if _, known := p.lost[rank]; !known && rank != p.rank {
		p.rankLost(rank, noNode)
	}
}
