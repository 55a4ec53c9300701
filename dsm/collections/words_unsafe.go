package collections

import (
	"runtime"
	"unsafe"
)

// storesInOrder is whether all see the stores of a thread in the order in which it makes them, also
// those that are not atomic. (The compiler keeps the order of stores everywhere.)
const storesInOrder = runtime.GOARCH == "amd64"

// set stores a word that nobody else stores to meanwhile. Others see it before whatever this
// goroutine stores afterwards, but perhaps not at once. An atomic store would wait until they do,
// which takes ten times as long on amd64.
func (p page) set(at int, w uint64) {
	if storesInOrder {
		*(*uint64)(unsafe.Pointer(&p[at])) = w
		return
	}
	p[at].Store(w)
}

// bytesOf is the memory of one value, which stays v's.
func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// textOf is a value as the string that it is. Preconditions: T is a string type.
func textOf[T any](v *T) *string { return (*string)(unsafe.Pointer(v)) }

// bytesOfText is the memory of a string, which must not be changed.
func bytesOfText(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
