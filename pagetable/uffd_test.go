package pagetable_test

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

func TestUffdConforms(t *testing.T) {
	runSuite(t, newFixture)
}

// TestUffdConformsWithLargePages: a page of the table is several of the operating system's, which
// faults and ioctls can settle in part.
func TestUffdConformsWithLargePages(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		uffdtest.Require(t)
		return fixtureOf(t, pagetable.Config{Pages: RegionPages, PageBytes: 4 * os.Getpagesize()})
	})
}

func TestNewUffdRefusesBadSizes(t *testing.T) {
	osPage := os.Getpagesize()
	for name, cfg := range map[string]pagetable.Config{
		"no pages":              {Pages: 0},
		"too large a region":    {Pages: pagetable.MaxRegionBytes/uint64(osPage) + 1},
		"a size that overflows": {Pages: 1 << 63, PageBytes: osPage},
		"half a page":           {Pages: 1, PageBytes: osPage / 2},
		"not a power of two":    {Pages: 1, PageBytes: 3 * osPage},
		"too large a page":      {Pages: 1, PageBytes: 2 * pagetable.MaxPageBytes},
	} {
		if u, err := pagetable.NewUffd(cfg); err == nil {
			u.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestLargestRegionIsSparse: 16 TiB cost no memory until pages are touched, and nothing again when
// they are dropped.
func TestLargestRegionIsSparse(t *testing.T) {
	pages := uint64(pagetable.MaxRegionBytes / os.Getpagesize())
	u, err := pagetable.NewUffd(pagetable.Config{Pages: pages})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	blocks := func() int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Fstat(u.MemFD(), &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	if n := blocks(); n != 0 {
		t.Errorf("an empty region holds %d blocks", n)
	}
	data := make([]byte, u.PageBytes())
	data[0] = 1
	last := pagetable.Page(pages - 1)
	if out, err := u.Install(last, data, true, pagetable.AllProcs); out != pagetable.Done || err != nil {
		t.Fatalf("Install of the last page: %d, %v", out, err)
	}
	into := make([]byte, u.PageBytes())
	if err := u.Read(last, into); err != nil || into[0] != 1 {
		t.Errorf("the last page reads %d, %v", into[0], err)
	}
	if n := blocks(); n != int64(u.PageBytes()/512) {
		t.Errorf("one page holds %d blocks of 512 bytes", n)
	}
	done(t)(u.Drop(0, pages))
	if n := blocks(); n != 0 {
		t.Errorf("a dropped region holds %d blocks", n)
	}
}

// TestProgramsCannotResizeTheFile: a program that shortened it would make the others die of SIGBUS.
func TestProgramsCannotResizeTheFile(t *testing.T) {
	u, err := pagetable.NewUffd(pagetable.Config{Pages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for _, size := range []int64{0, 1 << 20} {
		if err := unix.Ftruncate(u.MemFD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("ftruncate to %d bytes: %v, want EPERM", size, err)
		}
	}
}

// TestProgramsCannotChangeTheDaemonsFile: flags and position belong to an open file, which whoever
// has a descriptor of it can change. With O_APPEND the daemon's writes would go to the end, which
// is sealed.
func TestProgramsCannotChangeTheDaemonsFile(t *testing.T) {
	for name, open := range map[string]func() (pagetable.Table, error){
		"uffd":    func() (pagetable.Table, error) { return pagetable.NewUffd(pagetable.Config{Pages: 8}) },
		"sigsegv": func() (pagetable.Table, error) { return pagetable.NewSigsegv(pagetable.Config{Pages: 8}) },
	} {
		t.Run(name, func(t *testing.T) {
			table, err := open()
			if err != nil {
				t.Fatal(err)
			}
			defer table.Close()
			given, err := unix.Dup(table.MemFD()) // as a program gets it
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(given)
			for _, flags := range []int{unix.O_APPEND, unix.O_NONBLOCK, unix.O_ASYNC, unix.O_DIRECT, unix.O_NOATIME} {
				if _, err := unix.FcntlInt(uintptr(given), unix.F_SETFL, flags); err != nil {
					t.Logf("flags %#o: %v", flags, err)
				}
				page := bytes.Repeat([]byte{byte(flags>>8 | 1)}, table.PageBytes())
				done(t)(table.Install(3, page, true, pagetable.AllProcs))
				into := make([]byte, table.PageBytes())
				if err := table.Read(3, into); err != nil || !bytes.Equal(into, page) {
					t.Errorf("flags %#o: the page reads %d..., %v", flags, into[0], err)
				}
				done(t)(table.Revoke(3, into))
			}
			if _, err := unix.Seek(given, 12345, unix.SEEK_SET); err != nil {
				t.Fatal(err)
			}
			done(t)(table.Lose(3))
			done(t)(table.Install(3, nil, false, pagetable.AllProcs))
		})
	}
}

// TestAttachRefusesOtherDescriptors: programs are separate processes, and may send anything. What
// they have sent is left to who may wait until it is closed.
func TestAttachRefusesOtherDescriptors(t *testing.T) {
	var left []int
	u, err := pagetable.NewUffd(pagetable.Config{Pages: 4, Discard: func(fds ...int) { left = append(left, fds...) }})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Attach(1, fd, 0x10000); err == nil || !strings.Contains(err.Error(), "not a userfaultfd") {
		t.Errorf("Attach of an eventfd: %v", err)
	}
	if !slices.Equal(left, []int{fd}) || unix.Close(fd) != nil {
		t.Errorf("descriptors %d are left to be closed, of %d", left, fd)
	}
	b := newLab(t)
	_, program := startProgram(t, b.u, programOptions{})
	if err := b.u.Attach(1, program, 0x1001); err == nil {
		t.Error("Attach at an address that is no page boundary was accepted")
	}
	_, program = startProgram(t, b.u, programOptions{})
	if err := b.u.Attach(1, program, ^uintptr(0)&^uintptr(u.PageBytes()-1)); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Attach at an address of the kernel: %v, want EINVAL", err)
	}
}

// TestNoAllocationPerOperation: the path of a fault makes no garbage.
func TestNoAllocationPerOperation(t *testing.T) {
	b := newLab(t)
	_, id := b.start()
	data, into := b.Filled(1), make([]byte, b.u.PageBytes())
	events := make([]pagetable.Event, 16)
	step := func(out pagetable.Outcome, err error) {
		if out != pagetable.Done || err != nil {
			t.Fatalf("outcome %d, %v", out, err)
		}
	}
	if n := testing.AllocsPerRun(200, func() {
		step(b.u.Install(4, data, false, id))
		step(b.u.Map(4, false, id))
		step(b.u.MakeWritable(4))
		step(b.u.Downgrade(4))
		step(b.u.Revoke(4, into))
		if err := b.u.Read(4, into); err != nil {
			t.Fatal(err)
		}
		if _, err := b.u.Poll(events); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations in a round of operations, want none", n)
	}
}

// TestOtherEventsThanFaults: a program whose userfaultfd reports something else than faults is
// reported gone, and others are served.
func TestOtherEventsThanFaults(t *testing.T) {
	uffdtest.Require(t)
	b := newLab(t)
	size := RegionPages * os.Getpagesize()
	for proc := pagetable.ProcID(1); proc < 4; proc += 2 { // alone at first, then beside another
		mem, err := unix.Mmap(b.u.MemFD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		fd := uffdtest.OpenWithEvents(t)
		base := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
		if err := fd.Register(base, uintptr(size)); err != nil {
			t.Fatal(err)
		}
		ours, err := unix.Dup(fd.Sysfd())
		if err != nil {
			t.Fatal(err)
		}
		if err := b.u.Attach(proc, ours, base); err != nil {
			t.Fatal(err)
		}
		given := make(chan error, 1)
		go func() { given <- unix.Madvise(mem, unix.MADV_DONTNEED) }()
		awaitReadable(t, b.u.WaitFD(), "memory was given back")
		var events [8]pagetable.Event
		for n := 0; n == 0; {
			if n, err = b.u.Poll(events[:]); err != nil {
				t.Fatal(err)
			}
		}
		if ev := events[0]; ev.Kind != pagetable.ProcGone || ev.Proc != proc || !errors.Is(ev.Err, uffd.ErrNotAFault) {
			t.Errorf("got %+v, want that program %d is gone, and why", ev, proc)
		}
		b.u.Detach(proc, false)
		if err := <-given; err != nil {
			t.Errorf("madvise: %v", err)
		}
		fd.Close()
		p := attachProgram(t, b.u, proc+1, programOptions{})
		load := p.Load(pagetable.Page(proc), 0)
		b.Fault(proc+1, pagetable.Page(proc), false)
		b.Install(pagetable.Page(proc), b.Filled(7), false, proc+1)
		b.Want(b.Value(load), 7, "what was installed for the program that behaves")
	}
}
