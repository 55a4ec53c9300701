package controlpage

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// BoxBytes is the length of the longest frame that a box holds: a call without a name, or an answer
// with what a few ranks have brought to a barrier.
const BoxBytes = 124

// The states of a box.
const (
	away  uint32 = 0 // nobody looks into it
	empty uint32 = 1 // it is empty, and its reader looks into it
	full  uint32 = 2 // a frame lies in it
)

// box is a place for one frame. Its state has a cache line of its own, because the reader looks at
// it all the time.
type box struct {
	state  atomic.Uint32
	_      [60]byte
	length atomic.Uint32
	frame  [BoxBytes]byte
}

// Box is a place for one frame on its way between a program and its daemon. One side writes, and
// one goroutine at a time may do so; the other reads, and one may. It is valid as long as its Page.
type Box struct {
	page *Page
	box  *box
}

// Calls is the box in which the program puts calls, and the daemon looks.
func (p *Page) Calls() Box { return Box{p, &p.table.calls} }

// Replies is the box in which the daemon puts replies, and the program looks.
func (p *Page) Replies() Box { return Box{p, &p.table.replies} }

// Put is the writer's. It reports whether the frame will be read. If not, the frame does not fit,
// or the reader does not look here, or it has not taken the frame before yet.
func (b Box) Put(frame []byte) bool {
	defer runtime.KeepAlive(b.page)
	if len(frame) > BoxBytes || b.box.state.Load() != empty {
		return false
	}
	// While the box is empty it is the writer's. If the reader leaves meanwhile, nobody sees what
	// is in it.
	b.box.length.Store(uint32(copy(b.box.frame[:], frame)))
	return b.box.state.CompareAndSwap(empty, full)
}

// Watch is the reader's, who looks into the box from now on.
func (b Box) Watch() {
	b.box.state.CompareAndSwap(away, empty)
	runtime.KeepAlive(b.page)
}

// Watched reports whether the reader looks into the box, which is empty.
func (b Box) Watched() bool {
	defer runtime.KeepAlive(b.page)
	return b.box.state.Load() == empty
}

// Full reports whether there is a frame to take.
func (b Box) Full() bool {
	defer runtime.KeepAlive(b.page)
	return b.box.state.Load() == full
}

// Leave is the reader's, who looks no longer. It returns false if there is a frame in the box,
// which must be taken.
func (b Box) Leave() bool {
	defer runtime.KeepAlive(b.page)
	return b.box.state.CompareAndSwap(empty, away) || b.box.state.Load() != full
}

// ErrLength is what the writer of a box does wrong.
var ErrLength = errors.New("controlpage: a frame is longer than its box")

// Take is the reader's. If there is a frame in the box, it is appended to the bytes, and the reader
// looks into the box no longer. The error, which wraps ErrLength, comes with took.
func (b Box) Take(to []byte) (_ []byte, took bool, err error) {
	defer runtime.KeepAlive(b.page)
	if b.box.state.Load() != full {
		return to, false, nil
	}
	length := b.box.length.Load() // once: the writer may be hostile
	if length <= BoxBytes {
		to = append(to, b.box.frame[:length]...)
	} else {
		err = fmt.Errorf("%w: %d bytes in %d", ErrLength, length, BoxBytes)
	}
	b.box.state.Store(away)
	return to, true, err
}

// AddSent counts a frame that the daemon is about to send by the socket. It is the daemon's.
func (p *Page) AddSent() { p.table.sent.Add(1) }

// Sent is how many frames the daemon has sent by the socket, or is about to. A program that has
// read fewer looks there.
func (p *Page) Sent() uint64 {
	defer runtime.KeepAlive(p)
	return p.table.sent.Load()
}

// boxes are what a page has beside the words.
type boxes struct {
	calls, replies box
	sent           atomic.Uint64
	_              [64 - unsafe.Sizeof(uint64(0))]byte
}
