// Package area is the memory that a program and its daemon share to trap page faults by SIGSEGV:
// which layout it has, and what the daemon does with it. The program's side is C, in package
// sigsegv, because it runs in a signal handler and in a thread that Go does not know.
//
// The area is a memory file that the program makes, seals against changes of size, and passes to
// the daemon. It holds
//
//   - a word for each page of the region, which says what access the daemon has granted and what of
//     it the program has applied by mprotect. Threads that wait for a page sleep on its word
//     (futex);
//   - the faults, a ring that any thread of the program fills, from its signal handler, and the
//     daemon empties;
//   - the commands, a ring of pages whose access the daemon has lowered, which it fills and the
//     program's agent thread empties;
//   - a flag that says whether the program has written to the eventfd that wakes the daemon, so
//     that it does so once only.
//
// # Who writes a word
//
// The daemon alone changes granted and the generation, and clears the waiters bit. The program
// alone changes applied, under one lock of its own. Both sides change words by compare-and-swap.
// The program raises applied before it gives access, and lowers it after it has taken access. So a
// page whose word says "applied: none" cannot be touched in that program, and the daemon needs
// nobody's help to take it away.
//
// # Trust
//
// A program can write whatever it likes into the area, at any time. The daemon takes nothing from
// it but page numbers, which it checks, and acknowledgements: a program that lies about those keeps
// access that it should lose, which it could also get by mapping the file it was given. Its user is
// the daemon's user.
package area

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The layout. trap.h has the same, and package sigsegv does not compile if they differ.
const (
	Magic   = 0x64736d5365677631 // at 0
	Version = 2

	// uint32: the program has written to the eventfd and the daemon has not read it
	signalledOffset = 64
	tailOffset      = 128 // uint64: faults posted by the program
	// uint64: commands posted by the daemon; the agent sleeps on its lower half
	postedOffset = 192
	sleepsOffset = 256 // uint32: the agent sleeps, or is about to
	doneOffset   = 264 // uint64: commands carried out by the agent

	FaultsOffset = 4096 // FaultSlots of FaultBytes
	// several times the threads that a program has waiting; when it is full they try again
	FaultSlots     = 1024
	FaultBytes     = 32
	CommandsOffset = FaultsOffset + FaultSlots*FaultBytes // CommandSlots of uint64
	CommandSlots   = 4096                                 // what does not fit waits in the daemon
	// one uint32 for each page; a page boundary whatever the page size is
	WordsOffset = 128 << 10
)

// The bits of a word.
const (
	GrantedMask  = 3 << 0 // Level that the daemon grants, or Lost
	AppliedShift = 2      // two bits: Level that the program has applied
	AppliedMask  = 3 << AppliedShift
	Waiters      = 1 << 4 // a thread sleeps on the word
	GenStep      = 1 << 5 // the rest is the generation, which every change by the daemon counts on
)

// Level is an access to a page.
type Level uint32

const (
	None Level = iota
	ReadOnly
	Writable
	// Lost is not an access, and only granted: the page's contents are gone, so that an access to
	// it does not wait but is a segmentation fault.
	Lost
)

// Level8 is a Level in a byte, for tables of them.
type Level8 uint8

// Leave is the command that follows no other: the program gives up all access for good, and shuts
// its socket.
const Leave = ^uint64(0)

// Size is the length of the area for a region of so many pages.
func Size(pages uint64) uint64 {
	const unit = 64 << 10 // the largest page size of an operating system here
	return (WordsOffset + 4*pages + unit - 1) &^ (unit - 1)
}

// ErrBad is wrapped by the error of Open for a file that is no area, or not the right one.
var ErrBad = errors.New("area: not a trap area for this region")

// Fault is an access that a thread of the program waits to make.
type Fault struct {
	Page   uint64 // as the program says; to be checked
	Thread uint32
	Offset uint32 // of the byte in the page
	Write  bool
}

// Area is a mapped area, the daemon's side. It belongs to one goroutine.
type Area struct {
	mem    []byte
	pages  uint64
	head   uint64 // faults taken
	posted uint64 // commands posted
	// used has a bit for each unit of words: whether something may have been done with one of its
	// pages. To look at a word that was never written takes memory.
	used []uint64
}

// usedUnit is how many words share a bit of Area.used: those of the smallest page of memory.
const usedUnit = 4096 / 4

// Create writes the header of a new area into mem, for the program.
func Create(mem []byte, pages, pageBytes uint64) {
	for i, v := range [...]uint64{Magic, Version, pages, pageBytes} {
		*(*uint64)(unsafe.Pointer(&mem[8*i])) = v
	}
}

// Open maps the area in file, which stays the caller's, and checks that it is one for such a region
// and that nobody can shorten it: touching what lies beyond the end of a file raises SIGBUS.
func Open(file int, pages, pageBytes uint64) (*Area, error) {
	seals, err := unix.FcntlInt(uintptr(file), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: it is no memory file: %w", ErrBad, err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("%w: its size is not sealed", ErrBad)
	}
	var st unix.Stat_t
	if err := unix.Fstat(file, &st); err != nil {
		return nil, fmt.Errorf("area: fstat: %w", err)
	}
	// A memory file of huge pages has none behind it but what the administrator has set aside:
	// touching it raises SIGBUS.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(file, &fs); err != nil {
		return nil, fmt.Errorf("area: fstatfs: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("%w: it is of another file system, %#x", ErrBad, fs.Type)
	}
	size := Size(pages)
	if st.Size < 0 || uint64(st.Size) < size {
		return nil, fmt.Errorf("%w: it has %d bytes, %d are needed for %d pages", ErrBad, st.Size, size, pages)
	}
	p, err := unix.MmapPtr(file, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("area: map %d bytes: %w", size, err)
	}
	a := &Area{mem: unsafe.Slice((*byte)(p), size), pages: pages, used: make([]uint64, pages/(64*usedUnit)+1)}
	for i, want := range [...]uint64{Magic, Version, pages, pageBytes} {
		if got := *(*uint64)(unsafe.Pointer(&a.mem[8*i])); got != want {
			a.Close()
			return nil, fmt.Errorf("%w: field %d of its header is %#x, want %#x", ErrBad, i, got, want)
		}
	}
	return a, nil
}

// Close unmaps the area. A second call does nothing.
func (a *Area) Close() {
	if a.mem != nil {
		unix.MunmapPtr(unsafe.Pointer(&a.mem[0]), uintptr(len(a.mem)))
		a.mem = nil
	}
}

func (a *Area) u32(off uint64) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&a.mem[off])) }
func (a *Area) u64(off uint64) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&a.mem[off])) }

// TakeFault takes the oldest fault, if there is one. It makes no system call.
func (a *Area) TakeFault() (Fault, bool) {
	off := FaultsOffset + a.head%FaultSlots*FaultBytes
	turn := a.u64(off)
	lap := a.head / FaultSlots
	if turn.Load() != 2*lap+1 {
		return Fault{}, false
	}
	access := a.u32(off + 20).Load()
	f := Fault{Page: a.u64(off + 8).Load(), Thread: a.u32(off + 16).Load(), Offset: access >> 1, Write: access&1 != 0}
	turn.Store(2*lap + 2)
	a.head++
	if f.Page < a.pages {
		a.use(f.Page)
	}
	return f, true
}

// Signalled reports whether the eventfd has been written to, or is being.
func (a *Area) Signalled() bool { return a.u32(signalledOffset).Load() != 0 }

// Unsignal is called when the eventfd has been read. What was posted before is visible afterwards;
// what is posted later writes to the eventfd again.
func (a *Area) Unsignal() { a.u32(signalledOffset).Swap(0) }

// Post gives the agent a command, and reports whether there was room.
func (a *Area) Post(command uint64) bool {
	if a.posted-a.Done() >= CommandSlots {
		return false
	}
	a.u64(CommandsOffset + a.posted%CommandSlots*8).Store(command)
	a.posted++
	a.u64(postedOffset).Store(a.posted)
	if a.u32(sleepsOffset).Load() != 0 {
		wake(a.u32(postedOffset))
	}
	return true
}

// Done is how many commands the agent has carried out, as the program says: never more than were
// given.
func (a *Area) Done() uint64 { return min(a.u64(doneOffset).Load(), a.posted) }

// word is the word of a page.
func (a *Area) word(page uint64) *atomic.Uint32 { return a.u32(WordsOffset + 4*page) }

// Grant changes what the program may do with a page and wakes the threads that wait for it. It
// returns what the program had applied at that moment: if that is more than level, the agent must
// lower it.
func (a *Area) Grant(page uint64, level Level) (applied Level) {
	return a.change(page, func(uint32) uint32 { return uint32(level) })
}

// Limit is Grant that never grants more than the program has. A page that is lost stays so.
func (a *Area) Limit(page uint64, level Level) (applied Level) {
	return a.change(page, func(granted uint32) uint32 {
		if Level(granted) == Lost {
			return granted
		}
		return min(granted, uint32(level))
	})
}

// Raise is Grant for a page that the program has, and wakes only if it does not, or the page is
// lost.
func (a *Area) Raise(page uint64, level Level) {
	a.change(page, func(granted uint32) uint32 {
		if Level(granted) == None || Level(granted) == Lost {
			return granted
		}
		return uint32(level)
	})
}

// Wake wakes the threads that wait for a page; they look again, and report the fault again if they
// must.
func (a *Area) Wake(page uint64) { a.change(page, func(granted uint32) uint32 { return granted }) }

// NextTouched is the first of the pages from first to before end with which anything was ever done
// in this program, by the daemon or by a thread whose fault was taken.
func (a *Area) NextTouched(first, end uint64) (page uint64, ok bool) {
	for page = first; page < end; page++ {
		if unit := page / usedUnit; a.used[unit/64]&(1<<(unit%64)) == 0 {
			page |= usedUnit - 1 // the last of the unit
		} else if a.word(page).Load() != 0 {
			return page, true
		}
	}
	return 0, false
}

// use notes that something is done with a page.
func (a *Area) use(page uint64) { a.used[page/usedUnit/64] |= 1 << (page / usedUnit % 64) }

// change always counts the generation on, also if nobody sleeps: a thread that has posted its fault
// may be about to.
func (a *Area) change(page uint64, granted func(uint32) uint32) Level {
	a.use(page)
	w := a.word(page)
	for {
		old := w.Load()
		next := granted(old&GrantedMask) | old&AppliedMask | (old &^ (GenStep - 1)) + GenStep
		if !w.CompareAndSwap(old, next) {
			continue
		}
		if old&Waiters != 0 {
			wake(w)
		}
		return Level(old & AppliedMask >> AppliedShift)
	}
}

// wake wakes all threads that sleep on a word. The futex is shared: the kernel knows it by the
// file.
func wake(w *atomic.Uint32) {
	const futexWake, all = 1, 1<<31 - 1
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, all, 0, 0, 0)
}
