package node

import (
	"errors"
	"fmt"
	"math"

	"dsmd/internal/attach"
	"dsmd/internal/netio"
	"dsmd/protocol"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// line is a program's second socket, for questions. A nil line is that of a program that has none:
// it cannot be asked.
type line struct {
	poller *netio.Poller
	id     protocol.ClientID
	fd     int
	stream attach.Stream
	out    []byte // frames not yet taken by the socket; at most maxLineOut
	ticket uint64 // of the last question
	asked  bool   // it is not answered yet
	full   bool   // the socket has no room; epoll tells when it has
	// cut is called when the line ends because so many bytes are left unread.
	cut func(unread int)
}

// maxLineOut bounds the answers that a program leaves unread, in bytes. The line of one that leaves
// more is closed, and the log says so: an answer that is left out would be waited for, and a
// question, too. There is room for what a thousand ranks answer in 4 KiB each. A job of more ranks
// that all have as much to say as they may needs more, if a program reads nothing of it meanwhile;
// but a node that kept all that would keep it for a program that never reads, too.
const maxLineOut = 4 << 20

// lineToken is a line's in epoll. Ids have 30 bits.
func lineToken(id protocol.ClientID) int32 { return math.MinInt32 + int32(id) }

// lineOf is the program whose line a token is.
func lineOf(token int32) protocol.ClientID { return protocol.ClientID(token - math.MinInt32) }

// maxID is the largest id of a program.
const maxID = 1<<30 - 1

// openLine takes the second socket of a program that attaches, if it has one.
func (p *program) openLine(log *zap.Logger) error {
	fd, err := p.stream.TakeFD()
	if err != nil {
		return nil // it has none
	}
	if err = isLocalSocket(fd); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = p.replies.poller.Add(fd, lineToken(p.id))
	}
	if err != nil {
		p.files.closer.close(fd)
		return fmt.Errorf("%w: its second socket: %w", attach.ErrMalformed, err)
	}
	p.line = &line{poller: p.replies.poller, id: p.id, fd: fd, stream: attach.Stream{Discard: p.files.closer.close}, cut: func(unread int) {
		log.Warn("a program does not read what the ranks of its job do: it is told no more of that, and counts as one that does not answer",
			zap.Uint32("rank", p.rank), zap.Int("pid", p.pid), zap.Int("unread_bytes", unread))
	}}
	return nil
}

// isLocalSocket tells why a descriptor is no Unix stream socket. The kernel knows that by itself,
// while it asks a file system whether a file is readable, say, and that may be the program's, and
// not answer.
func isLocalSocket(fd int) error {
	for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_STREAM} {
		switch is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, option); {
		case err != nil:
			return err
		case is != want:
			return errors.New("it is a socket of another kind")
		}
	}
	return nil
}

func (l *line) close() {
	if l != nil && l.fd >= 0 {
		_ = l.poller.Remove(l.fd)
		l.stream.Discard(l.fd)
		l.stream.Close()
		l.fd, l.out, l.full = -1, nil, false
	}
}

// send sends a frame when the socket has room.
func (l *line) send(frame []byte) {
	if l == nil || l.fd < 0 {
		return
	}
	if unread := len(l.out) + len(frame); unread > maxLineOut {
		l.close()
		l.cut(unread)
		return
	}
	l.out = append(l.out, frame...)
	l.writeOut()
}

func (l *line) writeOut() {
	for len(l.out) > 0 {
		sent, err := attach.Send(l.fd, l.out)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			l.out = nil // the receive will tell why
			break
		}
		l.out = append(l.out[:0], l.out[sent:]...)
	}
	if full := len(l.out) > 0; full != l.full {
		l.full = full
		if err := l.poller.Watch(l.fd, lineToken(l.id), full); err != nil {
			l.close()
		}
	}
}

// ask asks the program what it does, unless it was asked before and has not answered. It returns
// whether an answer may come.
func (l *line) ask(watcher int32) bool {
	if l == nil || l.fd < 0 {
		return false
	}
	if !l.asked {
		l.ticket++
		l.asked = true
		l.send(attach.AppendAsk(nil, &attach.Ask{Ticket: l.ticket, Question: attach.AskSelf, Watcher: watcher}))
	}
	return l.fd >= 0
}

// answers notes an answer, and returns whether it is to the last question.
func (l *line) answers(ticket uint64) bool {
	due := l.asked && ticket == l.ticket
	if due {
		l.asked = false
	}
	return due
}

// askStacks asks the program to write its stacks to a file, and returns whether it was asked.
func (l *line) askStacks(blocked uint32, fd int) bool {
	if l == nil || l.fd < 0 || len(l.out) > 0 {
		return false
	}
	frame := attach.AppendAsk(nil, &attach.Ask{Ticket: 1, Question: attach.AskStacks, Watcher: attach.NoRank, Blocked: blocked})
	sent, err := attach.Send(l.fd, frame, fd)
	if err != nil {
		return false
	}
	l.out = append(l.out, frame[sent:]...)
	l.writeOut()
	return true
}

// serveLine reads and writes what a program's second socket allows. A program that says there what
// makes no sense cannot be asked any more, and goes on.
func (s *programs) serveLine(p *program, r netio.Readiness) {
	l := p.line
	if r.Writable {
		l.writeOut()
	}
	if !r.Readable || l.fd < 0 {
		return
	}
	err := attach.Receive(l.fd, &l.stream)
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	for err == nil && l.fd >= 0 {
		var f attach.Frame
		var whole bool
		if f, whole, err = l.stream.Next(); err != nil || !whole {
			break
		}
		err = s.heard(p, f)
	}
	if err != nil {
		l.close()
	}
}

// heard deals with a frame of a program's second socket.
func (s *programs) heard(p *program, f attach.Frame) error {
	switch f.Kind {
	case attach.KindAsk:
		a, err := attach.DecodeAsk(f.Body)
		if err == nil && a.Question != attach.AskRanks {
			err = fmt.Errorf("%w: question %d to a daemon", attach.ErrMalformed, a.Question)
		}
		if err != nil {
			return err
		}
		return s.inquiries.ask(p, &a)
	case attach.KindTell:
		t, err := attach.DecodeTell(f.Body)
		if err != nil {
			return err
		}
		s.inquiries.answered(p, &t)
		return nil
	}
	return fmt.Errorf("%w: %v on the second socket", attach.ErrMalformed, f.Kind)
}
