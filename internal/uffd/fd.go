package uffd

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawLimitBytes is the longest range for which an ioctl bypasses the Go scheduler. Copying 64 KiB
// takes about 25 µs, which is what the runtime itself waits before it considers a system call slow.
const rawLimitBytes = 64 << 10

// FD is a userfaultfd. Its methods may be called concurrently, but ReadFaults by one goroutine at a
// time; the kernel serialises them. Only Close must not run at the same time as another method,
// because the number could be reused.
type FD struct {
	fd       int
	mode     Mode // 0 when received from elsewhere
	features Features
	failed   []Attempt
	closed   atomic.Bool
	plain    bool // this kernel knows no other way not to block than O_NONBLOCK (before Linux 6.10)
}

// From wraps a descriptor that somebody else opened and agreed on features for: one received over a
// Unix socket. It owns n from here on. Mode and Features are unknown, 0.
func From(n int) *FD { return &FD{fd: n} }

// Sysfd is the descriptor's number, for passing it on and for polling. FD still owns it.
func (f *FD) Sysfd() int { return f.fd }

// Mode is the way in which Open opened it; 0 for a received descriptor.
func (f *FD) Mode() Mode { return f.mode }

// Features are those enabled; 0 for a received descriptor.
func (f *FD) Features() Features { return f.features }

// Failed are the ways that Open tried before the one that worked.
func (f *FD) Failed() []Attempt { return f.failed }

// Close closes this process's descriptor. A second call does nothing.
func (f *FD) Close() error {
	if f.closed.Swap(true) {
		return nil
	}
	return unix.Close(f.fd)
}

// SetNonblock sets O_NONBLOCK. Open has done so; for a received descriptor make sure of it: the
// kernel reports POLLERR for a blocking userfaultfd, and ReadFaults would block.
func (f *FD) SetNonblock() error {
	if err := unix.SetNonblock(f.fd, true); err != nil {
		return fmt.Errorf("set O_NONBLOCK on the userfaultfd: %w", err)
	}
	return nil
}

// Register makes faults in [addr, addr+length) trap: of missing pages, of write-protected pages,
// and of pages which the file has but this address space has not mapped. Then it allows loads and
// stores there. The range must be a shared mapping of a memfd or tmpfs file, in page units, in the
// address space of this process, which opened the descriptor.
//
// It should be mapped without access (PROT_NONE). With access, the kernel may fill pages of it
// before they trap: at once where the process locks its memory (mlockall with MCL_FUTURE), and
// whenever another thread touches it.
//
// Errors wrap a unix.Errno: EINVAL (not such a mapping, not aligned), EBUSY (registered with
// another userfaultfd), ESRCH, ENOMEM (too many mappings). After an error the range may be
// registered, and is to be unmapped.
func (f *FD) Register(addr, length uintptr) error {
	return f.register(addr, length, unix.PROT_READ|unix.PROT_WRITE)
}

// RegisterReadOnly is Register, but then allows loads only. A store raises SIGSEGV, and in a system
// call EFAULT: the kernel looks at the mapping before it looks for a trap (do_user_addr_fault in
// arch/x86/mm/fault.c). The other calls are as ever, and none of them lets a store through.
func (f *FD) RegisterReadOnly(addr, length uintptr) error {
	return f.register(addr, length, unix.PROT_READ)
}

// register makes faults trap, and then allows accesses.
func (f *FD) register(addr, length uintptr, prot int) error {
	arg := registerArg{rangeArg: rangeArg{uint64(addr), uint64(length)}, mode: registerMissing | registerWP | registerMinor}
	if errno := f.slow(cmdRegister, unsafe.Pointer(&arg)); errno != 0 {
		return fmt.Errorf("register %#x+%#x for page faults: %w%s", addr, length, errno, registerHint(errno))
	}
	const want = 1<<0x02 | 1<<0x03 | 1<<0x04 | 1<<0x06 | 1<<0x07 // the range ioctls that we use
	if arg.ioctls&want != want {
		return fmt.Errorf("register %#x+%#x for page faults: %w: the kernel allows operations %#x on it, %#x are needed; map a memfd with "+
			"4 KiB pages, not hugetlbfs", addr, length, ErrFeatures, arg.ioctls, uint64(want))
	}
	if _, _, errno := unix.Syscall(unix.SYS_MPROTECT, addr, length, uintptr(prot)); errno != 0 {
		return fmt.Errorf("allow accesses to %#x+%#x: %w", addr, length, os.NewSyscallError("mprotect", errno))
	}
	return nil
}

func registerHint(errno unix.Errno) string {
	if errno == unix.EINVAL {
		return " (is it a shared mapping of a memfd, page-aligned?)"
	}
	return ""
}

// Unregister ends trapping in [addr, addr+length) and wakes the threads that wait there: pages that
// are missing are then filled with zeros by the kernel as usual.
func (f *FD) Unregister(addr, length uintptr) unix.Errno {
	arg := rangeArg{uint64(addr), uint64(length)}
	return f.slow(cmdUnregister, unsafe.Pointer(&arg))
}

// Copy puts len(src) bytes (whole pages) into missing pages at dst, maps them, and wakes the
// threads that wait there, atomically as seen by each page. mode is a set of DontWake and
// WriteProtected.
//
// It returns the bytes done, also with an error; the threads waiting for that part are woken.
// EAGAIN with progress means go on from there; what stopped it shows then. EEXIST: the first page
// not done is in the file already; its waiting threads are not woken. ENOENT: not registered.
// ESRCH: the address space is gone. ENOMEM, ENOSPC: no memory.
func (f *FD) Copy(dst uintptr, src []byte, mode uint64) (int, unix.Errno) {
	arg := copyArg{dst: uint64(dst), src: unsafe.Pointer(unsafe.SliceData(src)), len: uint64(len(src)), mode: mode}
	errno := f.ioctl(cmdCopy, unsafe.Pointer(&arg), uintptr(len(src)))
	return progress(arg.copied, len(src), errno), errno
}

// ZeroPage is Copy of zeros, without the source. The pages are mapped writable: the kernel has no
// write-protected form of it. mode is 0 or DontWake.
func (f *FD) ZeroPage(dst, length uintptr, mode uint64) (int, unix.Errno) {
	arg := progressArg{rangeArg: rangeArg{uint64(dst), uint64(length)}, mode: mode}
	errno := f.ioctl(cmdZeroPage, unsafe.Pointer(&arg), length)
	return progress(arg.done, int(length), errno), errno
}

// Continue maps pages that are in the file at dst, and wakes the threads that wait there. It
// returns the bytes done like Copy. EEXIST: the first page not done is mapped already, and its
// threads were not woken. EFAULT: it is not in the file. EINVAL: WriteProtected needs Linux 6.4.
// ENOENT, ESRCH and EAGAIN as in Copy.
func (f *FD) Continue(dst, length uintptr, mode uint64) (int, unix.Errno) {
	arg := progressArg{rangeArg: rangeArg{uint64(dst), uint64(length)}, mode: mode}
	errno := f.ioctl(cmdContinue, unsafe.Pointer(&arg), length)
	return progress(arg.done, int(length), errno), errno
}

// Poison makes every access to missing pages at dst raise SIGBUS (in a system call: EFAULT), from
// now on, and wakes the threads that wait there, so that they are the first. Only this address
// space is concerned; the file is not. It lasts until the program maps the range anew or gives it
// up by madvise(MADV_DONTNEED), or Copy, ZeroPage or Continue put a page there, which Linux 6.18
// allows.
//
// It returns the bytes done like Copy. EINVAL: the kernel has no FeaturePoison (before Linux 6.6).
// EEXIST: the first page not done is mapped, poisoned already, or has a mark left of its write
// protection, which WriteProtect off removes. ENOENT, ESRCH and EAGAIN as in Copy.
func (f *FD) Poison(dst, length uintptr) (int, unix.Errno) {
	arg := progressArg{rangeArg: rangeArg{uint64(dst), uint64(length)}}
	errno := f.ioctl(cmdPoison, unsafe.Pointer(&arg), length)
	return progress(arg.done, int(length), errno), errno
}

// progress is how much of a range an ioctl did: the field that it fills holds the bytes done, or a
// negative errno, and when the arguments themselves were refused nothing at all.
func progress(done int64, length int, errno unix.Errno) int {
	if errno == 0 {
		return length
	}
	return int(max(done, 0))
}

// WriteProtect makes stores in a registered range fault (on) or go through (off). Off wakes the
// threads that wait there unless dontWake; on never does. When it returns, no processor can still
// store through an older translation. ENOENT: part of the range is not registered. EAGAIN, ESRCH,
// ENOMEM as in Copy. It has no partial result: repeat it.
func (f *FD) WriteProtect(addr, length uintptr, on, dontWake bool) unix.Errno {
	arg := protectArg{rangeArg: rangeArg{uint64(addr), uint64(length)}}
	switch {
	case on: // the kernel refuses DONTWAKE here: protecting wakes nobody anyway
		arg.mode = protectOn
	case dontWake:
		arg.mode = protectDontWake
	}
	return f.ioctl(cmdWriteProtect, unsafe.Pointer(&arg), length)
}

// Wake wakes the threads that wait for a fault in the range to be settled. Their accesses start
// over, and fault again if nothing has changed. EINVAL: the range is not in page units or not in
// user space.
func (f *FD) Wake(addr, length uintptr) unix.Errno {
	arg := rangeArg{uint64(addr), uint64(length)}
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(f.fd), cmdWake, uintptr(unsafe.Pointer(&arg)))
	return errno // the kernel walks the waiting threads, not the pages: short whatever the length
}

// ioctl issues a call on a range of the given length, bypassing the scheduler when it is short. Its
// arg stays on the caller's stack: the conversion to uintptr is in the argument list of the system
// call, which keeps it alive and in place (package unsafe, rule 4).
func (f *FD) ioctl(cmd uintptr, arg unsafe.Pointer, length uintptr) unix.Errno {
	if length > rawLimitBytes {
		return f.slow(cmd, arg)
	}
	_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(f.fd), cmd, uintptr(arg))
	return errno
}

func (f *FD) slow(cmd uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(f.fd), cmd, uintptr(arg))
	return errno
}

// agree calls UFFDIO_API, once per descriptor: asked for nothing it returns what the kernel has,
// else it enables exactly the given features or fails with EINVAL.
func agree(n int, use Features) (Features, error) {
	arg := apiArg{api: ioctlType, features: uint64(use)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(n), cmdAPI, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, os.NewSyscallError("UFFDIO_API", errno)
	}
	return Features(arg.features), nil
}

// Fault is one page fault that a thread waits for.
type Fault struct {
	// Addr is the address that was touched; rounded down to a page before Linux 5.18.
	Addr uintptr
	// Thread is the thread's id in its own pid namespace.
	Thread uint32
	// Write: the access was a store.
	Write bool
	// Protected: the page was mapped, and write-protected, when the fault was taken. By the time
	// the message is read that may have changed.
	Protected bool
	// Minor: the page was in the file, and not mapped, when the fault was taken. As with Protected.
	Minor bool
}

// MaxFaults is the most faults that one ReadFaults returns: enough for one read to drain what the
// threads of a busy program can have outstanding, small enough (2 KiB) to live in the Buffer.
const MaxFaults = 64

// Buffer is the space that ReadFaults works in. One goroutine at a time.
type Buffer struct {
	raw    [MaxFaults]message
	faults [MaxFaults]Fault
}

// ErrNotAFault is returned by ReadFaults for a message that is not a page fault. No event of
// another kind is ever enabled by Open, so the descriptor was opened by somebody else's rules.
// Faults that were read with it are lost.
var ErrNotAFault = errors.New("uffd: message is not a page fault")

// ReadFaults reads up to limit pending faults (at most MaxFaults) in one system call, without
// blocking. The result lies in b, until its next use. The error is nil when there are none,
// ErrNotAFault, or a unix.Errno other than EAGAIN and EINTR. Reading is what makes a fault known to
// the reader only; the thread waits on until an operation settles it.
func (f *FD) ReadFaults(b *Buffer, limit int) ([]Fault, error) {
	limit = min(limit, MaxFaults)
	if limit <= 0 {
		return nil, nil
	}
	n, errno := f.read(b, limit*messageBytes)
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return nil, nil
	default:
		return nil, errno
	}
	count := int(n) / messageBytes
	for i := range b.raw[:count] {
		m := &b.raw[i]
		if m.event != eventPageFault {
			closeForks(b.raw[i:count])
			return b.faults[:i], ErrNotAFault
		}
		b.faults[i] = Fault{
			Addr:      uintptr(m.address),
			Thread:    m.thread,
			Write:     m.flags&1 != 0,
			Protected: m.flags&2 != 0,
			Minor:     m.flags&4 != 0,
		}
	}
	return b.faults[:count], nil
}

// read never blocks. O_NONBLOCK alone would not see to that: the flag belongs to the open file, and
// so also to the program that has sent the descriptor, which can clear it at any time.
func (f *FD) read(b *Buffer, length int) (uintptr, unix.Errno) {
	if !f.plain {
		v := unix.Iovec{Base: (*byte)(unsafe.Pointer(&b.raw))}
		v.SetLen(length)
		const position, noWait = ^uintptr(0), 0x8 // RWF_NOWAIT
		n, _, errno := unix.RawSyscall6(unix.SYS_PREADV2, uintptr(f.fd), uintptr(unsafe.Pointer(&v)), 1, position, position, noWait)
		if errno != unix.EOPNOTSUPP && errno != unix.ENOSYS {
			return n, errno
		}
		f.plain = true
	}
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(f.fd), uintptr(unsafe.Pointer(&b.raw)), uintptr(length))
	return n, errno
}

// closeForks closes the descriptors that came with messages about forks: the kernel opens them for
// whoever reads the message.
func closeForks(messages []message) {
	for i := range messages {
		if m := &messages[i]; m.event == eventFork {
			unix.Close(int(uint32(m.flags))) // in the place of a fault's flags
		}
	}
}
