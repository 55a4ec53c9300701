//go:build cgo && linux && (amd64 || arm64)

package sigsegv

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -lpthread
#include "trap.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/memfile"
	"dsmd/internal/sigsegv/area"
)

// The layout in C and in Go is the same, or this does not compile: an array's length can't be
// negative.
var (
	_ = [1]struct{}{}[C.DSM_FAULTS_OFFSET-area.FaultsOffset]
	_ = [1]struct{}{}[C.DSM_FAULT_SLOTS-area.FaultSlots]
	_ = [1]struct{}{}[C.DSM_FAULT_BYTES-area.FaultBytes]
	_ = [1]struct{}{}[C.DSM_COMMANDS_OFFSET-area.CommandsOffset]
	_ = [1]struct{}{}[C.DSM_COMMAND_SLOTS-area.CommandSlots]
	_ = [1]struct{}{}[C.DSM_WORDS_OFFSET-area.WordsOffset]
	_ = [1]struct{}{}[C.DSM_GRANTED_MASK-area.GrantedMask]
	_ = [1]struct{}{}[C.DSM_APPLIED_SHIFT-area.AppliedShift]
	_ = [1]struct{}{}[C.DSM_WAITERS-area.Waiters]
	_ = [1]struct{}{}[C.DSM_GEN_STEP-area.GenStep]
	_ = [1]struct{}{}[C.DSM_LOST-area.Lost]
	_ = [1]struct{}{}[C.DSM_MARK-Mark]
)

const (
	// otherMaps is how many mappings are left to the rest of the program: Go's heap, threads,
	// libraries, files.
	otherMaps = 8192
	// leastSplits is the least limit with which a trap is worth having: below it every fault would
	// join mappings.
	leastSplits = 64
)

// Trap traps the accesses of this process to one region. Its methods may be called from any
// goroutine, but not one while another call changes the same range.
type Trap struct {
	cfg    Config
	mem    []byte // the area
	events int    // eventfd
	// own: this end of the socket, open as long as the program can touch the region.
	own    int
	theirs int          // the daemon's end until HandedOver, then -1
	inUse  sync.RWMutex // held for writing by Close
	// c: nil once closed; guarded by inUse, where a call may run while Close does.
	c *C.struct_dsm_trap
}

// Available reports whether this build has the trap: it has.
func Available() error { return nil }

// Open makes the trap of a region, which must be reserved without access, and starts its agent.
// Errors: ErrMaps, and what the kernel refused.
func Open(cfg Config) (*Trap, error) {
	if cfg.MaxSplits == 0 {
		var err error
		if cfg.MaxSplits, err = affordableSplits(); err != nil {
			return nil, err
		}
	}
	if cfg.PageBytes == 0 || cfg.Bytes == 0 || cfg.Bytes%cfg.PageBytes != 0 {
		return nil, fmt.Errorf("sigsegv: a region of %d bytes is not whole pages of %d", cfg.Bytes, cfg.PageBytes)
	}
	t := &Trap{cfg: cfg, events: -1, own: -1, theirs: -1}
	if err := t.open(); err != nil {
		t.free()
		return nil, fmt.Errorf("sigsegv: %w", err)
	}
	return t, nil
}

// affordableSplits derives a limit from what the kernel allows this process.
func affordableSplits() (uint64, error) {
	const path = "/proc/sys/vm/max_map_count"
	allowed := uint64(65530) // the kernel's default, where /proc is hidden
	if b, err := os.ReadFile(path); err == nil {
		if allowed, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err != nil {
			return 0, fmt.Errorf("sigsegv: %s: %w", path, err)
		}
	}
	if allowed < otherMaps+leastSplits {
		return 0, fmt.Errorf("sigsegv: %w: vm.max_map_count is %d, at least %d are needed: sysctl -w vm.max_map_count=65530", ErrMaps, allowed, otherMaps+leastSplits)
	}
	return allowed - otherMaps, nil
}

func (t *Trap) open() error {
	pages := uint64(t.cfg.Bytes / t.cfg.PageBytes)
	file, err := memfile.Create("dsm-trap", area.Size(pages))
	if err != nil {
		return err
	}
	defer unix.Close(file)
	p, err := unix.MmapPtr(file, 0, nil, uintptr(area.Size(pages)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return os.NewSyscallError("mmap of the trap area", err)
	}
	t.mem = unsafe.Slice((*byte)(p), area.Size(pages))
	for _, advice := range [...]int{unix.MADV_DONTFORK, unix.MADV_DONTDUMP} {
		if err := unix.Madvise(t.mem, advice); err != nil {
			return os.NewSyscallError("madvise of the trap area", err)
		}
	}
	area.Create(t.mem, pages, uint64(t.cfg.PageBytes))
	if t.events, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	t.own, t.theirs = pair[0], pair[1]
	// The daemon finds the rest in the socket that it is given.
	if err := unix.Sendmsg(t.own, []byte{area.Version}, unix.UnixRights(file, t.events), nil, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	errno := C.dsm_trap_open(&t.c, C.uintptr_t(t.cfg.Base), C.uint64_t(pages), C.uint64_t(t.cfg.PageBytes), p, C.int(t.events), C.int(t.own), C.uint64_t(t.cfg.MaxSplits))
	if errno != 0 {
		return fmt.Errorf("start the trap's agent: %w", unix.Errno(-errno))
	}
	return nil
}

// Handover is the descriptor that the daemon needs, for pagetable.Sigsegv.Attach. It stays the
// Trap's until HandedOver.
func (t *Trap) Handover() int { return t.theirs }

// HandedOver closes this process's copy of the daemon's descriptor, so that the daemon's death can
// be seen.
func (t *Trap) HandedOver() {
	if t.theirs >= 0 {
		unix.Close(t.theirs)
		t.theirs = -1
	}
}

// Register puts a range under the trap, whole pages that were just mapped from the daemon's file
// without access. If it is readOnly, a store there is an ordinary segmentation fault, and the
// daemon is not told.
func (t *Trap) Register(addr, bytes uintptr, readOnly bool) error {
	first, end := t.run(addr, bytes)
	noStores := C.int(0)
	if readOnly {
		noStores = 1
	}
	if errno := C.dsm_trap_register(t.c, first, end, noStores); errno != 0 {
		return fmt.Errorf("sigsegv: register %d bytes at %#x: %w", bytes, addr, unix.Errno(-errno))
	}
	return nil
}

// Unregister takes a range out, as it was registered, before it is unmapped. It has no access
// afterwards.
func (t *Trap) Unregister(addr, bytes uintptr) error {
	first, end := t.run(addr, bytes)
	if errno := C.dsm_trap_unregister(t.c, first, end); errno != 0 {
		return fmt.Errorf("sigsegv: unregister %d bytes at %#x: %w", bytes, addr, unix.Errno(-errno))
	}
	return nil
}

// Map maps those pages of a range that are here and were not touched yet, a run at a time, which is
// faster than a signal for each, and makes them usable for system calls. It may be called while
// Close is, and then does nothing.
func (t *Trap) Map(addr, bytes uintptr) {
	t.inUse.RLock()
	defer t.inUse.RUnlock()
	if t.c == nil {
		return
	}
	first, end := t.run(addr, bytes)
	C.dsm_trap_map(t.c, first, end)
}

func (t *Trap) run(addr, bytes uintptr) (first, end C.uint64_t) {
	return C.uint64_t((addr - t.cfg.Base) / t.cfg.PageBytes), C.uint64_t((addr - t.cfg.Base + bytes) / t.cfg.PageBytes)
}

// Retire ends the trapping, before the region is unmapped: accesses without permission, also those
// that wait, are segmentation faults from now on.
func (t *Trap) Retire() { C.dsm_trap_retire(t.c) }

// Close frees everything. By closing the socket it tells the daemon that this process has no access
// any more, so the region must be unmapped.
func (t *Trap) Close() error {
	t.inUse.Lock()
	defer t.inUse.Unlock()
	C.dsm_trap_close(t.c)
	t.c = nil
	t.free()
	return nil
}

func (t *Trap) free() {
	for _, fd := range [...]*int{&t.events, &t.own, &t.theirs} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	if t.mem != nil {
		unix.MunmapPtr(unsafe.Pointer(&t.mem[0]), uintptr(len(t.mem)))
		t.mem = nil
	}
}

// Evictions is how often mappings were joined because there were too many.
func (t *Trap) Evictions() uint64 { return uint64(C.dsm_trap_evictions(t.c)) }
