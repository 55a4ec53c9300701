package floor

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

func (m mapping) addr() uintptr { return uintptr(m.base) }

func (m mapping) unmap() error { return unix.MunmapPtr(m.base, uintptr(m.bytes)) }

// load reads the first byte of a page. It is not inlined, so that the load happens although nobody
// uses its value.
//
//go:noinline
func (m mapping) load(page int) byte { return *(*byte)(unsafe.Add(m.base, page*PageBytes)) }

//go:noinline
func (m mapping) store(page int) { *(*byte)(unsafe.Add(m.base, page*PageBytes)) = 1 }

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

// receive fills b. Spinning, it retries without blocking for SpinLimit and blocks after that. It
// returns errEnd when the peer has closed the connection.
func receive(fd int, b []byte, spin bool) error {
	wait := newWait(spin)
	flags := uintptr(unix.MSG_WAITALL)
	if spin {
		flags = unix.MSG_DONTWAIT
	}
	for len(b) > 0 {
		n, err := receiveSome(fd, b, flags)
		if err != nil {
			return err
		}
		if n == 0 && wait.exhausted() {
			flags = unix.MSG_WAITALL
		}
		b = b[n:]
	}
	return nil
}

// receiveSome makes one call. It returns 0 bytes if flags let it return without any.
func receiveSome(fd int, b []byte, flags uintptr) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), flags, 0, 0)
	switch {
	case errno == unix.EINTR || errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("receive: %w", errno)
	case n == 0:
		return 0, errEnd
	default:
		return int(n), nil
	}
}

// errEnd says that the peer is gone, which is how the bare processes are told to end.
var errEnd = errors.New("the peer has closed the connection")

// pollIn waits until something can be read from one of the descriptors, of which there are two at
// most. It allocates no memory: time is taken meanwhile.
func pollIn(fds ...int) error {
	var all [2]unix.PollFd
	p := all[:len(fds)]
	for i, fd := range fds {
		p[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	for {
		// arm64 has no poll
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return fmt.Errorf("poll: %w", errno)
		}
		for i := range p {
			if p[i].Revents&unix.POLLIN != 0 {
				return nil
			}
		}
		return fmt.Errorf("poll: the descriptors report %#x and %#x", all[0].Revents, all[1].Revents)
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
