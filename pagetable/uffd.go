package pagetable

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// MaxRegionBytes is the largest region: 16 TiB, of the 128 TiB of address space that a program has.
const MaxRegionBytes = 16 << 40

// MaxPageBytes is the largest page: above 64 KiB false sharing and the time to move a page outweigh what is saved in faults, and
// operations on one page would no longer be short (see package uffd).
const MaxPageBytes = 64 << 10

// Bounds of the Uffd back end.
const (
	// eagainTries is how often an ioctl that the kernel answers with EAGAIN is repeated at once. The address space is
	// changing then, which takes microseconds unless the thread that changes it is descheduled.
	eagainTries = 16
	// maxPending is how many operations may wait for an address space to settle. One operation per page can be in flight, and a
	// page has one because a thread waits for it, so this is far above what happens. When it is reached, an
	// operation that should become pending is repeated until it is done: the reactor waits.
	maxPending = 1024
	// pendingRetry is how soon WaitFD becomes readable for another try of pending operations.
	pendingRetry = 200 * time.Microsecond
	// MaxPrograms is how many programs can be attached at a time. Each costs a system call in every downgrade.
	MaxPrograms = 1024
	// readyPrograms is how many programs one Poll asks for faults. The kernel rotates the rest to the front.
	readyPrograms = 16
)

var (
	// ErrClosed is returned by methods after Close.
	ErrClosed = errors.New("pagetable: closed")
	// ErrAttached is returned by Attach for a ProcID that is attached already, or is AllProcs.
	ErrAttached = errors.New("pagetable: the program's number is taken")
	// ErrTooMany is returned by Attach when MaxPrograms are attached.
	ErrTooMany = errors.New("pagetable: too many programs")
)

// UffdConfig configures NewUffd.
type UffdConfig struct {
	// Pages is the size of the region in pages; Pages × PageBytes is at most MaxRegionBytes.
	Pages uint64
	// PageBytes is the size of a page: a power of two, from the operating system's up to MaxPageBytes. 0 is the operating system's.
	PageBytes int
}

// Uffd is the Table over userfaultfd. A memfd holds the pages; a page is absent when it is a hole there. Accesses are
// cut off by the page-table entries of the attached programs: write-protected, or not there at all. It keeps no state per page, but for
// those that are lost.
//
// All methods belong to one goroutine, except WaitFD, MemFD, PageBytes and Pages, which any may call. Close is
// called when the others have come to rest.
type Uffd struct {
	store
	osPage uintptr
	epoll  int
	alarm  int // timerfd in the epoll set: readable when a pending operation or a ProcGone is due

	programs []*program
	goneNews []ProcID // programs found gone and not reported yet; at most one entry per program
	pending  []job
	buffer   uffd.Buffer
	zeros    []byte // the longest run of pages, read only
	scratch  []byte // one page, allocated at first use by mapByCopy
	ready    [readyPrograms]unix.EpollEvent

	// noContinueWP is set once the kernel has refused to map pages write-protected (before 6.4).
	noContinueWP bool
}

var _ Table = (*Uffd)(nil)

// program is an attached program.
type program struct {
	id    ProcID
	base  uintptr
	traps traps
	gone  bool  // its address space has ended, or it is served no more
	why   error // gone although its address space has not ended: what it has broken
}

// traps is what Uffd needs of a userfaultfd: the seam at which tests inject the kernel's rarer answers.
// The methods are those of uffd.FD.
type traps interface {
	Copy(dst uintptr, src []byte, mode uint64) (int, unix.Errno)
	ZeroPage(dst, length uintptr, mode uint64) (int, unix.Errno)
	Continue(dst, length uintptr, mode uint64) (int, unix.Errno)
	Poison(dst, length uintptr) (int, unix.Errno)
	WriteProtect(addr, length uintptr, on, dontWake bool) unix.Errno
	Wake(addr, length uintptr) unix.Errno
	Unregister(addr, length uintptr) unix.Errno
	ReadFaults(b *uffd.Buffer, limit int) ([]uffd.Fault, error)
	Sysfd() int
	Close() error
}

// NewUffd makes a table with all pages absent and no program attached. Errors: a size out of range, the memory file cannot
// be had, or the kernel's settings for huge pages make pages present that nobody asked for.
func NewUffd(cfg UffdConfig) (*Uffd, error) {
	st, err := newStore(cfg.Pages, cfg.PageBytes)
	if err != nil {
		return nil, err
	}
	u := &Uffd{
		store: st, osPage: uintptr(os.Getpagesize()), pending: make([]job, 0, maxPending), zeros: make([]byte, MaxRunBytes),
	}
	if err := u.openPollers(); err != nil {
		st.mem.close()
		return nil, err
	}
	return u, nil
}

func (u *Uffd) openPollers() error {
	var err error
	if u.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("pagetable: epoll_create1: %w", err)
	}
	if u.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		unix.Close(u.epoll)
		return fmt.Errorf("pagetable: timerfd_create: %w", err)
	}
	if err := u.watch(u.alarm, AllProcs); err != nil {
		unix.Close(u.epoll)
		unix.Close(u.alarm)
		return err
	}
	return nil
}

// watch adds fd to the epoll set, under the number of the program that it reports for.
func (u *Uffd) watch(fd int, id ProcID) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(id)}
	if err := unix.EpollCtl(u.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("pagetable: watch descriptor %d: %w", fd, err)
	}
	return nil
}

// WaitFD is readable, level-triggered, when Poll has something to report. It is an epoll descriptor over all programs.
func (u *Uffd) WaitFD() int { return u.epoll }

// Attach adds a program; see Table. Errors: ErrAttached, ErrTooMany, ErrProcGone, ErrClosed, and a description of
// what is wrong with fd or base. What the program has not registered yet it may register at any time later.
func (u *Uffd) Attach(proc ProcID, fd int, base uintptr) error {
	f := uffd.From(fd)
	err := u.attach(proc, f, base)
	if err != nil {
		f.Close()
	}
	return err
}

func (u *Uffd) attach(proc ProcID, f *uffd.FD, base uintptr) error {
	switch {
	case u.closed:
		return ErrClosed
	case proc == AllProcs || u.program(proc) != nil:
		return fmt.Errorf("%w: %d", ErrAttached, proc)
	case len(u.programs) == MaxPrograms:
		return fmt.Errorf("%w: %d are attached", ErrTooMany, MaxPrograms)
	case base%u.osPage != 0:
		return fmt.Errorf("pagetable: attach program %d: its region starts at %#x, which is not a page boundary", proc, base)
	}
	if err := f.SetNonblock(); err != nil {
		return fmt.Errorf("pagetable: attach program %d: %w", proc, err)
	}
	if err := u.tryOut(proc, f, base); err != nil {
		return err
	}
	if err := u.watch(f.Sysfd(), proc); err != nil {
		return err
	}
	u.programs = append(u.programs, &program{id: proc, base: base, traps: f})
	return nil
}

// tryOut checks that f is a userfaultfd on which features are enabled, that the region lies in user space, and that the
// address space still exists. It does so by operations that change nothing: waking, when nobody can wait, and lifting the
// write protection that the pages of a program just attached don't have, as none is mapped.
func (u *Uffd) tryOut(proc ProcID, f *uffd.FD, base uintptr) error {
	regionBytes := uintptr(u.pages) * u.pageBytes
	switch errno := f.Wake(base, regionBytes); errno {
	case 0:
	case unix.ENOTTY:
		return fmt.Errorf("pagetable: attach program %d: descriptor is not a userfaultfd: %w", proc, errno)
	default:
		return fmt.Errorf("pagetable: attach program %d: no features are enabled on its userfaultfd, or its region %#x+%#x is not in user space: %w",
			proc, base, regionBytes, errno)
	}
	if errno := f.WriteProtect(base, u.osPage, false, true); errno == unix.ESRCH {
		return fmt.Errorf("pagetable: attach program %d: %w", proc, ErrProcGone)
	}
	return nil
}

// Detach forgets a program and closes the descriptor. Its threads that wait stay waiting as long as the program keeps its own
// copy of the descriptor, which it does until it ends. Pages stay. An unknown program is ignored.
func (u *Uffd) Detach(proc ProcID) {
	for i, pr := range u.programs {
		if pr.id != proc {
			continue
		}
		u.forget(pr)
		u.programs = append(u.programs[:i], u.programs[i+1:]...)
		u.setAlarm() // its end needs no report any more
		return
	}
}

// forget removes the descriptor from the epoll set before it closes it: the program has another descriptor of the same
// open file, so closing ours alone would leave it in the set.
func (u *Uffd) forget(pr *program) {
	// Can only fail if it is not in the set, which is what is wanted.
	_ = unix.EpollCtl(u.epoll, unix.EPOLL_CTL_DEL, pr.traps.Sysfd(), nil)
	pr.traps.Close()
	for i, id := range u.goneNews {
		if id == pr.id {
			u.goneNews = append(u.goneNews[:i], u.goneNews[i+1:]...)
			break
		}
	}
}

// Close detaches all programs and closes the file: once no program maps it, its memory is freed. A second call does nothing.
func (u *Uffd) Close() error {
	if u.closed {
		return nil
	}
	u.closed = true
	for _, pr := range u.programs {
		u.forget(pr)
	}
	u.programs, u.pending, u.goneNews = nil, nil, nil
	err := errors.Join(unix.Close(u.alarm), unix.Close(u.epoll), u.mem.close())
	// Nothing may reach by these numbers what somebody else opens next.
	u.alarm, u.epoll, u.mem.fd = -1, -1, -1
	return err
}

// program finds an attached program. There are few, so a scan beats a map.
func (u *Uffd) program(id ProcID) *program {
	for _, pr := range u.programs {
		if pr.id == id {
			return pr
		}
	}
	return nil
}

// addr is where program pr has page p.
func (u *Uffd) addr(pr *program, p Page) uintptr { return pr.base + uintptr(p)*u.pageBytes }

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
