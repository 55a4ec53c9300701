package attach

import (
	"fmt"
	"os"
	"syscall"
)

const (
	// readAhead is the least room that Stream.Space offers, in bytes: a batch of small
	// frames should come with one system call.
	readAhead = 4 << 10
	// maxWaitingFDs bounds the descriptors that have arrived before their frame was taken: those of
	// a Trap, one for each reactor and that of the socket for questions. A peer that sends more is
	// cut off before it fills this process's table of descriptors.
	maxWaitingFDs = MaxReactors + 1
)

// Stream turns the bytes and descriptors that arrive on one connection into frames. It buffers
// less than 2 * MaxFrame bytes. The zero Stream is ready. It is not safe for concurrent use.
// Discard closes descriptors that are not wanted, for who must not wait for that; nil: they are
// closed at once.
//
// Use: fill Space, say how much with Advance, and call Next until it has no more; or let
// Receive do the first two.
type Stream struct {
	Discard func(fds ...int)

	buf   []byte // arrived and not yet taken: buf[start:]
	start int
	fds   []int // arrived and not yet taken, oldest first; owned
}

// Space is where the next bytes of the connection go. It invalidates all frames that Next returned.
func (s *Stream) Space() []byte {
	if s.start > 0 {
		n := copy(s.buf, s.buf[s.start:])
		s.buf, s.start = s.buf[:n], 0
	}
	if cap(s.buf)-len(s.buf) < readAhead {
		grown := make([]byte, len(s.buf), len(s.buf)+max(readAhead, min(2*cap(s.buf), MaxFrame)))
		copy(grown, s.buf)
		s.buf = grown
	}
	return s.buf[len(s.buf):cap(s.buf)]
}

// Advance says that n bytes were put into Space.
func (s *Stream) Advance(n int) { s.buf = s.buf[:len(s.buf)+n] }

// Next takes a frame out of what has arrived. ok is false when there is no whole one. The
// frame is valid until Space is called. After an error the connection must be closed.
func (s *Stream) Next() (f Frame, ok bool, err error) {
	f, rest, ok, err := Next(s.buf[s.start:])
	s.start = len(s.buf) - len(rest)
	return f, ok, err
}

// Buffered is the number of bytes that have arrived and are not part of a frame that was taken.
func (s *Stream) Buffered() int { return len(s.buf) - s.start }

// AddFDs takes ownership of descriptors that have arrived. On an error it has closed them.
func (s *Stream) AddFDs(fds []int) error {
	if len(s.fds)+len(fds) > maxWaitingFDs {
		s.discard(fds)
		return fmt.Errorf("%w: the peer sent %d descriptors that belong to no frame, at most %d are kept", ErrMalformed, len(s.fds)+len(fds), maxWaitingFDs)
	}
	s.fds = append(s.fds, fds...)
	return nil
}

// TakeFD hands over the oldest descriptor that has arrived; the caller closes it. It is called when
// a Welcome or Trap has been taken.
func (s *Stream) TakeFD() (fd int, err error) {
	if len(s.fds) == 0 {
		return -1, fmt.Errorf("%w: the frame came without its descriptor", ErrMalformed)
	}
	fd = s.fds[0]
	s.fds = append(s.fds[:0], s.fds[1:]...)
	return fd, nil
}

// Close closes the descriptors that nobody has taken. The Stream must not be used after it.
func (s *Stream) Close() {
	s.discard(s.fds)
	s.fds, s.buf = nil, nil
}

func (s *Stream) discard(fds []int) {
	if s.Discard != nil {
		s.Discard(fds...)
		return
	}
	closeAll(fds)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}

// parseFDs reads the descriptors out of a control message.
func parseFDs(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("control message", err)
	}
	var fds []int
	for i := range messages {
		m, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(fds)
			return nil, os.NewSyscallError("SCM_RIGHTS", err)
		}
		fds = append(fds, m...)
	}
	return fds, nil
}
