package floor

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/userfaultfd.h, whose structures have the same layout on all 64-bit Linux architectures.
const (
	uffdUserModeOnly = 1

	uffdioAPI          = 0xc018aa3f
	uffdioRegister     = 0xc020aa00
	uffdioCopy         = 0xc028aa03
	uffdioWriteProtect = 0xc018aa06

	uffdAPIVersion         = 0xaa
	featureMissingShmem    = 1 << 5
	featureWriteProtectShm = 1 << 12
	registerModeMissing    = 1 << 0
	registerModeWP         = 1 << 1
	copyModeWP             = 1 << 1
	eventPagefault         = 0x12
	pagefaultFlagWP        = 1 << 1
	msgBytes               = 32
	msgFlagsAt, msgAddrAt  = 8, 16
)

type uffdioAPIArg struct{ api, features, ioctls uint64 }

type uffdioRegisterArg struct{ start, length, mode, ioctls uint64 }

// uffdioCopyArg has its source as a pointer, which is as long as the kernel's field, so that the runtime knows of it.
type uffdioCopyArg struct {
	dst          uint64
	src          unsafe.Pointer
	length, mode uint64
	copied       int64
}

type uffdioWriteProtectArg struct{ start, length, mode uint64 }

// mapping is a shared mapping of a fresh memfd.
type mapping struct {
	base  unsafe.Pointer
	bytes int
}

func mapFresh(pages int) (mapping, error) {
	fd, err := unix.MemfdCreate("dsm-floor", unix.MFD_CLOEXEC)
	if err != nil {
		return mapping{}, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	bytes := pages * PageBytes
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		return mapping{}, fmt.Errorf("setting the memfd's size to %d: %w", bytes, err)
	}
	base, err := unix.MmapPtr(fd, 0, nil, uintptr(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, fmt.Errorf("mapping %d bytes: %w", bytes, err)
	}
	return mapping{base, bytes}, nil
}

func (m mapping) unmap() error { return unix.MunmapPtr(m.base, uintptr(m.bytes)) }

// load reads the first byte of a page. It is not inlined, so that the load happens although nobody uses
// its value.
//
//go:noinline
func (m mapping) load(page int) byte { return *(*byte)(unsafe.Add(m.base, page*PageBytes)) }

//go:noinline
func (m mapping) store(page int) { *(*byte)(unsafe.Add(m.base, page*PageBytes)) = 1 }

// trap registers m with a new userfaultfd for missing pages and write protection. User-mode faults are all that
// the floor needs, and all that an ordinary user may trap.
func (m mapping) trap(nonblocking bool) (fd int, err error) {
	flags := uintptr(unix.O_CLOEXEC | uffdUserModeOnly)
	if nonblocking {
		flags |= unix.O_NONBLOCK
	}
	r, _, errno := unix.RawSyscall(unix.SYS_USERFAULTFD, flags, 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("userfaultfd: %w (`dsmd doctor` says what is missing)", errno)
	}
	fd = int(r)
	api := uffdioAPIArg{api: uffdAPIVersion, features: featureMissingShmem | featureWriteProtectShm}
	if err := ioctl(fd, uffdioAPI, unsafe.Pointer(&api)); err != nil {
		return 0, fmt.Errorf("UFFDIO_API (write protection on shared memory needs Linux 5.19): %w", err)
	}
	register := uffdioRegisterArg{
		start: uint64(uintptr(m.base)), length: uint64(m.bytes), mode: registerModeMissing | registerModeWP,
	}
	if err := ioctl(fd, uffdioRegister, unsafe.Pointer(&register)); err != nil {
		return 0, fmt.Errorf("UFFDIO_REGISTER: %w", err)
	}
	return fd, nil
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR, unix.EAGAIN:
			// EAGAIN: the address space is changing; the fault is still there.
		default:
			return errno
		}
	}
}

// fault is what D needs to know of a userfaultfd event.
type fault struct {
	addr         uint64
	writeProtect bool
}

// readFault waits for the next fault on the userfaultfd.
func readFault(fd int, spin bool) (fault, error) {
	var msg [msgBytes]byte
	wait := newWait(spin)
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&msg[0])), msgBytes)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			if wait.exhausted() {
				if err := pollIn(fd); err != nil {
					return fault{}, err
				}
			}
		case errno != 0:
			return fault{}, fmt.Errorf("reading the userfaultfd: %w", errno)
		case n != msgBytes || msg[0] != eventPagefault:
			return fault{}, fmt.Errorf("the userfaultfd gave %d bytes of event %#x, not a page fault", n, msg[0])
		default:
			return fault{
				addr:         *(*uint64)(unsafe.Pointer(&msg[msgAddrAt])) &^ (PageBytes - 1),
				writeProtect: *(*uint64)(unsafe.Pointer(&msg[msgFlagsAt]))&pagefaultFlagWP != 0,
			}, nil
		}
	}
}

// install copies page into the program at addr and wakes it.
func install(fd int, addr uint64, page []byte, protected bool) error {
	arg := uffdioCopyArg{dst: addr, src: unsafe.Pointer(&page[0]), length: PageBytes}
	if protected {
		arg.mode = copyModeWP
	}
	if err := ioctl(fd, uffdioCopy, unsafe.Pointer(&arg)); err != nil {
		return fmt.Errorf("UFFDIO_COPY to %#x: %w", addr, err)
	}
	return nil
}

// unprotect allows stores to the page at addr and wakes the program.
func unprotect(fd int, addr uint64) error {
	arg := uffdioWriteProtectArg{start: addr, length: PageBytes}
	if err := ioctl(fd, uffdioWriteProtect, unsafe.Pointer(&arg)); err != nil {
		return fmt.Errorf("UFFDIO_WRITEPROTECT at %#x: %w", addr, err)
	}
	return nil
}

// send writes all of b.
func send(fd int, b []byte) error {
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_NOSIGNAL, 0, 0)
		if errno != 0 && errno != unix.EINTR {
			return fmt.Errorf("send: %w", errno)
		}
		if errno == 0 {
			b = b[n:]
		}
	}
	return nil
}

// receive fills b. Spinning, it retries without blocking for SpinLimit and blocks after that. It returns
// errEnd when the peer has closed the connection.
func receive(fd int, b []byte, spin bool) error {
	wait := newWait(spin)
	flags := uintptr(unix.MSG_WAITALL)
	if spin {
		flags = unix.MSG_DONTWAIT
	}
	for len(b) > 0 {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			if wait.exhausted() {
				flags = unix.MSG_WAITALL
			}
		case errno != 0:
			return fmt.Errorf("receive: %w", errno)
		case n == 0:
			return errEnd
		default:
			b = b[n:]
		}
	}
	return nil
}

// errEnd says that the peer is gone, which is how the bare processes are told to end.
const errEnd = syscall.ENOTCONN

func pollIn(fd int) error {
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_POLL, uintptr(unsafe.Pointer(&p)), 1, ^uintptr(0))
		switch {
		case errno == unix.EINTR:
		case errno != 0:
			return fmt.Errorf("poll: %w", errno)
		case p.Revents&unix.POLLIN == 0:
			return fmt.Errorf("poll: the descriptor reports %#x", p.Revents)
		default:
			return nil
		}
	}
}

// wait limits one stretch of spinning.
type wait struct{ until time.Time }

func newWait(spin bool) wait {
	if !spin {
		return wait{}
	}
	return wait{time.Now().Add(SpinLimit)}
}

func (w wait) exhausted() bool { return time.Now().After(w.until) }
