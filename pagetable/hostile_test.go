package pagetable_test

import (
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

// strange attaches a program with a trap of its own making: pages registered at a mapping that it
// chooses.
func strange(t *testing.T, u *pagetable.Uffd, proc pagetable.ProcID, mem []byte) *uffd.FD {
	t.Helper()
	fd, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fd.Close() })
	base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	// Missing pages and write protection, which the kernel lets be registered on any memory; faults
	// of the table's pages are minor, too.
	arg := [4]uint64{uint64(base), uint64(len(mem)), 1 | 2, 0}
	const register = 0xc020aa00 // UFFDIO_REGISTER
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd.Sysfd()), register, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		t.Fatal(errno)
	}
	ours, err := unix.Dup(fd.Sysfd())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Attach(proc, ours, base); err != nil {
		t.Fatal(err)
	}
	return fd
}

// wantGivenUp polls until the program is reported gone, with a reason.
func wantGivenUp(t *testing.T, u *pagetable.Uffd, proc pagetable.ProcID) {
	t.Helper()
	var events [8]pagetable.Event
	for deadline := time.Now().Add(patience.Or(20 * time.Second)); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		n, err := u.Poll(events[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events[:n] {
			if ev.Kind == pagetable.ProcGone && ev.Proc == proc && ev.Err != nil {
				return
			}
		}
	}
	t.Errorf("program %d is not given up", proc)
}

// TestBlockingDescriptor: the flag that keeps reads from blocking is the program's too. When it
// clears it, the table goes on.
func TestBlockingDescriptor(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.UffdConfig{Pages: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	size := 16 * os.Getpagesize()
	mem, err := unix.Mmap(u.MemFD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	fd := strange(t, u, 1, mem)
	if err := unix.SetNonblock(fd.Sysfd(), false); err != nil {
		t.Fatal(err)
	}
	polled := make(chan error, 1)
	go func() {
		_, err := u.Poll(make([]pagetable.Event, 8))
		polled <- err
	}()
	select {
	case err := <-polled:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience.Or(20 * time.Second)):
		unix.SetNonblock(fd.Sysfd(), true)
		t.Fatal("Poll waits for the program's faults")
	}
	if !fd.Mode().KernelFaults() {
		// what follows makes a fault within a system call, which this user's traps do not see
		return
	}
	// Beside another program the kernel says which descriptors are worth a look, and that this one
	// is not as it should be.
	other, err := unix.Mmap(u.MemFD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(other)
	strange(t, u, 2, other)
	touched := make(chan error, 1)
	go func() { touched <- unix.Madvise(mem[:os.Getpagesize()], unix.MADV_POPULATE_WRITE) }()
	wantGivenUp(t, u, 1)
	u.Detach(1, false)
	fd.Close()
	if err := u.Close(); err != nil { // no descriptor is left, so the kernel lets the fault go
		t.Error(err)
	}
	if err := <-touched; err != nil {
		t.Error(err)
	}
}

// TestForeignMemory: a program that has something else than the region at its place loses its own
// service, and nobody else's.
func TestForeignMemory(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.UffdConfig{Pages: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	anonymous, err := unix.Mmap(-1, 0, 16*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(anonymous)
	strange(t, u, 1, anonymous)
	data := make([]byte, u.PageBytes())
	data[7] = 9
	if _, err := u.Install(3, data, true, pagetable.AllProcs); err != nil {
		t.Fatal(err)
	}
	// A page that is in the file cannot be mapped into memory that is not the file.
	if _, err := u.Map(3, true, 1); err != nil {
		t.Fatalf("the table fails because of one program: %v", err)
	}
	wantGivenUp(t, u, 1)
	for _, op := range []func() (pagetable.Outcome, error){
		func() (pagetable.Outcome, error) { return u.Downgrade(3) },
		func() (pagetable.Outcome, error) { return u.MakeWritable(3) },
		func() (pagetable.Outcome, error) { return u.Install(4, nil, false, 1) },
	} {
		if out, err := op(); out != pagetable.Done || err != nil {
			t.Errorf("%v, %v", out, err)
		}
	}
	into := make([]byte, u.PageBytes())
	if _, err := u.Revoke(3, into); err != nil || into[7] != 9 {
		t.Errorf("the page was lost: %d, %v", into[7], err)
	}
	u.Detach(1, false)
	if err := u.Attach(2, -1, 0); err == nil || errors.Is(err, pagetable.ErrTooMany) {
		t.Errorf("descriptor -1 is attached: %v", err)
	}
}
