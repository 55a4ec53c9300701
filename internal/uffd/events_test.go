package uffd

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestForkDescriptorsAreClosed: of messages that are no faults, those about forks have brought a
// descriptor each. A pipe stands in for the userfaultfd: what a message looks like is the kernel's,
// and what is in it a test can write as well.
func TestForkDescriptorsAreClosed(t *testing.T) {
	brought, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages := []message{
		// of memory that was given up: an address, by chance the number of a descriptor
		{event: 0x15, flags: 1},
		{event: eventPageFault, flags: 2},
		{event: eventFork, flags: 1<<32 | uint64(brought)}, // the upper half means nothing
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[1])
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(messages))), len(messages)*messageBytes)
	if _, err := unix.Write(ends[1], raw); err != nil {
		t.Fatal(err)
	}
	f := From(ends[0])
	defer f.Close()
	var b Buffer
	if faults, err := f.ReadFaults(&b, MaxFaults); len(faults) != 0 || err != ErrNotAFault {
		t.Errorf("got %v, %v; want ErrNotAFault", faults, err)
	}
	if _, err := unix.FcntlInt(uintptr(brought), unix.F_GETFD, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("the descriptor that came with the fork is still open (%v)", err)
	}
	for fd := range uintptr(3) {
		if _, err := unix.FcntlInt(fd, unix.F_GETFD, 0); err != nil {
			t.Errorf("descriptor %d, which came with nothing: %v", fd, err)
		}
	}
}
