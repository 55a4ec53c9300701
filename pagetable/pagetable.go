// Package pagetable holds this node's copies of shared pages and controls who can touch them.
//
// A page's bytes live in one memfd that belongs to the daemon. Programs on this node map that
// memfd. The table decides, page by page, whether their accesses go through, and reports the
// accesses that do not. It holds no protocol state: others decide what a page's state should be,
// and tell the table.
//
// There is one interface, Table, and one conformance suite (suite_test.go), which every
// implementation passes: the back ends Uffd (userfaultfd) and Sigsegv (memory protection and a
// signal handler in the program), and the fake in pagetabletest. Open chooses the back end.
//
// Concurrency: all methods belong to one goroutine, the reactor's, except WaitFD and Close.
package pagetable

import "errors"

// Page is the number of a page in the region, from 0.
type Page uint64

// ProcID names an attached program; the caller chooses it and never reuses one.
type ProcID uint32

// AllProcs stands for every attached program.
const AllProcs ProcID = 0

var (
	// ErrProcGone is returned when the program's address space no longer exists. The caller
	// detaches it.
	ErrProcGone = errors.New("pagetable: the program is gone")
	// ErrNoPoison is wrapped by Event.Err of a program that was given up because it waits for a
	// lost page and cannot be told: the kernel cannot make the access a memory fault (before Linux
	// 6.6, with the Uffd back end).
	ErrNoPoison = errors.New("pagetable: this kernel can't make an access to a lost page fail (it lacks UFFDIO_POISON, which Linux 6.6 brought)")
	// ErrNoMemory is returned when the memfd cannot grow: no memory, or its limit is reached.
	ErrNoMemory = errors.New("pagetable: out of memory for shared pages")
)

// EventKind tells a fault from a completion.
type EventKind uint8

const (
	// Fault: a thread of Proc waits for Page. The same fault may be reported many times.
	Fault EventKind = iota
	// Completed: the operation Op on Page, which returned Pending, is done.
	Completed
	// ProcGone: the program's address space no longer exists, or its faults can't be served any
	// more, because it breaks the rules. The caller detaches it.
	ProcGone
)

// Op names an operation, in completions and errors.
type Op uint8

const (
	OpInstall Op = iota + 1
	OpMakeWritable
	OpDowngrade
	OpRevoke
	OpMap
	OpDrop
	OpLose
)

// Event is something that happened to a page.
type Event struct {
	Kind   EventKind
	Op     Op     // Completed only
	Write  bool   // Fault only: the access was a store, or hit write protection
	Proc   ProcID // Fault, ProcGone
	Thread uint32 // Fault only: the thread's id as the kernel knows it
	Offset uint32 // Fault only: which byte of the page, 0 if the kernel does not say
	Page   Page
	// Completed: why it failed. ProcGone: what the program has broken, nil if it has ended
	Err error
}

// Outcome reports whether an operation is finished when its method returns.
type Outcome uint8

const (
	// Done: the operation has taken effect in every attached program.
	Done Outcome = iota
	// Pending: it will have taken effect when Poll reports Completed for it. The caller sees to it
	// that at most one operation per page is pending at any time.
	Pending
)

// MaxRunBytes bounds the pages of a Run together. More pages in one call would save hardly more,
// and one call of this size is still short (see package uffd).
const MaxRunBytes = 64 << 10

// Run is an operation on neighbouring pages.
type Run struct {
	Op    Op // OpInstall, OpMakeWritable, OpDowngrade or OpRevoke
	First Page
	Count int // at least 1; Count × PageBytes is at most MaxRunBytes

	Writable bool     // OpInstall: for each page as in Table.Install
	Proc     ProcID   // OpInstall
	Data     []byte   // OpInstall: the contents, one page behind the other; nil: all zeros
	Into     [][]byte // OpRevoke: for each page as in Table.Revoke; nil: nobody wants any
}

// Table is the set of pages on this node.
//
// A page is absent (no access), read-only or writable, the same in all attached programs. The first
// access of a program to a page is reported as a fault although the page is here; Map is the
// answer. An absent page may be lost (Lose): then accesses fail instead of waiting.
type Table interface {
	// PageBytes is the size of a page.
	PageBytes() int
	// Pages is the number of pages in the region.
	Pages() uint64

	// Attach adds a program, known by the descriptor that its side of the trap has made (a
	// userfaultfd for its own address space, or the socket of package internal/sigsegv) and by the
	// address at which it has mapped the region. The table owns fd from here on, also when Attach
	// fails.
	Attach(proc ProcID, fd int, base uintptr) error
	// Detach forgets a program. Pages stay. The program may live on, and gets nothing any more: its
	// threads that wait do so until it ends, and operations that take access away take it from that
	// program, too. unmapped: the program has said that it has unmapped the region, so there is
	// nothing to take away.
	Detach(proc ProcID, unmapped bool)

	// Poll fills events with what has happened and returns how many. It never blocks.
	Poll(events []Event) (int, error)
	// WaitFD is a descriptor that is readable (level-triggered) when Poll has something to report.
	WaitFD() int

	// Install makes an absent page present with the given contents (nil: all zeros) and wakes all
	// threads that wait for it. data is read before Install returns. proc is the program whose
	// thread waits; other programs' threads are woken and fault again.
	Install(p Page, data []byte, writable bool, proc ProcID) (Outcome, error)
	// MakeWritable makes a read-only page writable and wakes all threads that wait for it.
	MakeWritable(p Page) (Outcome, error)
	// Downgrade makes a writable page read-only. After it is done no store to the page can happen.
	Downgrade(p Page) (Outcome, error)
	// Revoke makes a page absent. If into is not nil it receives the page's last contents. After it
	// is done no load from or store to the page can happen in any program. into must stay valid
	// until the operation is done.
	Revoke(p Page, into []byte) (Outcome, error)
	// Operate does to each page of a run what Install, MakeWritable, Downgrade or Revoke does to
	// one, in hardly more system calls, where the trap allows it. outcomes is as long as the run,
	// and receives the Outcome of each page; a page that is pending gets an event of its own. If
	// there is an error some of the pages may be done.
	Operate(run *Run, outcomes []Outcome) error
	// Map answers a fault of proc on a page that is present. It maps the page there, read-only or
	// writable as the page is, and wakes the waiting threads. AllProcs: wakes threads of every
	// program and maps nothing. A page that is absent is not an error: the threads are woken and
	// fault again.
	Map(p Page, writable bool, proc ProcID) (Outcome, error)

	// Read copies neighbouring pages that are present, from first on, each into a slice of its own.
	// Absent pages read as zeros. Together they have at most MaxRunBytes.
	Read(first Page, into ...[]byte) error
	// Drop makes a run of pages absent, whatever they were, and wakes threads that wait for them.
	// It is for memory that is freed. The completion of a pending Drop names the first page. Until
	// then only Map, which wakes, may be called for the run.
	Drop(first Page, count uint64) (Outcome, error)

	// Lose declares an absent page lost: nobody has its contents any more. A page is absent if no
	// operation has made it present, whatever programs may have put into the memory file. From now
	// on no access of any program waits for it. Accesses of threads that wait already, and all
	// later ones, also of programs that are attached later, are memory faults: signals (SIGBUS or
	// SIGSEGV, by the back end) at the address of the access, and EFAULT in system calls. A Go
	// program can turn the signals into a panic (runtime/debug.SetPanicOnFault). They are not
	// reported. A program that cannot be told so is reported gone, with ErrNoPoison, and must be
	// ended.
	//
	// Install undoes it. Drop does too, for programs that map the run anew, as they do with memory
	// that was freed and is given to them again.
	Lose(p Page) (Outcome, error)

	// MemFD is the descriptor that programs map.
	MemFD() int
	// Close detaches all programs and drops all pages.
	Close() error
}
