package verbs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// hugePageBytes is the size of the huge pages that Map asks for, on amd64 and arm64.
const hugePageBytes = 2 << 20

// Memory is memory outside of Go's heap, which a device may use.
type Memory struct {
	b    []byte
	size int
	huge bool
}

// Map maps memory for a device, zeroed and page-aligned. If huge is set it is of huge pages where
// the machine has reserved some, because the device then needs fewer entries of its translation
// table; else of ordinary pages, and the kernel is asked to join them. The caller closes it, after
// what is registered in it.
func Map(bytes int, huge bool) (*Memory, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("verbs: map %d bytes: it must be more than 0", bytes)
	}
	m, err := mapPages(bytes, huge)
	if err != nil {
		return nil, fmt.Errorf("verbs: map %d bytes: %w", bytes, err)
	}
	// A child of fork would share pages that the device writes, and copies on write would part the
	// two.
	if err := unix.Madvise(m.b, unix.MADV_DONTFORK); err != nil {
		unix.Munmap(m.b)
		return nil, fmt.Errorf("verbs: keep %d bytes from children: %w", bytes, err)
	}
	return m, nil
}

func mapPages(bytes int, huge bool) (*Memory, error) {
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_ANONYMOUS | unix.MAP_PRIVATE
	if huge && bytes >= hugePageBytes {
		size := (bytes + hugePageBytes - 1) &^ (hugePageBytes - 1)
		if b, err := unix.Mmap(-1, 0, size, protection, flags|unix.MAP_HUGETLB); err == nil {
			return &Memory{b: b, size: bytes, huge: true}, nil
		}
	}
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, (bytes+page-1)&^(page-1), protection, flags)
	if err != nil {
		return nil, err
	}
	if huge {
		// A kernel without transparent huge pages refuses; the memory is as good.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	return &Memory{b: b, size: bytes}, nil
}

// Bytes is the memory. It dies with Close.
func (m *Memory) Bytes() []byte { return m.b[:m.size:m.size] }

// Huge reports whether it is of reserved huge pages.
func (m *Memory) Huge() bool { return m.huge }

// Close unmaps the memory.
func (m *Memory) Close() error {
	if err := unix.Munmap(m.b); err != nil {
		return fmt.Errorf("verbs: unmap %d bytes: %w", len(m.b), err)
	}
	return nil
}
