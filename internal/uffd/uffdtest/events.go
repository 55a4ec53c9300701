package uffdtest

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// OpenWithEvents opens a userfaultfd that reports not only faults but also when this process gives
// up memory (UFFD_FEATURE_EVENT_REMOVE): the madvise that does so waits until the report was read.
// No program that uses package uffd has one. The caller closes it, and has called Require.
func OpenWithEvents(t testing.TB) *uffd.FD {
	t.Helper()
	const (
		api         = 0xAA
		apiRequest  = 0xC018AA3F // UFFDIO_API
		eventRemove = 1 << 3     // UFFD_FEATURE_EVENT_REMOVE
	)
	// 1: UFFD_USER_MODE_ONLY
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK|1, 0, 0)
	if errno != 0 {
		t.Fatalf("userfaultfd: %v", errno)
	}
	arg := struct{ api, features, ioctls uint64 }{api: api, features: uint64(uffd.Needed) | eventRemove}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, apiRequest, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		unix.Close(int(fd))
		t.Fatalf("UFFDIO_API: %v", errno)
	}
	return uffd.From(int(fd))
}
