package attach

import (
	"encoding/binary"
	"errors"
	"fmt"

	"dsmd/internal/wire"
)

var le = binary.LittleEndian

// Version is the version of this protocol, and of what programs say of themselves to the launcher
// (internal/runstats). Both sides must have the same: a program and its daemon are built from the
// same release, so there is nothing to negotiate.
const Version = 27

const (
	// HeaderBytes is the length of a frame's header: body length (4), kind (1), zeros (3).
	HeaderBytes = 8
	// MaxPayload bounds Reply.Payload, in bytes: what all ranks of a reduction bring is the
	// longest.
	MaxPayload = 64 << 10
	// MaxFrame bounds a frame with its header, in bytes. A receiver needs room for one frame only.
	MaxFrame = HeaderBytes + replyHeaderBytes + MaxPayload
	// MaxName bounds the name of an allocation, in bytes: what a user may choose, and the name of a
	// job before it.
	MaxName = 320
	// MaxJob bounds the name of a job, in bytes.
	MaxJob = 63
	// MaxSignature bounds the readable description of a type, in bytes. Longer ones are cut; the
	// hash beside them decides.
	MaxSignature = 4 << 10
	// MaxContribution bounds what one party brings to a barrier, in bytes.
	MaxContribution = 1 << 10
	// MaxRegionBytes is the size of the largest region.
	MaxRegionBytes = 16 << 40
	// MaxText bounds texts for people (reasons, program names, transport names), in bytes.
	MaxText = 1 << 10
)

// ErrMalformed is wrapped by every error about bytes that a correct peer would not have sent.
var ErrMalformed = errors.New("attach: malformed frame")

// Kind tells frames apart.
type Kind uint8

const (
	KindHello   Kind = iota + 1 // program: who I am
	KindTrap                    // program: my trap, and my second socket; both attached
	KindCall                    // program: do this
	KindBye                     // program: I leave in order
	KindWelcome                 // daemon: the cluster; memfd attached
	KindRefuse                  // daemon: you can't attach, and why. The last frame
	KindReady                   // daemon: your trap is served; control page attached
	KindReply                   // daemon: the answer to a call
	KindLost                    // daemon: the cluster is broken, or you are cut off, and why
	KindAsk                     // either, on the second socket: a question
	KindTell                    // either, on the second socket: an answer

	kindEnd
)

var kindNames = [kindEnd]string{
	KindHello: "Hello", KindTrap: "Trap", KindCall: "Call", KindBye: "Bye", KindWelcome: "Welcome",
	KindRefuse: "Refuse", KindReady: "Ready", KindReply: "Reply", KindLost: "Lost", KindAsk: "Ask", KindTell: "Tell",
}

func (k Kind) String() string { return nameOf(k, "Kind", kindNames[:]) }

// nameOf is the name of a value, or its type and number if it has none.
func nameOf[T ~uint8](v T, of string, names []string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", of, uint8(v))
}

// Frame is one frame as it arrived. Body points into the buffer that it was parsed from.
type Frame struct {
	Kind Kind
	Body []byte
}

// Next parses the first frame of buf. ok is false when buf holds only part of a frame: read more
// and call again. rest is what follows the frame. An error means that the stream can't be
// understood from here on; it wraps ErrMalformed.
func Next(buf []byte) (f Frame, rest []byte, ok bool, err error) {
	if len(buf) < HeaderBytes {
		return Frame{}, buf, false, nil
	}
	n := le.Uint32(buf)
	kind := Kind(buf[4])
	switch {
	case kind == 0 || kind >= kindEnd:
		return Frame{}, buf, false, fmt.Errorf("%w: unknown kind %d", ErrMalformed, buf[4])
	case buf[5]|buf[6]|buf[7] != 0:
		return Frame{}, buf, false, fmt.Errorf("%w: %v with reserved bits set", ErrMalformed, kind)
	case n > MaxFrame-HeaderBytes:
		return Frame{}, buf, false, fmt.Errorf("%w: %v of %d bytes, at most %d are allowed", ErrMalformed, kind, n, MaxFrame-HeaderBytes)
	}
	end := HeaderBytes + int(n)
	if len(buf) < end {
		return Frame{}, buf, false, nil
	}
	return Frame{Kind: kind, Body: buf[HeaderBytes:end:end]}, buf[end:], true, nil
}

// Only parses buf, which must be one whole frame of the given kind and nothing else, as it lies on
// a control page. The error wraps ErrMalformed.
func Only(buf []byte, kind Kind) (Frame, error) {
	f, rest, whole, err := Next(buf)
	if err == nil && (!whole || len(rest) > 0 || f.Kind != kind) {
		err = fmt.Errorf("%w: what lies on the control page is not one %v", ErrMalformed, kind)
	}
	if err != nil {
		return Frame{}, err
	}
	return f, nil
}

// beginFrame appends a header whose length endFrame fills in.
func beginFrame(b []byte, k Kind) []byte {
	return append(b, 0, 0, 0, 0, byte(k), 0, 0, 0)
}

// endFrame completes the frame that begins at b[start].
func endFrame(b []byte, start int) []byte {
	n := len(b) - start - HeaderBytes
	if n > MaxFrame-HeaderBytes {
		panic(fmt.Sprintf("attach: encoded %v of %d bytes, at most %d are allowed", Kind(b[start+4]), n, MaxFrame-HeaderBytes))
	}
	le.PutUint32(b[start:], uint32(n))
	return b
}

// appendFrame appends a frame of these fields.
func appendFrame(b []byte, k Kind, fields ...any) []byte {
	return endFrame(wire.Append(beginFrame(b, k), fields...), len(b))
}

// decodeFields reads the fields of what.
func decodeFields(b []byte, what any, fields ...any) error {
	if err := wire.Decode(b, fields...); err != nil {
		return fmt.Errorf("%w: %v: %w", ErrMalformed, what, err)
	}
	return nil
}

// decoded is what, decoded from these fields of it.
func decoded[T any](b []byte, what any, fields func(*T) []any) (x T, err error) {
	err = decodeFields(b, what, fields(&x)...)
	return x, err
}

// clip shortens a text for people to what a frame may hold.
func clip(s string, max int) string {
	if len(s) <= max {
		return s
	}
	return s[:max]
}
