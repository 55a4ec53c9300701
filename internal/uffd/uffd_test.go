package uffd_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
)

// These tests register memory of their own process and never touch it, so no fault is taken that
// they would have to serve. The tests of package pagetable take faults, in child processes.

var pageBytes = uintptr(os.Getpagesize())

// region is a memfd of some pages, mapped and registered.
type region struct {
	fd   *uffd.FD
	file int
	addr uintptr
}

func newRegion(t *testing.T, pages int) region {
	t.Helper()
	uffdtest.Require(t)
	fd, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	file, err := unix.MemfdCreate("uffd-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	size := uintptr(pages) * pageBytes
	if err := unix.Ftruncate(file, int64(size)); err != nil {
		t.Fatal(err)
	}
	at, err := unix.MmapPtr(file, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		fd.Close()
		unix.MunmapPtr(unsafe.Pointer(at), size)
		unix.Close(file)
	})
	if err := fd.Register(uintptr(at), size); err != nil {
		t.Fatal(err)
	}
	return region{fd, file, uintptr(at)}
}

func (r region) at(page int) uintptr { return r.addr + uintptr(page)*pageBytes }

func (r region) page(t *testing.T, page int) []byte {
	t.Helper()
	b := make([]byte, pageBytes)
	if _, err := unix.Pread(r.file, b, int64(page)*int64(pageBytes)); err != nil {
		t.Fatal(err)
	}
	return b
}

func filled(pages int, v byte) []byte { return bytes.Repeat([]byte{v}, pages*int(pageBytes)) }

// want checks bytes done and errno of an operation that can stop half-way.
func want(t *testing.T, what string, wantPages int, wantErrno unix.Errno) func(int, unix.Errno) {
	return func(n int, errno unix.Errno) {
		t.Helper()
		if n != wantPages*int(pageBytes) || errno != wantErrno {
			t.Errorf("%s: %d bytes, %v; want %d pages, %v", what, n, errno, wantPages, wantErrno)
		}
	}
}

func TestOpen(t *testing.T) {
	best := uffdtest.Require(t)
	for _, mode := range uffd.AllModes {
		fd, err := uffd.Open(mode)
		if err != nil {
			t.Logf("%v: %v", mode, err)
			if mode == best || !errors.Is(err, uffd.ErrUnavailable) {
				t.Errorf("%v: %v", mode, err)
			}
			continue
		}
		defer fd.Close()
		if fd.Mode() != mode || fd.Features()&uffd.Needed != uffd.Needed {
			t.Errorf("asked for %v, got %v with features %v", mode, fd.Mode(), fd.Features())
		}
		if flags, err := unix.FcntlInt(uintptr(fd.Sysfd()), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%v: descriptor flags %#x, %v; want close-on-exec", mode, flags, err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd.Sysfd()), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("%v: file flags %#x, %v; want nonblocking", mode, flags, err)
		}
	}
	fd, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	if fd.Mode() != best {
		t.Errorf("opened by %v although %v works", fd.Mode(), best)
	}
	for _, a := range fd.Failed() {
		if a.Err == nil || a.Remedy == "" {
			t.Errorf("the failed attempt %+v does not say why or what to do", a)
		}
	}
	for range 2 {
		if err := fd.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestOpenErrorSaysWhatToDo(t *testing.T) {
	_, err := uffd.Open(uffd.Mode(99))
	var open *uffd.OpenError
	if !errors.As(err, &open) || len(open.Attempts) != 1 || !errors.Is(err, uffd.ErrUnavailable) || !errors.Is(err, unix.EINVAL) {
		t.Fatalf("Open in a mode that does not exist: %v", err)
	}
	if !strings.Contains(err.Error(), open.Attempts[0].Remedy) {
		t.Errorf("the error %q leaves the remedy out", err)
	}
}

func TestProbe(t *testing.T) {
	best := uffdtest.Require(t)
	r := uffd.Probe()
	if !r.Usable() || len(r.Attempts) != len(uffd.AllModes) || r.Features&uffd.Needed != uffd.Needed {
		t.Errorf("probe says %+v although %v works", r, best)
	}
	if r.ContinueWP == uffd.Unknown {
		t.Errorf("could not tell about CONTINUE write-protected: %v", r.ContinueWPErr)
	}
	if hasUnpopulated := r.Features&uffd.FeatureWPUnpopulated != 0; hasUnpopulated && r.ContinueWP != uffd.Yes {
		t.Errorf("Linux 6.4 brought both WP_UNPOPULATED and CONTINUE write-protected; this kernel says yes and %v", r.ContinueWP)
	}
	for _, a := range r.Attempts {
		if (a.Err == nil) != (a.Remedy == "") {
			t.Errorf("attempt %+v: a remedy is for failures", a)
		}
	}
}

func TestCopy(t *testing.T) {
	r := newRegion(t, 8)
	want(t, "copy two pages", 2, 0)(r.fd.Copy(r.at(2), filled(2, 7), 0))
	if !bytes.Equal(r.page(t, 3), filled(1, 7)) {
		t.Error("the page does not hold what was copied")
	}
	want(t, "copy to a page that is there", 0, unix.EEXIST)(r.fd.Copy(r.at(3), filled(1, 8), 0))
	want(t, "copy four pages of which the third is there", 2, unix.EAGAIN)(r.fd.Copy(r.at(0), filled(4, 9), uffd.WriteProtected))
	want(t, "go on where that stopped", 0, unix.EEXIST)(r.fd.Copy(r.at(2), filled(2, 9), 0))
	if !bytes.Equal(r.page(t, 1), filled(1, 9)) || !bytes.Equal(r.page(t, 2), filled(1, 7)) {
		t.Error("copying half-way left the wrong contents")
	}
	want(t, "copy beyond the registered range", 0, unix.ENOENT)(r.fd.Copy(r.at(64), filled(1, 1), 0))
	want(t, "copy to half a page", 0, unix.EINVAL)(r.fd.Copy(r.at(5)+8, filled(1, 1), 0))
	want(t, "copy a run that ends beyond the registered range", 0, unix.ENOENT)(r.fd.Copy(r.at(5), filled(4, 1), 0))

	long := newRegion(t, 64)
	want(t, "copy more than what bypasses the scheduler", 64, 0)(long.fd.Copy(long.at(0), filled(64, 6), 0))
	if !bytes.Equal(long.page(t, 63), filled(1, 6)) {
		t.Error("the last page of a long copy is wrong")
	}
}

func TestZeroPage(t *testing.T) {
	r := newRegion(t, 4)
	want(t, "two zero pages", 2, 0)(r.fd.ZeroPage(r.at(1), 2*pageBytes, uffd.DontWake))
	want(t, "zero page that is there", 0, unix.EEXIST)(r.fd.ZeroPage(r.at(2), pageBytes, 0))
	want(t, "two zero pages of which the second is there", 1, unix.EAGAIN)(r.fd.ZeroPage(r.at(0), 2*pageBytes, 0))
	want(t, "a write-protected zero page, which the kernel does not have", 0, unix.EINVAL)(r.fd.ZeroPage(r.at(3), pageBytes, uffd.WriteProtected))
}

func TestContinue(t *testing.T) {
	r := newRegion(t, 4)
	want(t, "map a page that is not in the file", 0, unix.EFAULT)(r.fd.Continue(r.at(0), pageBytes, 0))
	if _, err := unix.Pwrite(r.file, filled(2, 5), 0); err != nil {
		t.Fatal(err)
	}
	want(t, "map three pages of which two are in the file", 2, unix.EAGAIN)(r.fd.Continue(r.at(0), 3*pageBytes, uffd.DontWake))
	want(t, "map a page that is mapped", 0, unix.EEXIST)(r.fd.Continue(r.at(1), pageBytes, 0))
}

func TestPoison(t *testing.T) {
	r := newRegion(t, 8)
	if r.fd.Features()&uffd.FeaturePoison == 0 {
		want(t, "poison a page on a kernel that can't", 0, unix.EINVAL)(r.fd.Poison(r.at(0), pageBytes))
		return
	}
	want(t, "poison two pages", 2, 0)(r.fd.Poison(r.at(0), 2*pageBytes))
	want(t, "poison a poisoned page", 0, unix.EEXIST)(r.fd.Poison(r.at(1), 2*pageBytes))
	want(t, "fill a page", 1, 0)(r.fd.Copy(r.at(3), filled(1, 5), uffd.WriteProtected|uffd.DontWake))
	want(t, "poison a page that is mapped", 0, unix.EEXIST)(r.fd.Poison(r.at(3), pageBytes))
	if err := unix.Fallocate(r.file, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 3*int64(pageBytes), int64(pageBytes)); err != nil {
		t.Fatal(err)
	}
	want(t, "poison a page of which the mark of write protection is left", 0, unix.EEXIST)(r.fd.Poison(r.at(3), pageBytes))
	if errno := r.fd.WriteProtect(r.at(3), pageBytes, false, true); errno != 0 {
		t.Fatal(errno)
	}
	want(t, "poison it without the mark", 1, 0)(r.fd.Poison(r.at(3), pageBytes))
	want(t, "fill a poisoned page", 1, 0)(r.fd.Copy(r.at(0), filled(1, 6), uffd.DontWake))
	if got := *(*byte)(pointer(r.at(0))); got != 6 {
		t.Errorf("a page that was poisoned and is filled holds %d", got)
	}
	want(t, "poison what is not registered", 0, unix.ENOENT)(r.fd.Poison(r.at(8), pageBytes))
}

// pointer is an address of a region, which lies outside Go's memory.
func pointer(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

func TestWriteProtectAndWake(t *testing.T) {
	r := newRegion(t, 4)
	for _, c := range []struct{ on, dontWake bool }{{true, false}, {false, true}, {false, false}, {true, true}} {
		if errno := r.fd.WriteProtect(r.at(0), 4*pageBytes, c.on, c.dontWake); errno != 0 {
			t.Errorf("write-protect on=%v dontWake=%v: %v", c.on, c.dontWake, errno)
		}
	}
	if errno := r.fd.WriteProtect(r.at(64), pageBytes, true, false); errno != unix.ENOENT {
		t.Errorf("write-protect beyond the registered range: %v, want ENOENT", errno)
	}
	if errno := r.fd.Wake(r.at(0), 4*pageBytes); errno != 0 {
		t.Errorf("wake: %v", errno)
	}
	if errno := r.fd.Wake(r.at(0)+1, pageBytes); errno != unix.EINVAL {
		t.Errorf("wake of half a page: %v, want EINVAL", errno)
	}
	if errno := r.fd.Unregister(r.at(0), 4*pageBytes); errno != 0 {
		t.Errorf("unregister: %v", errno)
	}
	want(t, "copy into a range that was unregistered", 0, unix.ENOENT)(r.fd.Copy(r.at(0), filled(1, 1), 0))
}

// TestRegisterReadOnly: nothing that is done to a page lets a store through. The pages are present,
// and the first store that goes through ends the test, so that none waits here.
func TestRegisterReadOnly(t *testing.T) {
	r := newRegion(t, 2)
	if err := r.fd.RegisterReadOnly(r.at(0), 2*pageBytes); err != nil {
		t.Fatal(err)
	}
	refused := func(page int, why string) {
		t.Helper()
		if got := *(*byte)(pointer(r.at(page))); got != 5 {
			t.Errorf("a page that is %s holds %d, want 5", why, got)
		}
		if addr := faultOf(func() { *(*byte)(pointer(r.at(page) + 8)) = 6 }); addr != r.at(page)+8 {
			t.Fatalf("a store to %#x in a page that is %s: a fault at %#x", r.at(page)+8, why, addr)
		}
	}
	want(t, "copy a page", 1, 0)(r.fd.Copy(r.at(0), filled(1, 5), 0))
	refused(0, "copied")
	if _, err := unix.Pwrite(r.file, filled(1, 5), int64(pageBytes)); err != nil {
		t.Fatal(err)
	}
	want(t, "map a page of the file", 1, 0)(r.fd.Continue(r.at(1), pageBytes, 0))
	refused(1, "mapped from the file")
	for _, on := range []bool{true, false} {
		if errno := r.fd.WriteProtect(r.at(0), 2*pageBytes, on, false); errno != 0 {
			t.Fatal(errno)
		}
		refused(0, fmt.Sprintf("copied; write protection %v", on))
		refused(1, fmt.Sprintf("mapped; write protection %v", on))
	}
}

// faultOf is the address at which an access faults, or 0.
func faultOf(access func()) (addr uintptr) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault, ok := recover().(interface{ Addr() uintptr }); ok {
			addr = fault.Addr()
		}
	}()
	access()
	return 0
}

func TestRegisterRefuses(t *testing.T) {
	r := newRegion(t, 1)
	private, err := unix.MmapPtr(-1, 0, nil, pageBytes, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.MunmapPtr(unsafe.Pointer(private), pageBytes)
	if err := r.fd.Register(uintptr(private), pageBytes); err == nil {
		t.Error("private anonymous memory, which has no minor faults, was registered")
	}
	if err := r.fd.Register(r.addr+1, pageBytes); !errors.Is(err, unix.EINVAL) {
		t.Errorf("register half a page: %v, want EINVAL", err)
	}
	second, err := uffd.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := second.Register(r.addr, pageBytes); !errors.Is(err, unix.EBUSY) {
		t.Errorf("register a range with a second descriptor: %v, want EBUSY", err)
	}
}

func TestReadFaultsWithoutAny(t *testing.T) {
	r := newRegion(t, 1)
	var b uffd.Buffer
	for _, limit := range []int{-1, 0, 1, 1000} {
		if faults, err := r.fd.ReadFaults(&b, limit); len(faults) != 0 || err != nil {
			t.Errorf("read up to %d faults: %v, %v; want none", limit, faults, err)
		}
	}
	if err := r.fd.SetNonblock(); err != nil {
		t.Error(err)
	}
	closed := uffd.From(-1)
	if _, err := closed.ReadFaults(&b, 1); !errors.Is(err, unix.EBADF) {
		t.Errorf("read a closed descriptor: %v, want EBADF", err)
	}
	if err := closed.SetNonblock(); !errors.Is(err, unix.EBADF) {
		t.Errorf("SetNonblock of a closed descriptor: %v, want EBADF", err)
	}
}
