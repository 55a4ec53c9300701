package collections

import (
	"runtime"
	"unsafe"
)

// inOrder is whether all see the loads and stores of a thread in the order in which it makes them,
// but for loads that overtake its own stores, also those that are not atomic. (The compiler keeps
// the order everywhere.)
const inOrder = runtime.GOARCH == "amd64"

// set stores a word that nobody else stores to meanwhile. Others see it before whatever this
// goroutine stores afterwards, but perhaps not at once. An atomic store would wait until they do,
// which takes ten times as long on amd64.
func (p page) set(at int, w uint64) {
	if inOrder {
		*(*uint64)(unsafe.Pointer(&p[at])) = w
		return
	}
	p[at].Store(w)
}

// bytes is the memory of the words from there on, to be copied at once: a page at most, as longer
// copies may go past the caches and out of order. Preconditions: inOrder, and the page is locked,
// or its version says afterwards whether it was all of one moment.
func (p page) bytes(at int) []byte {
	words := p[at:]
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*wordBytes)
}

// bytesOf is the memory of one value, which stays v's.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// textOf is a value as the string that it is. Preconditions: T is a string type.
func textOf[T any](v *T) *string { return (*string)(unsafe.Pointer(v)) }

// bytesOfText is the memory of a string, which must not be changed.
func bytesOfText(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
