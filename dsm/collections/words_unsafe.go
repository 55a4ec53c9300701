package collections

import (
	"runtime"
	"unsafe"
)

// storesInOrder is whether all see the stores of a thread in the order in which it makes them, also
// those that are not atomic. (The compiler keeps the order of stores everywhere.)
const storesInOrder = runtime.GOARCH == "amd64"

// set stores a word that nobody else stores to meanwhile. Others may see it later, but before
// all that it stores or unlocks afterwards. An atomic store would also wait until they can see it:
// on amd64 that takes ten times as long.
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
