package protocol

import (
	"encoding/binary"
	"fmt"
)

// NameOp is what a NameCall asks for.
type NameOp uint8

const (
	// Bind: give me the pages of this name; new zero pages if nobody has bound it.
	Bind NameOp = iota + 1
	// Unbind: this client uses the name no longer, nor waits for it. When nobody uses it, the pages
	// are dropped and reused.
	Unbind
	// UnbindAll: this client uses nothing any longer.
	UnbindAll
	// Keep: the pages of this name, which this client uses, stay when nobody uses them.
	Keep
	// Discard: the pages of this name need not stay. When nobody uses them, they are dropped and
	// reused.
	Discard
	// AwaitFree: this client has given memory up that an allocator before was asked to free; answer
	// when that is not being freed any more.
	AwaitFree
)

// NameCall is the payload of EventName and of NameRequest.
type NameCall struct {
	Op     NameOp
	Client ClientID
	Pages  uint64 // Bind: how many; AwaitFree: the first one
	// Bind: how many lost nodes the memory is to survive, at most MaxReplicas. All must agree
	Replicas uint8
	Name     string // at most MaxName bytes
	// of the elements' type and their number: all must agree; at most MaxSignature bytes
	Signature string
}

// Limits of a NameCall, in bytes.
const (
	MaxName      = 320
	MaxSignature = 4096
)

// Append appends c in wire form.
func (c *NameCall) Append(b []byte) []byte {
	b = append(b, byte(c.Op))
	b = binary.LittleEndian.AppendUint32(b, uint32(c.Client))
	b = binary.LittleEndian.AppendUint64(b, c.Pages)
	b = append(b, c.Replicas)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(c.Name)))
	b = append(b, c.Name...)
	return append(b, c.Signature...)
}

// DecodeNameCall reads what Append wrote.
func DecodeNameCall(b []byte) (NameCall, error) {
	const fixed = 16
	if len(b) < fixed {
		return NameCall{}, fmt.Errorf("%w: a name call of %d bytes", ErrMalformed, len(b))
	}
	c := NameCall{
		Op:     NameOp(b[0]),
		Client: ClientID(binary.LittleEndian.Uint32(b[1:])),
		Pages:  binary.LittleEndian.Uint64(b[5:]),

		Replicas: b[13],
	}
	n := int(binary.LittleEndian.Uint16(b[14:]))
	if c.Op < Bind || c.Op > AwaitFree || c.Replicas > MaxReplicas || n > MaxName || n > len(b)-fixed || len(b)-fixed-n > MaxSignature {
		return NameCall{}, fmt.Errorf("%w: name call with operation %d, a name of %d bytes, %d bytes in all", ErrMalformed, c.Op, n, len(b))
	}
	c.Name, c.Signature = string(b[fixed:fixed+n]), string(b[fixed+n:])
	return c, nil
}

// AppendRun and DecodeRun are the payload of a NameReply: a run of pages.
func AppendRun(b []byte, first, pages uint64) []byte {
	b = binary.LittleEndian.AppendUint64(b, first)
	return binary.LittleEndian.AppendUint64(b, pages)
}

// DecodeRun reads what AppendRun wrote.
func DecodeRun(b []byte) (first, pages uint64, err error) {
	if len(b) != 16 {
		return 0, 0, fmt.Errorf("%w: a run of pages in %d bytes", ErrMalformed, len(b))
	}
	return binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), nil
}
