//go:build race

package controlpage

import (
	"runtime"
	"unsafe"
)

// edges tells the race detector that what was done before a lock was given back comes before what
// is done after it is taken. It does not follow atomic operations on memory that is not Go's, so
// there is a byte of Go's for each word.
type edges struct{ bytes *[Slots]byte }

func newEdges() edges { return edges{new([Slots]byte)} }

func (e edges) acquired(hash uint64) {
	if e.bytes == nil {
		return // the daemon, whose memory is no matter of the lock
	}
	runtime.RaceAcquire(unsafe.Pointer(&e.bytes[Slot(hash)]))
}

func (e edges) released(hash uint64) {
	if e.bytes == nil {
		return
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&e.bytes[Slot(hash)]))
}
