package pagetable_test

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/sigsegv/area"
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

// wantGivenUp polls until the program is reported gone, and nothing else is, with a reason.
func wantGivenUp(t *testing.T, u *pagetable.Uffd, proc pagetable.ProcID) {
	t.Helper()
	if gone := NewRig(t, Fixture{Table: u}).UntilGone("the program"); gone.Proc != proc || gone.Err == nil {
		t.Errorf("got %+v, want that program %d is gone, and why", gone, proc)
	}
}

// TestBlockingDescriptor: the flag that keeps reads from blocking is the program's too. When it
// clears it, the table goes on.
func TestBlockingDescriptor(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.Config{Pages: 16})
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

// TestBlockingDescriptorAlone: nor does the table look for ever at such a descriptor, which the
// kernel says is always worth a look once a fault has come, when there is no other program.
func TestBlockingDescriptorAlone(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.Config{Pages: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	mem, err := unix.Mmap(u.MemFD(), 0, 16*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	fd := strange(t, u, 1, mem)
	if !fd.Mode().KernelFaults() {
		return // what follows makes a fault within a system call
	}
	if err := unix.SetNonblock(fd.Sysfd(), false); err != nil {
		t.Fatal(err)
	}
	touched := make(chan error, 1)
	go func() { touched <- unix.Madvise(mem[:os.Getpagesize()], unix.MADV_POPULATE_WRITE) }()
	defer func() { // when no descriptor is left the kernel lets the fault go
		u.Close()
		fd.Close()
		if err := <-touched; err != nil {
			t.Error(err)
		}
	}()
	wantGivenUp(t, u, 1)
}

// TestFaultsWithoutEnd: a program that writes faults into its area as fast as they are taken, none
// of which is to be reported, does not keep a poll from coming to its end.
func TestFaultsWithoutEnd(t *testing.T) {
	const pages, lost, many = 16, 3, 100 * area.FaultSlots
	s, err := pagetable.NewSigsegv(pagetable.Config{Pages: pages})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	mem := strangeArea(t, s, 1)
	done(t)(s.Lose(lost))
	turn := func(slot int) *atomic.Uint64 {
		return (*atomic.Uint64)(unsafe.Pointer(&mem[area.FaultsOffset+slot*area.FaultBytes]))
	}
	for slot := range area.FaultSlots {
		*(*uint64)(unsafe.Pointer(&mem[area.FaultsOffset+slot*area.FaultBytes+8])) = lost
		turn(slot).Store(1) // posted
	}
	word := (*atomic.Uint32)(unsafe.Pointer(&mem[area.WordsOffset+4*lost]))
	var posted atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for slot := 0; posted.Load() < many; {
			word.Or(area.Waiters) // to be woken takes the table longer than to post
			if at := turn(slot); at.Load()%2 == 0 {
				at.Add(1)
				posted.Add(1)
				slot = (slot + 1) % area.FaultSlots
			}
		}
	}()
	defer func() { posted.Store(many); <-ended }()
	for before := int64(0); before < many; {
		if n, err := s.Poll(make([]pagetable.Event, 8)); n != 0 || err != nil {
			t.Fatalf("%d events, %v; want none", n, err)
		}
		now := posted.Load()
		if now-before > 4*area.FaultSlots { // a poll may go twice round the ring
			t.Fatalf("one poll has taken some %d faults", now-before)
		}
		before = now
	}
}

// strangeArea attaches a program whose area, which it returns, nobody tends.
func strangeArea(t *testing.T, s *pagetable.Sigsegv, proc pagetable.ProcID) []byte {
	t.Helper()
	size := int(area.Size(s.Pages()))
	file, err := unix.MemfdCreate("pagetable-test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	area.Create(mem, s.Pages(), uint64(s.PageBytes()))
	events, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(events)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(pair[1]) })
	if err := unix.Sendmsg(pair[1], []byte{area.Version}, unix.UnixRights(file, events), nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(proc, pair[0], 0); err != nil {
		t.Fatal(err)
	}
	return mem
}

// TestTrapOfOtherDescriptors: the trap of a program brings something else than a memory file and an
// eventfd. What has come is left to who may wait until it is closed.
func TestTrapOfOtherDescriptors(t *testing.T) {
	left := 0
	s, err := pagetable.NewSigsegv(pagetable.Config{Pages: 16, Discard: func(fds ...int) {
		left += len(fds)
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Errorf("descriptor %d: %v", fd, err)
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	other := int(null.Fd())
	events, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(events)
	for name, brings := range map[string][]int{"no memory file": {other, events}, "no eventfd": {other, other}, "too few": {other}} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Sendmsg(pair[1], []byte{area.Version}, unix.UnixRights(brings...), nil, 0); err != nil {
			t.Fatal(err)
		}
		unix.Close(pair[1])
		left = 0
		if err := s.Attach(1, pair[0], 0); err == nil || left != 1+len(brings) {
			t.Errorf("%s: %d descriptors are left to be closed, of %d; the error is %v", name, left, 1+len(brings), err)
		}
	}
	left = 0
	copied, err := unix.Dup(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(1, copied, 0); err == nil || left != 1 {
		t.Errorf("no socket: %d descriptors are left to be closed; the error is %v", left, err)
	}
}

// TestForeignMemory: a program that has something else than the region at its place loses its own
// service, and nobody else's.
func TestForeignMemory(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.Config{Pages: 16})
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
