package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"dsmd/transport"
)

// ErrMalformed is wrapped by the reason of Handler.PeerDown when a peer has sent what is no frame.
var ErrMalformed = errors.New("tcp: malformed frame")

// frameHeaderBytes is the length of a frame's header on the wire.
const frameHeaderBytes = 16

// frameKind says what follows the header, and what it is for.
type frameKind uint8

const (
	frameControl frameKind = iota // a control part
	framePage                     // a control part and a page
	frameAck                      // nothing: the header's confirmation is the message
	frameGoodbye                  // why the sender closes, as text; this is the last it says
	frameKinds                    // how many kinds there are
)

// maxGoodbyeBytes bounds why a node says that it closes.
const maxGoodbyeBytes = 512

// controlBytes bounds the length of the control part of frames of this kind.
func (k frameKind) controlBytes() (least, most int) {
	switch {
	case k.carries():
		return 1, transport.MaxControlBytes
	case k == frameGoodbye:
		return 0, maxGoodbyeBytes
	}
	return 0, 0
}

// carries reports whether frames of this kind have a control part and are for the Handler.
func (k frameKind) carries() bool { return k <= framePage }

// frame is one frame in the receive buffer. Its slices point into the buffer.
type frame struct {
	kind      frameKind
	confirmed uint64 // how many bytes of the receiver's stream the sender has received
	control   []byte
	page      []byte // nil: no payload
	bytes     int    // on the wire, header included; 0: the frame has not arrived completely
}

// maxFrameBytes is the length of the longest frame.
func maxFrameBytes(pageBytes int) int {
	return frameHeaderBytes + transport.MaxControlBytes + pageBytes
}

// appendFrameHeader appends the header of a frame.
func appendFrameHeader(b []byte, kind frameKind, controlBytes int, confirmed uint64) []byte {
	// three bytes of it are reserved, and zero
	b = binary.LittleEndian.AppendUint32(b, uint32(kind))
	b = binary.LittleEndian.AppendUint32(b, uint32(controlBytes))
	return binary.LittleEndian.AppendUint64(b, confirmed)
}

// decodeFrame reads the frame at the start of b. A frame of which only a part is in b is no error:
// its bytes field is 0. Errors wrap ErrMalformed and are reported as soon as the header is there.
func decodeFrame(b []byte, pageBytes int) (frame, error) {
	if len(b) < frameHeaderBytes {
		return frame{}, nil
	}
	kind := binary.LittleEndian.Uint32(b)
	controlBytes := binary.LittleEndian.Uint32(b[4:])
	if kind >= uint32(frameKinds) {
		return frame{}, fmt.Errorf("%w: its kind is %d, and there are 0 to %d", ErrMalformed, kind, frameKinds-1)
	}
	f := frame{kind: frameKind(kind), confirmed: binary.LittleEndian.Uint64(b[8:])}
	least, most := f.kind.controlBytes()
	if controlBytes < uint32(least) || controlBytes > uint32(most) {
		return frame{}, fmt.Errorf("%w: it is of kind %d and announces a control part of %d bytes, allowed are %d to %d",
			ErrMalformed, kind, controlBytes, least, most)
	}
	controlEnd := frameHeaderBytes + int(controlBytes)
	frameEnd := controlEnd
	if f.kind == framePage {
		frameEnd += pageBytes
	}
	if len(b) < frameEnd {
		return frame{}, nil
	}
	f.bytes = frameEnd
	f.control = b[frameHeaderBytes:controlEnd:controlEnd]
	if f.kind == framePage {
		f.page = b[controlEnd:frameEnd:frameEnd]
	}
	return f, nil
}
