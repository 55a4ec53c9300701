package launch

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// maxLineBytes bounds what is kept of a line whose end has not come yet. What is longer is passed
// on in pieces, so a program that never writes a newline costs no memory.
const maxLineBytes = 64 << 10

const (
	// partTime is how long the end of a line is waited for before what there is of it is passed on:
	// it may be a question to whoever sits there, or a progress bar.
	partTime = 50 * time.Millisecond
	// pipeTime is how long an unfinished line is kept that goes into a pipe, where lines should
	// stay whole, but somebody may wait for a question as well.
	pipeTime = time.Second
)

// maxDrainBytes bounds what is read from a pipe whose writers are all dead, or should be: the
// largest capacity a pipe can have without privilege (/proc/sys/fs/pipe-max-size).
const maxDrainBytes = 1 << 20

// output takes what children print: text, behind the prefix of the one who has printed it, ends
// with a whole line or with the beginning of one, which goes on with the child's next text. It has
// at most maxTextBytes. The error is that of the first text that could not be passed on; those
// after it are dropped.
type output interface {
	write(prefix string, text []byte) error
}

// lostOutput reports that an output cannot be written any more. A reader that has seen enough, as
// head(1) has, gives the status of a program that SIGPIPE has killed, as shells expect of whoever
// stands before it.
func lostOutput(err error) event {
	if errors.Is(err, syscall.EPIPE) {
		return event{Kind: outputLost, Status: 128 + int(syscall.SIGPIPE), Err: fmt.Sprintf("nobody reads the output any more (%v)", err)}
	}
	return event{Kind: outputLost, Status: StatusOutput, Err: fmt.Sprintf("writing output: %v", err)}
}

// sink is where the lines of several streams come together, each behind its prefix. An unfinished
// line is shown at once on a terminal; when another child prints something then, it goes on behind
// that, on a new line. In a file lines stay whole.
type sink struct {
	to io.Writer
	// keep is for how long the beginning of a line waits for its end; 0: not at all, less: for
	// ever.
	keep time.Duration
	layout

	mu sync.Mutex
	// err is the first failed write: later ones are dropped, readers go on. Guarded by mu.
	err      error
	open     bool                 // the last line is unfinished; guarded by mu
	by       source               // of the last line; guarded by mu
	returned bool                 // a carriage return is what ends it; guarded by mu
	kept     map[source]beginning // guarded by mu
	out      []byte               // scratch; guarded by mu
}

// source is who prints, and by which of its outputs.
type source struct {
	prefix string
	stream string // stdout or stderr
}

func (s source) compare(t source) int {
	return cmp.Or(strings.Compare(s.prefix, t.prefix), strings.Compare(s.stream, t.stream))
}

// voice is an output whose texts come together in a sink, but for those with a file of their own.
type voice struct {
	*sink
	stream string
}

// write implements output.
func (v voice) write(prefix string, text []byte) error {
	by, to := source{prefix, v.stream}, v.sink
	if id, isChild := v.children[prefix]; isChild && v.folder != nil {
		var err error
		if to, err = v.folder.sink(id, v.stream, v.layout); err != nil {
			return err
		}
	}
	return to.take(by, text)
}

// beginning is that of a line.
type beginning struct {
	text  []byte
	since time.Time // when the first of it came
}

// newSink makes a sink. Who sits at a terminal wants to see a question at once.
func newSink(to io.Writer) *sink {
	s := &sink{to: to, kept: map[source]beginning{}, keep: pipeTime}
	f, isFile := to.(*os.File)
	if !isFile {
		return s
	}
	switch info, err := f.Stat(); {
	case isTerminal(f):
		s.keep = 0
	case err == nil && info.Mode().IsRegular():
		s.keep = -1
	}
	return s
}

// isTerminal does without f.Fd, which would make the file blocking.
func isTerminal(f *os.File) (is bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { is = term.IsTerminal(int(fd)) })
	return is && err == nil
}

// take takes a text, as output.write does.
func (s *sink) take(by source, text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep != 0 {
		text = s.whole(by, text)
	}
	return s.show(by, text)
}

// whole adds a text to what is kept of its line, and returns what is to be shown now.
func (s *sink) whole(by source, text []byte) []byte {
	x := s.kept[by]
	text = append(x.text, text...)
	end := bytes.LastIndexByte(text, '\n') + 1
	if len(text)-end > maxLineBytes {
		end = len(text)
	}
	if delete(s.kept, by); end < len(text) {
		if isNew := end > 0 || len(x.text) == 0; isNew {
			x.since = time.Now()
			if s.keep > 0 {
				time.AfterFunc(s.keep, s.flush)
			}
		}
		x.text = bytes.Clone(text[end:])
		s.kept[by] = x
	}
	return text[:end]
}

// flush shows the beginnings of lines that have waited long enough.
func (s *sink) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.showKept(s.keep)
}

// showKept shows the beginnings of lines that have waited so long.
func (s *sink) showKept(long time.Duration) {
	for _, by := range slices.SortedFunc(maps.Keys(s.kept), source.compare) {
		if x := s.kept[by]; time.Since(x.since) >= long {
			delete(s.kept, by)
			_ = s.show(by, x.text) // the next write reports it
		}
	}
}

// end shows what is left, and ends the last line. It waits for no other write, which may be stuck.
func (s *sink) end() {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	s.showKept(0)
	if s.open {
		_ = s.show(s.by, []byte{'\n'})
	}
}

// show writes a text.
func (s *sink) show(by source, text []byte) error {
	s.out = s.out[:0]
	if s.open && s.by != by {
		s.out = append(s.out, '\n')
		s.open, s.returned = false, false
	}
	for line := range bytes.Lines(text) {
		if s.format == JSON {
			s.out = s.object(s.out, by, line)
		} else {
			s.add(by, line)
		}
	}
	if s.err == nil && len(s.out) > 0 {
		_, s.err = s.to.Write(s.out)
	}
	return s.err
}

// add adds a line, or a part of one, to what is written. Behind a carriage return the line begins
// anew, with its prefix.
func (s *sink) add(by source, line []byte) {
	for part := range bytes.SplitAfterSeq(line, []byte{'\r'}) {
		if len(part) == 0 {
			continue
		}
		if !s.open || s.returned && part[0] != '\n' && part[0] != '\r' {
			s.out = s.begin(s.out, by.prefix)
		}
		s.out = append(s.out, part...)
		last := part[len(part)-1]
		s.open, s.by, s.returned = last != '\n', by, last == '\r'
	}
}

// newOutputs makes the outputs of a job. They have one sink if both are the same file, as behind
// 2>&1. Two that write to one pipe would break each other's lines: the kernel keeps no write whole
// that is longer than PIPE_BUF.
func newOutputs(stdout, stderr io.Writer, l layout) (voice, voice) {
	of := func(to io.Writer) *sink {
		s := newSink(to)
		if s.layout = l; l.format == JSON {
			s.keep = -1 // an object for each line, and no part of one
		}
		return s
	}
	out := of(stdout)
	if sameOutput(stdout, stderr) {
		return voice{out, "stdout"}, voice{out, "stderr"}
	}
	return voice{out, "stdout"}, voice{of(stderr), "stderr"}
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

// maxTextBytes bounds a text: a line of which all but its end had come, and what is read at a time.
const maxTextBytes = maxLineBytes + readBytes

// readBytes is how much of a stream is read at a time.
const readBytes = 32 << 10

// stream passes one output of one child on.
type stream struct {
	from   *os.File // the reading end of a pipe, non-blocking, so that deadlines work
	to     output
	prefix string
	whole  bool // the beginning of a line waits for its end, however long

	rest []byte // the beginning of a line
	open bool   // the beginning of a line was passed on, and its end was not

	mu    sync.Mutex
	hurry bool // hurryUp was called; guarded by mu, as is the deadline
}

// newStream makes a pipe. The child gets the writing end, which blocks, as programs expect.
func newStream(prefix string, to output) (*stream, *os.File, error) {
	r, w, err := pipe()
	if err != nil {
		return nil, nil, err
	}
	return &stream{from: r, to: to, prefix: prefix}, w, nil
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

// pump copies until the end of the stream, or until hurryUp and the pipe is empty. When the output
// fails it goes on reading, so that the child does not block on a full pipe, and calls lost once.
func (s *stream) pump(lost func(error)) {
	defer s.from.Close()
	var reported bool
	pass := func(text []byte) {
		if len(text) == 0 {
			return
		}
		s.open = text[len(text)-1] != '\n'
		if err := s.to.write(s.prefix, text); err != nil && !reported {
			reported = true
			lost(err)
		}
	}
	buf := make([]byte, readBytes)
	for {
		n, err := s.from.Read(buf)
		pass(s.add(buf[:n]))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if s.hurried() {
				s.drain(buf, pass)
				break
			}
			pass(s.rest)
			s.rest = s.rest[:0]
		} else if err != nil {
			break
		}
		s.await()
	}
	pass(s.rest)
	if s.open {
		pass([]byte{'\n'})
	}
}

// add takes the next bytes of the stream and returns what is to be passed on now: lines that have
// ended, and what is longer than a line may be.
func (s *stream) add(b []byte) (text []byte) {
	end := bytes.LastIndexByte(b, '\n') + 1
	if end == 0 && len(s.rest)+len(b) <= maxLineBytes {
		s.rest = append(s.rest, b...)
		return nil
	}
	if end == 0 {
		end = len(b)
	}
	text = append(s.rest, b[:end]...)
	s.rest = bytes.Clone(b[end:])
	return text
}

// await sets until when the next read waits: if there is the beginning of a line, only for a while.
func (s *stream) await() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.hurry:
	case len(s.rest) > 0 && !s.whole:
		_ = s.from.SetReadDeadline(time.Now().Add(partTime))
	default:
		_ = s.from.SetReadDeadline(time.Time{})
	}
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
			pass(s.add(buf[:n]))
		}
	})
}

// hurryUp ends the stream at the end of what is in the pipe now. It is for a pipe that a process
// outside the job holds open.
func (s *stream) hurryUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurry = true
	_ = s.from.SetReadDeadline(aLongTimeAgo)
}

func (s *stream) hurried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hurry
}
