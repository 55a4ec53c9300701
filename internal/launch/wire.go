package launch

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
)

// The conversation between the launcher and an agent. The agent begins with a line, greeting and
// its version. Every version of dsmd can read the line, and tell it from whatever a remote shell
// prints before it. Then both send frames:
//
//	1 byte   kind
//	4 bytes  length of the body, little endian, at most maxFrameBytes
//	body     JSON (an order or an event), or bytes of a standard stream, or a credit
//
// The bytes of an output are pieces (appendPiece), which may go on in the next frame.
//
// A stream's bytes take credit: each side sends at most windowBytes of a stream that the other one
// has not passed on yet. So an output that nobody reads never holds up an order or an event.

// greeting begins the first line that an agent says.
const greeting = "dsmd-agent "

// conversationVersion is the version of all below. Builds of working trees may have equal versions,
// and would misread each other's orders.
const conversationVersion = 4

// spoken is what an agent of a version of dsmd calls itself, and what a launcher of that version
// wants to hear.
func spoken(version string) string { return fmt.Sprintf("%s, orders %d", version, conversationVersion) }

// maxJunkBytes bounds what a remote shell may print before the agent's greeting.
const maxJunkBytes = 64 << 10

// maxFrameBytes bounds a frame's body. The longest is the order to start programs. It has their
// command line and environment, of which the kernel takes 6 MiB at most (execve(2), whatever the
// limit of the stack), in base64 8 MiB; and for each of up to maxAgentChildren children some
// hundred bytes.
const maxFrameBytes = 16 << 20

// windowBytes bounds what is under way of one stream: two lines of the longest that are kept whole.
const windowBytes = 4 * maxLineBytes

// frameKind says what a frame carries.
type frameKind byte

const (
	frameOrder frameKind = iota
	frameEvent
	frameStdin
	frameStdout
	frameStderr
	frameStdinEnd
	frameStdinCredit
	frameStdoutCredit
	frameStderrCredit
	frameSaid // the child of an event, and what it says before its end
	// of a launcher: whether the agent is there; of an agent: that it is. It has no body.
	frameAlive
)

// order is what a launcher wants of an agent: exactly one field is set.
type order struct {
	Open   *openOrder   `json:"open,omitempty"`
	Start  *startOrder  `json:"start,omitempty"`
	Signal *signalOrder `json:"signal,omitempty"`
	Ask    bool         `json:"ask,omitempty"`
	Halt   bool         `json:"halt,omitempty"`
	Mourn  *childID     `json:"mourn,omitempty"`
	Hurry  bool         `json:"hurry,omitempty"`
	Finish bool         `json:"finish,omitempty"`
}

// signalOrder is a signal for a child.
type signalOrder struct {
	To     childID        `json:"to"`
	Signal syscall.Signal `json:"signal"`
}

// errFrame is wrapped by all errors about frames that make no sense.
var errFrame = errors.New("launch: a frame that makes no sense")

// writeFrame writes a frame with one call of Write.
func writeFrame(w io.Writer, kind frameKind, body []byte) error {
	if len(body) > maxFrameBytes {
		return fmt.Errorf("%w: kind %d with %d bytes, of at most %d", errFrame, kind, len(body), maxFrameBytes)
	}
	frame := make([]byte, 5, 5+len(body))
	frame[0] = byte(kind)
	binary.LittleEndian.PutUint32(frame[1:], uint32(len(body)))
	_, err := w.Write(append(frame, body...))
	return err
}

// readFrame reads a frame. The error is io.EOF if there is none.
func readFrame(r *bufio.Reader) (frameKind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, size := frameKind(head[0]), binary.LittleEndian.Uint32(head[1:])
	if kind > frameAlive || size > maxFrameBytes {
		return 0, nil, fmt.Errorf("%w: kind %d with %d bytes, of at most %d", errFrame, kind, size, maxFrameBytes)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("launch: in the middle of a frame: %w", err)
	}
	return kind, body, nil
}

// decode reads the body of an order or an event.
func decode[T any](body []byte) (v T, err error) {
	if err := json.Unmarshal(body, &v); err != nil {
		return v, fmt.Errorf("%w: %w", errFrame, err)
	}
	return v, nil
}

// mustEncode is the body of an order or an event. They have nothing that JSON cannot say.
func mustEncode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("launch: encoding %T: %v", v, err))
	}
	return body
}

// encodeCredit is the body of a credit.
func encodeCredit(n int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(n)) }

// readGreeting skips what a remote shell prints, line by line, and returns the version that the
// agent names.
func readGreeting(r *bufio.Reader, junk func(line string)) (version string, err error) {
	for skipped := 0; skipped <= maxJunkBytes; {
		line, err := r.ReadSlice('\n')
		text := strings.TrimRight(string(line), "\r\n")
		// A prompt without a newline may stand before it.
		if at := strings.Index(text, greeting); at >= 0 && err == nil {
			return text[at+len(greeting):], nil
		}
		if text != "" {
			junk(text)
		}
		skipped += len(line)
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
	return "", fmt.Errorf("%w: no greeting in %d bytes", errFrame, maxJunkBytes)
}

// allowance is the sender's side of a stream's credit.
type allowance struct {
	mu     sync.Mutex
	change sync.Cond
	left   int  // bytes that may be sent; guarded by mu
	closed bool // guarded by mu
}

func newAllowance() *allowance {
	a := &allowance{left: windowBytes}
	a.change.L = &a.mu
	return a
}

// take waits until something may be sent, and takes up to n bytes of it. It returns 0 when the
// stream is closed.
func (a *allowance) take(n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.left == 0 && !a.closed {
		a.change.Wait()
	}
	if a.closed {
		return 0
	}
	n = min(n, a.left)
	a.left -= n
	return n
}

// add gives credit back. A peer that gives more than it got gains nothing.
func (a *allowance) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = min(a.left+n, windowBytes)
	a.change.Broadcast()
}

// credit takes the body of a credit.
func (a *allowance) credit(body []byte) error {
	if len(body) != 4 {
		return fmt.Errorf("%w: a credit of %d bytes", errFrame, len(body))
	}
	n := binary.LittleEndian.Uint32(body)
	if n > windowBytes {
		return fmt.Errorf("%w: a credit for %d bytes, the window has %d", errFrame, n, windowBytes)
	}
	a.add(int(n))
	return nil
}

// close lets nobody wait any more.
func (a *allowance) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.change.Broadcast()
}

// channel is one side of the conversation. Several goroutines may send.
type channel struct {
	mu sync.Mutex
	w  io.Writer // guarded by mu, which keeps frames whole
}

func (c *channel) send(kind frameKind, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeFrame(c.w, kind, body)
}

// outgoing is an output of an agent: what is written to it arrives at the launcher's output of the
// same kind. One goroutine writes.
type outgoing struct {
	to        *channel
	kind      frameKind
	allowance *allowance
}

// Write sends all of b, as credit comes.
func (o *outgoing) Write(b []byte) (int, error) {
	written := 0
	for written < len(b) {
		n := o.allowance.take(min(len(b)-written, windowBytes))
		if n == 0 {
			return written, io.ErrClosedPipe
		}
		if err := o.to.send(o.kind, b[written:written+n]); err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

// relay is an output of an agent's children: the launcher puts their lines together.
type relay struct {
	mu  sync.Mutex
	to  io.Writer
	err error // guarded by mu
}

// write implements output.
func (r *relay) write(prefix string, text []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		_, r.err = r.to.Write(appendPiece(nil, prefix, text))
	}
	return r.err
}

// pieceHeader is the length of what stands before a piece's prefix and text: their lengths.
const pieceHeader = 2 + 4

// appendPiece appends a text that a child has printed, with the prefix of its lines.
func appendPiece(b []byte, prefix string, text []byte) []byte {
	prefix = prefix[:min(len(prefix), 1<<10)]
	b = binary.LittleEndian.AppendUint16(b, uint16(len(prefix)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(append(b, prefix...), text...)
}

// wholePieces is how many of the first bytes are whole pieces.
func wholePieces(b []byte) (n int) {
	for {
		_, _, rest, whole := cutPiece(b[n:])
		if !whole {
			return n
		}
		n = len(b) - len(rest)
	}
}

// cutPiece takes a piece from the front of b. Without whole it is what is there of it.
func cutPiece(b []byte) (prefix string, text, rest []byte, whole bool) {
	if len(b) < pieceHeader {
		return "", nil, nil, false
	}
	first, second := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint32(b[2:]))
	b = b[pieceHeader:]
	whole = first+second <= len(b)
	first = min(first, len(b))
	second = min(second, len(b)-first)
	return string(b[:first]), b[first : first+second], b[first+second:], whole
}

// incoming is the receiver's side of a stream: what has arrived and is not passed on yet, at most
// windowBytes.
type incoming struct {
	mu      sync.Mutex
	change  sync.Cond
	waiting []byte // guarded by mu
	ended   bool   // guarded by mu
}

func newIncoming() *incoming {
	in := &incoming{}
	in.change.L = &in.mu
	return in
}

// add takes bytes that have arrived. More than the window is an error: the peer ignores what it was
// told.
func (in *incoming) add(b []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.waiting)+len(b) > windowBytes {
		return fmt.Errorf("%w: more of a stream than its window of %d bytes", errFrame, windowBytes)
	}
	in.waiting = append(in.waiting, b...)
	in.change.Broadcast()
	return nil
}

// end says that nothing more will come.
func (in *incoming) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended = true
	in.change.Broadcast()
}

// drain passes everything on, in order, until the end: as much at a time as whole says of what is
// there, or, if that is nil, all of it. At the end it passes on what is left. credit is called for
// what was passed on.
func (in *incoming) drain(whole func([]byte) int, pass func([]byte), credit func(n int)) {
	for {
		b := in.next(whole)
		if len(b) == 0 {
			return
		}
		pass(b)
		credit(len(b))
	}
}

// next waits for what can be passed on, and takes it. It is empty at the end.
func (in *incoming) next(whole func([]byte) int) []byte {
	in.mu.Lock()
	defer in.mu.Unlock()
	for {
		cut := len(in.waiting)
		if whole != nil && !in.ended {
			cut = whole(in.waiting)
		}
		if cut > 0 || in.ended {
			b := in.waiting[:cut:cut]
			in.waiting = append([]byte(nil), in.waiting[cut:]...)
			return b
		}
		in.change.Wait()
	}
}
