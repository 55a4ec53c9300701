package tcp

// receiveBufferBytes is how much one receive call can take from a peer. 256 KiB are 60 pages of 4
// KiB; a socket rarely holds more, and only the part that was ever used is resident.
const receiveBufferBytes = 256 << 10

// receiveBuffer holds what a peer has sent and the reactor has not dealt with yet.
//
// Invariant: when space is called, less than one frame is left in it, so that there always is room
// for the rest of that frame.
type receiveBuffer struct {
	buf        []byte
	start, end int // buf[start:end] is unread
	maxFrame   int
}

func newReceiveBuffer(pageBytes int) receiveBuffer {
	maxFrame := maxFrameBytes(pageBytes)
	return receiveBuffer{buf: make([]byte, max(receiveBufferBytes, 2*maxFrame)), maxFrame: maxFrame}
}

func (r *receiveBuffer) unread() []byte { return r.buf[r.start:r.end] }

// space returns where to receive. A frame cut by the end of the buffer is moved to the front first.
func (r *receiveBuffer) space() []byte {
	switch {
	case r.start == r.end:
		r.start, r.end = 0, 0
	case len(r.buf)-r.end < r.maxFrame:
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
	return r.buf[r.end:]
}
