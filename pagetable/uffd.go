package pagetable

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// MaxRegionBytes is the largest region: 16 TiB, of the 128 TiB of address space that a program has.
const MaxRegionBytes = 16 << 40

// MaxPageBytes is the largest page: above 64 KiB false sharing and the time to move a page outweigh
// what is saved in faults, and operations on one page would no longer be short (see package uffd).
const MaxPageBytes = 64 << 10

// Bounds of the Uffd back end.
const (
	// eagainTries is how often an ioctl that the kernel answers with EAGAIN is repeated at once.
	// The address space is changing then, which takes microseconds unless the thread that changes
	// it is descheduled.
	eagainTries = 16
	// maxPending is how many operations may wait while address spaces change. One operation per
	// page can be in flight, and a page has one because a thread waits for it, so this is far above
	// what happens. When it is reached, an operation that should become pending is repeated until
	// it is done: the reactor waits.
	maxPending = 1024
	// pendingRetry is how soon WaitFD becomes readable for another try of pending operations.
	pendingRetry = 200 * time.Microsecond
	// MaxPrograms is how many programs can be attached at a time, or be detached and live. Each
	// that is attached costs a system call in every downgrade.
	MaxPrograms = 1024
	// readyPrograms is how many programs one Poll asks for faults. The kernel rotates the rest to
	// the front.
	readyPrograms = 16
	// looksPerReady is after how many vain polls the table asks the kernel what its only program's
	// descriptor is worth a look for, if not for faults.
	looksPerReady = 64
)

var (
	// ErrClosed is returned by methods after Close.
	ErrClosed = errors.New("pagetable: closed")
	// ErrAttached is returned by Attach for a ProcID that is attached already, or is AllProcs.
	ErrAttached = errors.New("pagetable: the program's number is taken")
	// ErrTooMany is returned by Attach when MaxPrograms are attached.
	ErrTooMany = errors.New("pagetable: too many programs")
)

// Config configures NewUffd and NewSigsegv.
type Config struct {
	// Pages is the size of the region in pages; Pages × PageBytes is at most MaxRegionBytes.
	Pages uint64
	// PageBytes is the size of a page: a power of two, from the operating system's up to
	// MaxPageBytes. 0 is the operating system's.
	PageBytes int
	// Discard closes descriptors that programs have passed and that may not be what they should.
	// Some file systems let wait for ever who closes, and it does not. nil: Attach closes them.
	Discard func(fds ...int)
}

// Uffd is the Table over userfaultfd. A memfd holds the pages; a page is absent when it is a hole
// there. Accesses are cut off by the page-table entries of the attached programs: write-protected,
// or not there at all. It keeps no state per page, but for those that are lost.
//
// All methods belong to one goroutine, except WaitFD, MemFD, PageBytes and Pages, which any may
// call. Close is called when the others have come to rest.
type Uffd struct {
	store
	programs programs
	pending  []job
	vain     int // polls in a row that found no fault of the only program
	old      old
}

var _ Table = (*Uffd)(nil)

// NewUffd makes a table with all pages absent and no program attached. Errors: a size out of range,
// the memory file cannot be had, or the kernel's settings for huge pages make pages present that
// nobody asked for.
func NewUffd(cfg Config) (*Uffd, error) {
	st, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	u := &Uffd{store: st, pending: make([]job, 0, maxPending)}
	if err := u.programs.open(st.region); err != nil {
		st.mem.close()
		return nil, err
	}
	return u, nil
}

// WaitFD is readable, level-triggered, when Poll has something to report. It is an epoll descriptor
// over all programs.
func (u *Uffd) WaitFD() int { return u.programs.epoll }

// Attach adds a program; see Table. Errors: ErrAttached, ErrTooMany, ErrProcGone, ErrClosed, and a
// description of what is wrong with fd or base. What the program has not registered yet it may
// register at any time later.
func (u *Uffd) Attach(proc ProcID, fd int, base uintptr) error {
	err := ErrClosed
	if !u.closed {
		err = u.programs.attach(proc, uffd.From(fd), base)
	}
	if err != nil {
		u.discard(fd)
	}
	return err
}

// Detach forgets a program; see Table. From then on none of its stores goes through, unless it was
// given very many pages. Then stores to a page stop at the latest when the page is given up. Pages
// stay. An unknown program is ignored.
func (u *Uffd) Detach(proc ProcID, unmapped bool) {
	if pr := u.programs.find(proc); pr != nil {
		u.programs.detach(pr, unmapped)
		u.setAlarm() // its end needs no report any more
	}
}

// Close detaches all programs and closes the file: once no program maps it, its memory is freed. A
// second call does nothing.
func (u *Uffd) Close() error {
	if u.closed {
		return nil
	}
	u.closed, u.pending = true, nil
	err := errors.Join(u.programs.close(), u.mem.close())
	u.mem = noMemfd // Nothing may reach by these numbers what somebody else opens next.
	return err
}

// fail is the error of operation op on page p.
func fail(op Op, p Page, errno unix.Errno) error {
	if errno == unix.ENOMEM || errno == unix.ENOSPC {
		return fmt.Errorf("%w: %v of page %d: %w (raise the memory limit of this container or machine, or use more nodes)", ErrNoMemory, op, p, errno)
	}
	return fmt.Errorf("pagetable: %v of page %d: %w", op, p, errno)
}

// String is the operation's name in messages.
func (o Op) String() string {
	if int(o) >= len(opNames) || opNames[o] == "" {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return opNames[o]
}

var opNames = [...]string{OpInstall: "install", OpMakeWritable: "make writable", OpDowngrade: "downgrade", OpRevoke: "revoke", OpMap: "map", OpDrop: "drop", OpLose: "lose"}
