//go:build rdma

package verbs

// #include "verbs.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// Register pins memory and makes it known to the device. The memory must not be of Go's heap (see
// Map) and must stay mapped until Close. It takes microseconds per page: nothing for a fast path.
// The error wraps ErrLimit if the limit of pinned memory may be the reason.
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
