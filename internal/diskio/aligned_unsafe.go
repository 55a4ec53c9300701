package diskio

import "unsafe"

// directAlign is a multiple of what direct input and output (O_DIRECT) wants of addresses: that of
// disks' blocks, which are no larger.
const directAlign = 4096

// Aligned reports whether direct input and output can use a buffer that Queue.Buffer has not made.
func Aligned(b []byte) bool {
	return len(b) > 0 && len(b)%directAlign == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%directAlign == 0
}
