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

// Missing is the part of a run from the first to the last of the pages at which a load would fault
// at this moment, or a store if write is set: its address and its length in bytes, 0 if there are
// none. It may be called concurrently, and takes some 30 ns a page.
func (m *Pagemap) Missing(addr, bytes uintptr, write bool) (from, length uintptr) {
	need := uint64(entryPresent)
	if write {
		need |= entryProtected
	}
	var buf [512 * entryBytes]byte
	end := addr + bytes
	for at := addr; at < end; {
		part := buf[:min(uintptr(len(buf)), (end-at)/m.pageBytes*entryBytes)]
		if _, err := m.file.ReadAt(part, int64(at/m.pageBytes*entryBytes)); err != nil {
			return addr, bytes // nothing is known
		}
		for ; len(part) > 0; part = part[entryBytes:] {
			if binary.NativeEndian.Uint64(part)&need != entryPresent {
				if length == 0 {
					from = at
				}
				length = at + m.pageBytes - from
			}
			at += m.pageBytes
		}
	}
	return from, length
}

// Close may be called while others look. They get to know nothing then.
func (m *Pagemap) Close() error { return m.file.Close() }
