package controlpage

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"dsmd/internal/memfile"

	"golang.org/x/sys/unix"
)

// slot is a word with a cache line of its own: goroutines that use different locks are on different
// cores.
type slot struct {
	word atomic.Uint64
	_    [56]byte
}

// table is what lies on a page.
type table struct {
	slots [Slots]slot
	boxes
}

// Bytes is the size of a page's file.
const Bytes = int(unsafe.Sizeof(table{}))

// Page is a mapping of a program's control page: the daemon's, made by Create, or the program's,
// made by Map. Each method says which side may call it. The program's methods may be called
// concurrently.
type Page struct {
	table *table
	fd    int // the daemon's file, or -1
	edges edges
}

// Create makes a page. It is called by the daemon, whose the page's file is until Close.
func Create() (*Page, error) {
	fd, err := memfile.Create("dsmd-control", uint64(Bytes))
	if err != nil {
		return nil, fmt.Errorf("controlpage: %w", err)
	}
	t, err := mapFile(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &Page{table: t, fd: fd}, nil
}

func mapFile(fd int) (*table, error) {
	p, err := unix.MmapPtr(fd, 0, nil, uintptr(Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("controlpage: map the file: %w", os.NewSyscallError("mmap", err))
	}
	return (*table)(p), nil
}

// Map maps the file that the daemon has sent. It is called by the program, and owns fd, also when
// it fails. The page is unmapped when nobody can use it any more.
func Map(fd int) (*Page, error) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("controlpage: %w", os.NewSyscallError("fstat", err))
	}
	if st.Size != int64(Bytes) {
		return nil, fmt.Errorf("controlpage: the daemon's file has %d bytes, not %d: the daemon is faulty", st.Size, Bytes)
	}
	t, err := mapFile(fd)
	if err != nil {
		return nil, err
	}
	p := unsafe.Pointer(t)
	// A child would take and give back its parent's locks.
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, uintptr(p), uintptr(Bytes), unix.MADV_DONTFORK); errno != 0 {
		unix.MunmapPtr(p, uintptr(Bytes))
		return nil, fmt.Errorf("controlpage: keep the page from children: %w", os.NewSyscallError("madvise", errno))
	}
	page := &Page{table: t, fd: -1, edges: newEdges()}
	runtime.AddCleanup(page, func(t *table) { unix.MunmapPtr(unsafe.Pointer(t), uintptr(Bytes)) }, t)
	return page, nil
}

// FD is the file, for the program. It is the daemon's to call.
func (p *Page) FD() int { return p.fd }

// Close unmaps the page and closes its file. The daemon calls it, once, when it has withdrawn all
// words.
func (p *Page) Close() error {
	unix.Close(p.fd)
	if err := unix.MunmapPtr(unsafe.Pointer(p.table), uintptr(Bytes)); err != nil {
		return fmt.Errorf("controlpage: %w", os.NewSyscallError("munmap", err))
	}
	return nil
}

// Retire ends the program's use of the page, while other goroutines may be using it. From here on
// they see no published lock, and nobody looks into a box. The daemon still believes that they hold
// what they hold by their words. It may be called again.
func (p *Page) Retire() error {
	at := uintptr(unsafe.Pointer(p.table))
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, ^uintptr(0), 0)
	runtime.KeepAlive(p)
	if errno != 0 {
		return fmt.Errorf("controlpage: retire: %w", os.NewSyscallError("mmap", errno))
	}
	return nil
}

func (p *Page) at(hash uint64) *atomic.Uint64 { return &p.table.slots[Slot(hash)].word }

// Take takes a lock for the program, if it is published and free, and reports whether it did. The
// daemon may do so, too, and tell the program.
func (p *Page) Take(hash uint64) bool {
	taken := take(p.at(hash), hash)
	if taken {
		p.edges.acquired(hash)
	}
	runtime.KeepAlive(p) // and with it the mapping
	return taken
}

// Held is whether the program holds a lock that it has taken by Take.
func (p *Page) Held(hash uint64) bool {
	h := isHeld(p.at(hash), hash)
	runtime.KeepAlive(p)
	return h
}

// HeldIn is the lock with a certain Slot that the program holds by Take, if there is one.
func (p *Page) HeldIn(slot int) (hash uint64, held bool) {
	w := p.table.slots[slot].word.Load()
	runtime.KeepAlive(p)
	hash = w&^(Slots-1) | uint64(slot)
	return hash, isHeldWord(w, hash)
}

// GiveBack gives back a lock that the program has taken by Take.
func (p *Page) GiveBack(hash uint64) GivenBack {
	p.edges.released(hash)
	given := giveBack(p.at(hash), hash)
	runtime.KeepAlive(p)
	return given
}

// Acquired tells the race detector that the program has got a lock in another way than by Take.
func (p *Page) Acquired(hash uint64) { p.edges.acquired(hash) }

// Releasing tells the race detector that the program gives a lock back in another way than by
// GiveBack.
func (p *Page) Releasing(hash uint64) { p.edges.released(hash) }

// Publish lets the program take a lock by Take. It is the daemon's. Preconditions: nothing is
// published in the lock's Slot.
func (p *Page) Publish(hash uint64) { publish(p.at(hash), hash) }

// Recall takes a lock back from the program, or makes the program give it back. It is the daemon's.
// Preconditions: the lock is published, and not recalled.
func (p *Page) Recall(hash uint64) Found { return recall(p.at(hash), hash) }

// Withdraw takes a lock back from a program that has ended, or that has said that it gives it back,
// and reports whether it was free. A lock that was recalled is not, until the program has said so.
// It is the daemon's. Preconditions: the lock is published.
func (p *Page) Withdraw(hash uint64) bool { return withdraw(p.at(hash), hash) }
