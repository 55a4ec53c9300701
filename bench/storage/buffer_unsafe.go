package storage

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// buffer is fresh memory that begins at a page, as direct input and output wants it, and the same
// as words, so that all designs add them up by the same loop.
func buffer(size int) (buf []byte, words []uint64, err error) {
	buf, err = unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, fmt.Errorf("mapping %d bytes: %w", size, err)
	}
	return buf, unsafe.Slice((*uint64)(unsafe.Pointer(&buf[0])), size/8), nil
}
