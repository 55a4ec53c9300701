// Package uffd is a thin binding of Linux's userfaultfd: the kernel interface by which one process
// learns of the page faults of another, and answers them.
//
// A program opens a userfaultfd for its own address space (Open), maps a memfd and registers the
// mapping (FD.Register). From then on a thread that touches a page of it which is missing, or
// write-protected, or present in the memfd but not yet mapped in this program (a "minor" fault), is
// put to sleep by the kernel, and a message can be read from the descriptor (FD.ReadFaults).
// Whoever holds the descriptor answers the fault with one of the other calls. Here that is the
// daemon, to which the program passes the descriptor over a Unix socket. The calls act on the
// address space of the process that opened the descriptor, not on the caller's.
//
// The binding adds three things to the ioctls and nothing else:
//   - Open tries the three ways there are to get a descriptor, and says of each way that failed
//     why, and what would help. Probe asks the same for `dsmd doctor`.
//   - Operations that can stop half-way (Copy, ZeroPage, Continue) return how far they came.
//   - Errors are plain unix.Errno values, because callers branch on them on the path of every
//     fault: EAGAIN (the address space is changing, or part of the range is done), EEXIST (a page
//     is mapped or present already, and its waiting threads were not woken), ENOENT (the range is
//     not registered), ESRCH (the address space is gone), EFAULT (Continue: the page is not in the
//     memfd), ENOMEM.
//
// # System calls that bypass the Go scheduler
//
// Short operations are issued with RawSyscall: the runtime isn't told, which saves tens of
// nanoseconds each way and, more importantly, never gives the P away. That is sound only if the
// call can't wait for anything that needs this process's P. It can't: the ioctls wait for the
// mapping lock of the target address space, which the kernel drops before it puts a faulting thread
// to sleep, and for memory. The source buffer of Copy is the caller's own memory, which never is a
// userfaultfd range. What is left is the length: a range above rawLimitBytes takes the ordinary
// Syscall, so that a garbage collection need not wait for it.
//
// Nothing here is safe to use in the process whose faults are to be served; see docs/kernel.md for
// why, and for every trap of this interface that we know.
package uffd
