package pagetable_test

// One test for each known trap of userfaultfd; docs/kernel.md explains them and names these tests.

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

// lab is a table with the rig that drives it and ways to get at the kernel beneath.
type lab struct {
	*Rig
	u *pagetable.Uffd
}

func newLab(t testing.TB) lab {
	fx := newFixture(t)
	return lab{NewRig(t, fx), fx.Table.(*pagetable.Uffd)}
}

func (b lab) start() (*testProgram, pagetable.ProcID) {
	p, id := b.Start()
	return p.(*testProgram), id
}

// asleep checks that a thread which waits is not woken by what was just done: that its fault is not
// reported again for a while, and its access does not end. A thread that was woken would do one of
// the two within microseconds. The program must be one that is not preempted, because Go's signal
// would restart the fault.
func (b lab) asleep(a *Access, why string) {
	b.Helper()
	if waitReadable(b, b.u.WaitFD(), 30*time.Millisecond) {
		b.Fatalf("a fault was reported although %s", why)
	}
	b.StillWaits(a, why)
}

// TestTrapSignalRestartsFault: a signal makes the faulting instruction start over, and its fault is
// reported again. The answer to the second report finds the page present, and must neither fail nor
// change it.
func TestTrapSignalRestartsFault(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	load := p.Load(4, 0)
	first := b.Fault(id, 4, false)
	p.Restart()
	second := b.Fault(id, 4, false)
	if first.Thread != second.Thread || first.Thread == 0 {
		t.Errorf("reported by threads %d and %d, want the same thread twice", first.Thread, second.Thread)
	}
	b.Install(4, b.Filled(1), true, id) // answers the first report
	b.Want(b.Value(load), 1, "the word loaded")
	b.Value(p.Store(4, 0, 2))
	b.Map(4, id) // answers the second
	b.Want(b.Value(p.Load(4, 0)), 2, "the word after the answer to a repeated fault")
}

// TestTrapExistsDoesNotWake: when COPY or CONTINUE find the page there they return EEXIST, and the
// threads that wait for it sleep on until somebody calls WAKE.
func TestTrapExistsDoesNotWake(t *testing.T) {
	b := newLab(t)
	const id = 1
	// no signal must restart what sleeps
	p := attachProgram(t, b.u, id, programOptions{unpreempted: true})
	fd, at := b.u.FDOf(id), b.u.AddrOf(id, 4)

	load := p.Load(4, 0)
	b.Fault(id, 4, false)
	if err := b.u.PutBehindItsBack(4, b.Filled(9)); err != nil {
		t.Fatal(err)
	}
	if n, errno := fd.Copy(at, b.Filled(1), 0); n != 0 || errno != unix.EEXIST {
		t.Fatalf("COPY to a page that is in the file: %d bytes, %v; want EEXIST", n, errno)
	}
	b.asleep(load, "COPY returned EEXIST")
	b.Install(4, b.Filled(1), false, id)
	b.Want(b.Value(load), 1, "the word installed over what appeared by itself")

	load = p.Load(5, 0)
	b.Fault(id, 5, false)
	if err := b.u.PutBehindItsBack(5, b.Filled(2)); err != nil {
		t.Fatal(err)
	}
	size := uintptr(b.u.PageBytes())
	if _, errno := fd.Continue(b.u.AddrOf(id, 5), size, uffd.DontWake); errno != 0 {
		t.Fatalf("CONTINUE: %v", errno)
	}
	if _, errno := fd.Continue(b.u.AddrOf(id, 5), size, 0); errno != unix.EEXIST {
		t.Fatalf("CONTINUE of a mapped page: %v, want EEXIST", errno)
	}
	b.asleep(load, "CONTINUE returned EEXIST")
	out, err := b.u.Map(5, true, id)
	b.Finish(pagetable.OpMap, 5, out, err)
	b.Want(b.Value(load), 2, "the word loaded")
}

// TestTrapInstallOverZeroesOfAFailedSplit: if the kernel can't split a huge page it is punched out
// of, it leaves zeros in the file. Installing must not take those for the page, whatever is asked
// for and whoever waits.
func TestTrapInstallOverZeroesOfAFailedSplit(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	for i, writable := range []bool{false, true} {
		page := pagetable.Page(4 + i)
		if err := b.u.PutBehindItsBack(page, b.Filled(0)); err != nil {
			t.Fatal(err)
		}
		load := p.Load(page, 0)
		b.Fault(id, page, false)
		b.Install(page, b.Filled(3), writable, id)
		b.Want(b.Value(load), 3, "the word loaded")
		store := p.Store(page, 0, 4)
		if !writable {
			b.Fault(id, page, true)
			b.StillWaits(store, "the page is read-only")
			b.MakeWritable(page)
		}
		b.Value(store)
		b.Want(Word(b.Read(page), 0), 4, "the word stored")
	}
}

// TestTrapWriteProtectEventAfterPunch: a thread that stores to a read-only page waits with a
// write-protect event; the page is punched before anybody reads that. The event still comes, with
// stale flags, and is answered from what the page is now.
func TestTrapWriteProtectEventAfterPunch(t *testing.T) {
	b := newLab(t)
	const id = 1
	// a restarted fault would be a fresh one
	p := attachProgram(t, b.u, id, programOptions{unpreempted: true})
	b.Value(b.Installed(p, id, 4, 1, false))
	store := p.Store(4, 0, 2)
	awaitReadable(t, b.u.WaitFD(), "a thread faulted")
	size := int64(b.u.PageBytes())
	if err := unix.Fallocate(b.u.MemFD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4*size, size); err != nil {
		t.Fatal(err)
	}
	var buf uffd.Buffer
	faults, err := b.u.FDOf(id).ReadFaults(&buf, 1)
	if err != nil || len(faults) != 1 || !faults[0].Protected {
		t.Fatalf("read %+v, %v; want one write-protect fault, although the page is gone", faults, err)
	}
	b.Install(4, b.Filled(3), true, id)
	b.Value(store)
	page := b.Read(4)
	b.Want(Word(page, 0), 2, "the word stored")
	b.Want(Word(page, 8), 3, "the word beside it")
}

// TestTrapWriteProtectUnpopulated: write-protecting a page that a program has not mapped leaves,
// for the pages of a file, a mark in the page table, which the next COPY or CONTINUE overrides. So
// protection is chosen anew at every mapping and never relied upon to last.
func TestTrapWriteProtectUnpopulated(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	b.Install(4, b.Filled(1), true, pagetable.AllProcs) // present, mapped nowhere
	b.Downgrade(4)
	load := p.Load(4, 0)
	b.Fault(id, 4, false)
	b.Map(4, id)
	b.Want(b.Value(load), 1, "the word loaded")
	store := p.Store(4, 0, 2)
	b.Fault(id, 4, true)
	b.StillWaits(store, "the page was downgraded before it was mapped")

	if errno := b.u.FDOf(id).WriteProtect(b.u.AddrOf(id, 5), uintptr(b.u.PageBytes()), true, false); errno != 0 {
		t.Fatalf("write-protect an absent page: %v", errno)
	}
	b.Value(b.Installed(p, id, 5, 1, true))
	b.Value(p.Store(5, 0, 2)) // no fault: the old mark does not outlive the mapping
	b.Want(Word(b.Read(5), 0), 2, "the word stored")
}

// TestTrapMinorFaultInSecondProgram: a page that is in the file but not mapped in this program
// gives a MINOR event, and CONTINUE maps it, read-only in one step.
func TestTrapMinorFaultInSecondProgram(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	const qid = 2
	// a restarted fault would be gone for a moment
	q := attachProgram(t, b.u, qid, programOptions{unpreempted: true})
	b.Value(b.Installed(p, pid, 4, 1, false))
	load := q.Load(4, 0)
	awaitReadable(t, b.u.WaitFD(), "a thread faulted")
	var buf uffd.Buffer
	faults, err := b.u.FDOf(qid).ReadFaults(&buf, 1)
	if err != nil || len(faults) != 1 || !faults[0].Minor || faults[0].Protected {
		t.Fatalf("read %+v, %v; want one minor fault", faults, err)
	}
	b.Map(4, qid)
	b.Want(b.Value(load), 1, "the word loaded")
	store := q.Store(4, 0, 2)
	b.Fault(qid, 4, true)
	b.StillWaits(store, "the page is read-only")
}

// TestTrapFaultInsideSystemCall: write(2) from a page that is absent, read(2) into one, and
// MADV_POPULATE wait for the page only if the descriptor may trap faults of the kernel; opened for
// user-mode faults only, they fail with EFAULT. There a program has to touch the pages itself
// before the call.
func TestTrapFaultInsideSystemCall(t *testing.T) {
	best := uffdtest.Require(t)
	modes := []uffd.Mode{uffd.ModeUserOnly}
	if best.KernelFaults() {
		modes = append(modes, best)
	}
	calls := map[string]struct {
		command command
		value   uint64
		write   bool
	}{
		"write":                {cmdWriteCall, 0, false},
		"read":                 {cmdReadCall, 7, true},
		"MADV_POPULATE_READ":   {cmdPopulate, 0, false},
		"MADV_POPULATE_WRITE":  {cmdPopulate, 1, true},
		"write of a page here": {cmdWriteCall, 0, false},
	}
	for _, mode := range modes {
		for name, call := range calls {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				fx := newFixture(t)
				u := fx.Table.(*pagetable.Uffd)
				b := lab{NewRig(t, fx), u}
				p := attachProgram(t, u, 1, programOptions{mode: mode})
				if name == "write of a page here" {
					b.Value(b.Installed(p, 1, 4, 5, false)) // touched by an ordinary load
					b.Want(b.Value(p.order(call.command, 4, 8, 0)), 5, "the word that write(2) took")
					return
				}
				a := p.order(call.command, 4, 0, call.value)
				if !mode.KernelFaults() {
					if _, err := b.Result(a); !errors.Is(err, unix.EFAULT) {
						t.Fatalf("%s with user-mode faults only: %v, want EFAULT", name, err)
					}
					return
				}
				b.Fault(1, 4, call.write)
				b.Install(4, b.Filled(5), call.write, 1)
				v := b.Value(a)
				switch call.command {
				case cmdWriteCall:
					b.Want(v, 5, "the word that write(2) took")
				case cmdReadCall:
					b.Want(Word(b.Read(4), 0), 7, "the word that read(2) left")
				}
			})
		}
	}
}

// TestTrapCollectorWaitsForFault: a goroutine that waits for a page can't be stopped, so a garbage
// collection of its program waits too. It must end as soon as somebody outside settles the fault;
// somebody inside would be stopped by the collector.
func TestTrapCollectorWaitsForFault(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	load := p.Load(4, 0)
	b.Fault(id, 4, false)
	collection := p.order(cmdGarbage, 0, 0, 0)
	// the collector tries to preempt the thread by a signal, which restarts the fault
	b.Fault(id, 4, false)
	b.StillWaits(collection, "a goroutine waits for a page and can't be stopped")
	b.Install(4, b.Filled(1), false, id)
	b.Want(b.Value(load), 1, "the word loaded")
	b.Value(collection)
}

// TestTrapForkedProcess: a forked process would share the mapping without its traps, so the mapping
// must not be inherited. MADV_DONTFORK sees to that.
func TestTrapForkedProcess(t *testing.T) {
	b := newLab(t)
	p, _ := b.start()
	b.Want(b.Value(p.order(cmdFork, 0, 0, 0)), uint64(unix.ENOMEM), "what the forked process gets for the address (an errno)")
}

// TestTrapCollapseFillsNoHoles: a program may ask the kernel to join shared pages to huge ones
// (MADV_COLLAPSE). The kernel fills absent pages for that, but not where somebody has registered
// for those.
func TestTrapCollapseFillsNoHoles(t *testing.T) {
	uffdtest.Require(t)
	const huge = 2 << 20
	osPage := os.Getpagesize()
	pages := pagetable.Page(huge / osPage)
	u, err := pagetable.NewUffd(pagetable.Config{Pages: uint64(pages)})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	room, err := unix.Mmap(-1, 0, 2*huge, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(room)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(room))) % huge
	mem := room[skip:][:huge]
	if _, err := unix.MmapPtr(u.MemFD(), 0, unsafe.Pointer(unsafe.SliceData(mem)), huge, unix.PROT_NONE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
		t.Fatal(err)
	}
	fd := strange(t, u, 1, mem)
	if err := fd.Register(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), huge); err != nil {
		t.Fatal(err)
	}
	page := bytes.Repeat([]byte{7}, osPage)
	absent := pages - 1
	for p := range absent {
		done(t)(u.Install(p, page, true, 1))
	}
	if err := unix.Madvise(mem, unix.MADV_COLLAPSE); err == nil {
		t.Error("the kernel has joined pages of which one is absent")
	}
	if u.InFile(absent) {
		t.Fatal("the kernel has filled an absent page")
	}
}

// TestTrapProgramDiesWaiting: SIGKILL ends a program with a thread that waits. Nobody is told by
// the descriptor; operations on it return ESRCH from then on. Pages stay, and other programs don't
// notice.
func TestTrapProgramDiesWaiting(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	q, _ := b.start()
	b.Value(b.Installed(p, pid, 4, 1, true))
	b.Value(p.Store(4, 0, 2))
	p.Load(5, 0)
	b.Fault(pid, 5, false)
	p.Kill()
	if errno := b.u.FDOf(pid).WriteProtect(b.u.AddrOf(pid, 4), uintptr(b.u.PageBytes()), true, false); errno != unix.ESRCH {
		t.Fatalf("write-protect in a dead program: %v, want ESRCH", errno)
	}
	b.Want(Word(b.Read(4), 0), 2, "the dead program's word")
	b.Install(5, b.Filled(3), true, pid)
	awaitReadable(t, b.u.WaitFD(), "the end of the program is an event")
	var events [4]pagetable.Event
	n, err := b.u.Poll(events[:])
	if err != nil || n != 1 || events[0].Kind != pagetable.ProcGone || events[0].Proc != pid {
		t.Fatalf("polled %+v, %v; want the end of program %d", events[:n], err, pid)
	}
	b.Want(b.Value(q.Load(4, 0)), 2, "the dead program's word, in another")
	b.Want(b.Value(q.Load(5, 0)), 3, "the page that the dead program waited for")
	b.Want(Word(b.Revoke(4), 0), 2, "the dead program's word, revoked")
}

// TestDetachBeforeTheEndIsReported: a program that is detached before its end was reported leaves
// nothing to report, or the reactor would never sleep again.
func TestDetachBeforeTheEndIsReported(t *testing.T) {
	b := newLab(t)
	p, pid := b.start()
	b.Value(b.Installed(p, pid, 4, 1, true))
	p.Kill()
	b.Install(5, b.Filled(3), true, pid) // finds the end
	awaitReadable(t, b.u.WaitFD(), "the end of the program is an event")
	b.u.Detach(pid, false)
	if waitReadable(t, b.u.WaitFD(), 0) {
		t.Error("WaitFD is readable without anything to report")
	}
}

// TestTrapAttachOfDeadProgram: a program can die between sending its descriptor and being attached.
func TestTrapAttachOfDeadProgram(t *testing.T) {
	b := newLab(t)
	p, fd := startProgram(t, b.u, programOptions{})
	p.Kill()
	if err := b.u.Attach(1, fd, p.base); !errors.Is(err, pagetable.ErrProcGone) {
		t.Fatalf("Attach: %v, want ErrProcGone", err)
	}
}

// TestTrapRangeNotRegistered: until a program has mapped and registered a part of the region,
// operations on it return ENOENT. What is installed meanwhile waits in the file.
func TestTrapRangeNotRegistered(t *testing.T) {
	b := newLab(t)
	p := attachProgram(t, b.u, 1, programOptions{unregistered: true})
	b.Install(4, b.Filled(1), true, 1)
	b.Downgrade(4)
	b.Map(4, 1)
	b.Value(p.order(cmdRegister, 0, 0, RegionPages))
	load := p.Load(4, 0)
	b.Fault(1, 4, false)
	b.Map(4, 1)
	b.Want(b.Value(load), 1, "the word installed before the program had mapped the page")
	store := p.Store(4, 0, 2)
	b.Fault(1, 4, true)
	b.StillWaits(store, "the page was downgraded")
}

// TestTrapFaultOutsideRegion: a program that registers memory beside the region would wait there
// for ever. Such a page is handed back to the kernel.
func TestTrapFaultOutsideRegion(t *testing.T) {
	uffdtest.Require(t)
	u, err := pagetable.NewUffd(pagetable.Config{Pages: RegionPages})
	if err != nil {
		t.Fatal(err)
	}
	b := lab{NewRig(t, Fixture{Table: u}), u}
	p, fd := startProgram(t, u, programOptions{})
	if err := u.Attach(1, fd, p.base+uintptr(u.PageBytes())); err != nil {
		// so that its first page lies before the region
		t.Fatal(err)
	}
	load := p.Load(0, 0)
	awaitReadable(t, u.FDOf(1).Sysfd(), "a thread faulted")
	var events [4]pagetable.Event
	if n, err := u.Poll(events[:]); n != 0 || err != nil {
		t.Errorf("a fault outside of the region is reported: %+v, %v", events[:n], err)
	}
	b.Want(b.Value(load), 0, "the word outside the region")
}
