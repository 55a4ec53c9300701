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
const frameHeaderBytes = 8

// frame is one frame in the receive buffer. Its slices point into the buffer.
type frame struct {
	control []byte
	page    []byte // nil: no payload
	bytes   int    // on the wire, header included; 0: the frame has not arrived completely
}

// maxFrameBytes is the length of the longest frame.
func maxFrameBytes(pageBytes int) int {
	return frameHeaderBytes + transport.MaxControlBytes + pageBytes
}

// appendFrameHeader appends the header of a frame. page says whether a payload follows.
func appendFrameHeader(b []byte, controlBytes, payloadBytes int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(controlBytes))
	return binary.LittleEndian.AppendUint32(b, uint32(payloadBytes))
}

// decodeFrame reads the frame at the start of b. A frame of which only a part is in b is no error: its
// bytes field is 0. Errors wrap ErrMalformed and are reported as soon as the header is there.
func decodeFrame(b []byte, pageBytes int) (frame, error) {
	if len(b) < frameHeaderBytes {
		return frame{}, nil
	}
	controlBytes := binary.LittleEndian.Uint32(b)
	payloadBytes := binary.LittleEndian.Uint32(b[4:])
	if controlBytes == 0 || controlBytes > transport.MaxControlBytes {
		return frame{}, fmt.Errorf("%w: it announces a control part of %d bytes, allowed are 1 to %d",
			ErrMalformed, controlBytes, transport.MaxControlBytes)
	}
	if payloadBytes != 0 && payloadBytes != uint32(pageBytes) {
		return frame{}, fmt.Errorf("%w: it announces a payload of %d bytes, allowed are 0 and the page size %d",
			ErrMalformed, payloadBytes, pageBytes)
	}
	controlEnd := frameHeaderBytes + int(controlBytes)
	frameEnd := controlEnd + int(payloadBytes)
	if len(b) < frameEnd {
		return frame{}, nil
	}
	f := frame{control: b[frameHeaderBytes:controlEnd:controlEnd], bytes: frameEnd}
	if payloadBytes != 0 {
		f.page = b[controlEnd:frameEnd:frameEnd]
	}
	return f, nil
}
