package launch

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxLineBytes bounds what is kept of a line whose end has not come yet. A longer line is passed on
// in pieces of this size, each with the prefix, so a program that never writes a newline costs no
// memory.
const maxLineBytes = 64 << 10

// maxDrainBytes bounds what is read from a pipe whose writers are all dead, or should be: the
// largest capacity a pipe can have without privilege (/proc/sys/fs/pipe-max-size).
const maxDrainBytes = 1 << 20

// sink is where the lines of several streams come together. Lines stay whole.
type sink struct {
	mu  sync.Mutex
	to  io.Writer // guarded by mu, which serialises the writes
	err error     // guarded by mu: the first failed write. Later ones are dropped, readers go on
}

// write passes on whole lines. After the first failure it does nothing and returns that failure.
func (s *sink) write(lines []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		_, s.err = s.to.Write(lines)
	}
	return s.err
}

// newSinks makes the sinks of two outputs: one and the same if both are the same file, as behind
// 2>&1. Two that write to one pipe would break each other's lines: the kernel keeps no write whole
// that is longer than PIPE_BUF.
func newSinks(stdout, stderr io.Writer) (*sink, *sink) {
	out := &sink{to: stdout}
	if sameOutput(stdout, stderr) {
		return out, out
	}
	return out, &sink{to: stderr}
}

// sameOutput reports whether two writers are the same, or files that are.
func sameOutput(a, b io.Writer) bool {
	f, isFile := a.(*os.File)
	g, isFileToo := b.(*os.File)
	if !isFile || !isFileToo {
		// writers of a type that cannot be compared are not the same, as in os/exec
		defer func() { _ = recover() }()
		return a == b
	}
	one, err := f.Stat()
	other, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(one, other)
}

// prefixer cuts a stream into lines and puts a prefix before each.
type prefixer struct {
	prefix string
	line   []byte // the line whose end has not come yet, at most maxLineBytes
	out    []byte // scratch: the finished lines of one call of add
}

// add takes the next bytes of the stream and returns the lines that they finish. The result is
// valid until the next call.
func (p *prefixer) add(b []byte) []byte {
	p.out = p.out[:0]
	for len(b) > 0 {
		// Not as soon as the line is full: its newline may come next.
		if len(p.line) == maxLineBytes && b[0] != '\n' {
			p.finish()
		}
		part := b[:min(len(b), maxLineBytes-len(p.line)+1)]
		if end := bytes.IndexByte(part, '\n'); end >= 0 {
			p.line = append(p.line, part[:end]...)
			b = b[end+1:]
			p.finish()
			continue
		}
		part = part[:min(len(part), maxLineBytes-len(p.line))]
		p.line = append(p.line, part...)
		b = b[len(part):]
	}
	return p.out
}

// rest returns the last line if the stream ended without a newline.
func (p *prefixer) rest() []byte {
	p.out = p.out[:0]
	if len(p.line) > 0 {
		p.finish()
	}
	return p.out
}

func (p *prefixer) finish() {
	p.out = append(p.out, p.prefix...)
	p.out = append(p.out, p.line...)
	p.out = append(p.out, '\n')
	p.line = p.line[:0]
}

// stream passes one output of one child on to a sink.
type stream struct {
	from  *os.File // the reading end of a pipe, non-blocking, so that deadlines work
	to    *sink
	lines prefixer
}

// newStream makes a pipe. The child gets the writing end, which blocks, as programs expect.
func newStream(prefix string, to *sink) (*stream, *os.File, error) {
	r, w, err := pipe()
	if err != nil {
		return nil, nil, err
	}
	return &stream{from: r, to: to, lines: prefixer{prefix: prefix}}, w, nil
}

// pipe is os.Pipe with a writing end in blocking mode, as programs expect of what they inherit.
func pipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fds[0]), unix.Close(fds[1]))
	}
	return os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe"), nil
}

// pump copies until the end of the stream, or until hurryUp and the pipe is empty. When the sink
// fails it goes on reading, so that the child does not block on a full pipe, and calls lost once.
func (s *stream) pump(lost func(error)) {
	defer s.from.Close()
	var reported bool
	pass := func(lines []byte) {
		if len(lines) == 0 {
			return
		}
		if err := s.to.write(lines); err != nil && !reported {
			reported = true
			lost(err)
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := s.from.Read(buf)
		pass(s.lines.add(buf[:n]))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			s.drain(buf, pass)
			break
		}
		if err != nil {
			break
		}
	}
	pass(s.lines.rest())
}

// drain reads what is left in the pipe, without waiting. Read would refuse to: the deadline has
// passed.
func (s *stream) drain(buf []byte, pass func([]byte)) {
	raw, err := s.from.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = raw.Control(func(fd uintptr) {
		for total := 0; total < maxDrainBytes; {
			n, err := unix.Read(int(fd), buf)
			if err == unix.EINTR {
				continue
			}
			if n <= 0 {
				return
			}
			total += n
			pass(s.lines.add(buf[:n]))
		}
	})
}

// hurryUp ends the stream at the end of what is in the pipe now. It is for a pipe that a process
// outside the job holds open.
func (s *stream) hurryUp() { _ = s.from.SetReadDeadline(aLongTimeAgo) }
