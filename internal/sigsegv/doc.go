// Package sigsegv traps accesses to shared pages by memory protection and a handler of SIGSEGV, for
// kernels and containers without userfaultfd. It is the side of the program; the daemon's is
// pagetable.Sigsegv, and package area is the memory between them. It needs cgo; without, Open
// returns ErrNoCgo.
//
// # How it works
//
// A registered range is mapped from the daemon's file without access. A thread that touches it runs
// the handler, which is C: Go could not run there. The handler posts the fault, wakes the daemon,
// and sleeps on the page's word. The daemon puts the contents into the file, grants the access in
// the word, and wakes the thread, which calls mprotect by itself and returns, so that the access
// starts over. No other thread of the program has a part in it: a goroutine that waits can't be
// stopped, and must not depend on one that can.
//
// Taking access away must reach threads that run, so the daemon asks the agent for it, a thread
// with all signals blocked: it calls mprotect and acknowledges. The kernel has by then flushed the
// translations of all processors.
//
// # Why a late mprotect never undoes an earlier revocation
//
// All mprotect calls are made under one lock, and each does what the page's word says at that time.
// The daemon first lowers the word, then asks the agent, which takes the lock: a thread that had
// read the old word before has finished by then, and one that comes later reads the new. One lock
// is no loss: the kernel makes these calls one after the other as it is.
//
// # Every other SIGSEGV
//
// The handler was installed over Go's and calls it for every other address, with the same
// arguments, stack and signal mask. A nil dereference panics as ever, debug.SetPanicOnFault works,
// and a crash in C code ends the program with Go's message.
//
// So it is with an access to a page that the daemon has declared lost, because nobody has its
// contents any more: the handler does not wait, and hands the signal on.
//
// So it is, too, with a store to a range that was registered read-only, whether its page is here or
// not. There the handler gives no more than loads, also where the daemon grants stores, as it does
// while another program makes them.
//
// While a thread waits in the handler its signals are blocked. Every few milliseconds it looks
// whether one is there, and if so goes back to the access, where the signal is delivered and the
// fault taken again: that is how the collector and the scheduler preempt it. So the same fault may
// be posted many times.
//
// # Limits
//
// A system call on a page that is not mapped fails with EFAULT: there is nobody in the kernel to
// run a handler for. A program that is stopped (SIGSTOP, a debugger) can't acknowledge, so others
// wait until it goes on.
//
// Neighbours with different protections are separate mappings to the kernel, which allows each
// process vm.max_map_count of them (65,530 unless set). Near the limit whole runs of pages lose
// their mapping in this program; they are mapped again when they are touched, without the daemon.
package sigsegv

import "errors"

// ErrNoCgo is returned by Open in a program that was built without cgo.
var ErrNoCgo = errors.New("this program was built without cgo, which the sigsegv trap needs; build it with CGO_ENABLED=1 and a C compiler")

// ErrMaps is wrapped by the error of Open when the kernel allows too few mappings.
var ErrMaps = errors.New("the kernel allows too few mappings")

// Mark is the last argument of the system call futex by which a thread waits for a page in the
// handler, and the instruction that faulted is the argument before it. The kernel uses neither, but
// shows them in /proc/PID/task/TID/syscall, where perf.Watch looks.
const Mark = 0x64736d77

// Config says what is to be trapped.
type Config struct {
	Base      uintptr // of the region, page-aligned
	Bytes     uintptr // whole pages
	PageBytes uintptr // a power of two, at least the operating system's
	// MaxSplits is how often the protection may change from one page to the next before mappings
	// are joined. 0 is chosen by the sysctl vm.max_map_count; tests set less.
	MaxSplits uint64
}
