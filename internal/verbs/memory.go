//go:build rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

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

// Map maps memory for a device, zeroed and page-aligned. If huge is set it is of huge pages where the machine has reserved
// some, because the device then needs fewer entries of its translation table; else of ordinary pages, and the kernel is
// asked to join them. The caller closes it, after what is registered in it.
func Map(bytes int, huge bool) (*Memory, error) {
	if bytes <= 0 {
		return nil, fmt.Errorf("verbs: map %d bytes: it must be more than 0", bytes)
	}
	const flags = unix.MAP_ANONYMOUS | unix.MAP_PRIVATE
	if huge && bytes >= hugePageBytes {
		size := (bytes + hugePageBytes - 1) &^ (hugePageBytes - 1)
		if b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_HUGETLB); err == nil {
			return &Memory{b: b, size: bytes, huge: true}, nil
		}
	}
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, (bytes+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("verbs: map %d bytes: %w", bytes, err)
	}
	if huge {
		// A kernel without transparent huge pages refuses; the memory is as good.
		_ = unix.Madvise(b, unix.MADV_HUGEPAGE)
	}
	// A child of fork would share pages that the device writes, and copies on write would part the two.
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		unix.Munmap(b)
		return nil, fmt.Errorf("verbs: keep %d bytes from children: %w", bytes, err)
	}
	return &Memory{b: b, size: bytes}, nil
}

// Bytes is the memory. It dies with Close.
func (m *Memory) Bytes() []byte { return m.b[:m.size:m.size] }

// Huge says whether it is of reserved huge pages.
func (m *Memory) Huge() bool { return m.huge }

// Close unmaps the memory.
func (m *Memory) Close() error {
	if err := unix.Munmap(m.b); err != nil {
		return fmt.Errorf("verbs: unmap %d bytes: %w", len(m.b), err)
	}
	return nil
}

// PD is a protection domain.
type PD struct {
	dev *Device
	pd  *C.struct_ibv_pd
}

// NewPD makes a protection domain.
func (d *Device) NewPD() (*PD, error) {
	pd, err := C.ibv_alloc_pd(d.ctx)
	if pd == nil {
		return nil, fmt.Errorf("verbs: protection domain of %s: %w", d.name, err)
	}
	return &PD{d, pd}, nil
}

// Close gives the domain back. What belongs to it must be closed before.
func (pd *PD) Close() error { return closeError("protection domain", C.ibv_dealloc_pd(pd.pd)) }

// MR is registered memory.
type MR struct {
	mr    *C.struct_ibv_mr
	bytes []byte
}

// Register pins memory and makes it known to the device. The memory must not be of Go's heap (see Map) and must
// stay mapped until Close. It takes microseconds per page: nothing for a fast path. The error wraps ErrLimit if
// the limit of pinned memory may be the reason.
func (pd *PD) Register(memory []byte, access Access) (*MR, error) {
	if len(memory) == 0 {
		return nil, errors.New("verbs: register 0 bytes: there must be some")
	}
	mr, err := C.dsmd_reg_mr(pd.pd, C.uint64_t(addressOfBytes(memory)), C.uint64_t(len(memory)), C.int(access))
	if mr == nil {
		if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: %w", ErrLimit, err)
		}
		return nil, fmt.Errorf("verbs: register %d bytes with %s: %w", len(memory), pd.dev.name, err)
	}
	return &MR{mr, memory}, nil
}

// Addr is the address of the first byte, for SGE.Addr and SendRequest.RemoteAddr.
func (m *MR) Addr() uint64 { return addressOfBytes(m.bytes) }

// Bytes is the memory.
func (m *MR) Bytes() []byte { return m.bytes }

// LKey is for requests of this node.
func (m *MR) LKey() uint32 { return uint32(m.mr.lkey) }

// RKey is for requests of peers.
func (m *MR) RKey() uint32 { return uint32(m.mr.rkey) }

// Close ends the registration. The memory remains.
func (m *MR) Close() error { return closeError("memory registration", C.ibv_dereg_mr(m.mr)) }

func addressOfBytes(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
