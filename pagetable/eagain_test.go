package pagetable_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
	"dsmd/internal/uffd/uffdtest"
	"dsmd/pagetable"
)

// flaky is the kernel with answers that it gives only in races, or in older versions. It asks the
// real one for the rest.
type flaky struct {
	pagetable.Traps
	eagain     int  // how many more calls it answers with EAGAIN
	piecemeal  bool // do one page of the operating system, then answer EAGAIN
	noContinue bool // Continue refuses to map write-protected, as before Linux 6.4
	noPoison   bool // Poison is unknown, as before Linux 6.6
	// fails, if there is one, is asked first what to answer
	fails func(c call, length int) unix.Errno

	protected int // calls that have protected something
	closed    bool
}

// call is a call of the kernel that flaky answers.
type call int

const (
	callCopy call = iota
	callZeroPage
	callContinue
	callContinueProtected
	callWriteProtect
	callPoison
)

// always is for flaky.fails.
func always(errno unix.Errno) func(call, int) unix.Errno {
	return func(call, int) unix.Errno { return errno }
}

// answer is of how many bytes a call is to be carried out, and what it then answers if that goes
// well. If they are none the real kernel is not asked.
func (f *flaky) answer(c call, length int) (part int, errno unix.Errno) {
	if f.fails != nil {
		if errno := f.fails(c, length); errno != 0 {
			return 0, errno
		}
	}
	switch osPage := os.Getpagesize(); {
	case f.noPoison && c == callPoison:
		return 0, unix.EINVAL
	case f.eagain > 0:
		f.eagain--
		return 0, unix.EAGAIN
	case f.noContinue && c == callContinueProtected:
		return 0, unix.EINVAL
	case f.piecemeal && length > osPage && c != callZeroPage && c != callWriteProtect:
		return osPage, unix.EAGAIN
	}
	return length, 0
}

func (f *flaky) do(c call, length int, carryOut func(part int) (int, unix.Errno)) (int, unix.Errno) {
	part, errno := f.answer(c, length)
	if part == 0 {
		return 0, errno
	}
	n, real := carryOut(part)
	if real != 0 {
		errno = real
	}
	return n, errno
}

func (f *flaky) Copy(dst uintptr, src []byte, mode uint64) (int, unix.Errno) {
	return f.do(callCopy, len(src), func(part int) (int, unix.Errno) { return f.Traps.Copy(dst, src[:part], mode) })
}

func (f *flaky) ZeroPage(dst, length uintptr, mode uint64) (int, unix.Errno) {
	return f.do(callZeroPage, int(length), func(part int) (int, unix.Errno) { return f.Traps.ZeroPage(dst, uintptr(part), mode) })
}

func (f *flaky) Continue(dst, length uintptr, mode uint64) (int, unix.Errno) {
	c := callContinue
	if mode&uffd.WriteProtected != 0 {
		c = callContinueProtected
	}
	return f.do(c, int(length), func(part int) (int, unix.Errno) { return f.Traps.Continue(dst, uintptr(part), mode) })
}

func (f *flaky) Poison(dst, length uintptr) (int, unix.Errno) {
	return f.do(callPoison, int(length), func(part int) (int, unix.Errno) { return f.Traps.Poison(dst, uintptr(part)) })
}

func (f *flaky) WriteProtect(addr, length uintptr, on, dontWake bool) unix.Errno {
	_, errno := f.do(callWriteProtect, int(length), func(int) (int, unix.Errno) {
		if on {
			f.protected++
		}
		return 0, f.Traps.WriteProtect(addr, length, on, dontWake)
	})
	return errno
}

func (f *flaky) Close() error {
	f.closed = true
	return f.Traps.Close()
}

// setKernel makes k the kernel of a program.
func (b lab) setKernel(id pagetable.ProcID, k *flaky) {
	b.u.WrapTraps(id, func(real pagetable.Traps) pagetable.Traps { k.Traps = real; return k })
}

// flakyFixture starts programs whose kernel is what set makes of it.
func flakyFixture(t testing.TB, cfg pagetable.Config, set flaky) Fixture {
	uffdtest.Require(t)
	fx := fixtureOf(t, cfg)
	start := fx.Start
	fx.Start = func(t testing.TB, proc pagetable.ProcID) Program {
		p := start(t, proc)
		fx.Table.(*pagetable.Uffd).WrapTraps(proc, func(real pagetable.Traps) pagetable.Traps {
			f := set
			f.Traps = real
			return &f
		})
		return p
	}
	return fx
}

// TestUffdConformsWhilePiecemeal: with pages of several of the operating system's, every copy and
// mapping stops half-way.
func TestUffdConformsWhilePiecemeal(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return flakyFixture(t, pagetable.Config{Pages: RegionPages, PageBytes: 4 * os.Getpagesize()}, flaky{piecemeal: true})
	})
}

// TestUffdConformsWithoutContinueWP: the back end of a kernel before 6.4.
func TestUffdConformsWithoutContinueWP(t *testing.T) {
	notInShort(t)
	runSuite(t, func(t testing.TB) Fixture {
		return flakyFixture(t, pagetable.Config{Pages: RegionPages}, flaky{noContinue: true})
	})
}

// TestUffdConformsWithEagain: every program's first ioctls are refused, often enough to make
// operations pending.
func TestUffdConformsWithEagain(t *testing.T) {
	runSuite(t, func(t testing.TB) Fixture {
		return flakyFixture(t, pagetable.Config{Pages: RegionPages}, flaky{eagain: 3*pagetable.EagainTries + 1})
	})
}

// TestTrapEagainIsRetried: EAGAIN says that the address space is changing. An operation repeats at
// once, and if that does not help it becomes pending and completes in Poll; it is never dropped,
// and takes effect once.
func TestTrapEagainIsRetried(t *testing.T) {
	for name, eagain := range map[string]int{"AtOnce": pagetable.EagainTries - 1, "Pending": 3 * pagetable.EagainTries} {
		t.Run(name, func(t *testing.T) {
			b := newLab(t)
			p, id := b.start()
			kernel := new(flaky)
			b.setKernel(id, kernel)
			want := pagetable.Done
			if eagain >= pagetable.EagainTries {
				want = pagetable.Pending
			}
			try := func(op pagetable.Op, do func() (pagetable.Outcome, error)) {
				t.Helper()
				kernel.eagain = eagain
				out, err := do()
				if out != want {
					t.Errorf("%v returned %d after %d EAGAINs, want %d", op, out, eagain, want)
				}
				b.Finish(op, 4, out, err)
				if kernel.eagain != 0 || b.u.PendingCount() != 0 {
					t.Errorf("%v is done with %d EAGAINs to go and %d operations pending", op, kernel.eagain, b.u.PendingCount())
				}
			}
			into := make([]byte, b.u.PageBytes())

			load := p.Load(4, 0)
			b.Fault(id, 4, false)
			data := b.Filled(1)
			try(pagetable.OpInstall, func() (pagetable.Outcome, error) {
				out, err := b.u.Install(4, data, false, id)
				clear(data) // it has been read, also if the outcome is Pending
				return out, err
			})
			b.Want(b.Value(load), 1, "the word loaded")

			store := p.Store(4, 0, 2)
			b.Fault(id, 4, true)
			try(pagetable.OpMakeWritable, func() (pagetable.Outcome, error) { return b.u.MakeWritable(4) })
			b.Value(store)
			try(pagetable.OpDowngrade, func() (pagetable.Outcome, error) { return b.u.Downgrade(4) })
			store = p.Store(4, 0, 3)
			b.Fault(id, 4, true)
			b.StillWaits(store, "the page was downgraded")
			try(pagetable.OpMap, func() (pagetable.Outcome, error) { return b.u.Map(4, false, id) })
			b.Fault(id, 4, true)
			try(pagetable.OpRevoke, func() (pagetable.Outcome, error) { return b.u.Revoke(4, into) })
			b.Want(Word(into, 0), 2, "the last word")
			b.Fault(id, 4, true)
			try(pagetable.OpInstall, func() (pagetable.Outcome, error) { return b.u.Install(4, nil, true, id) })
			b.Value(store)
			b.Want(Word(b.Read(4), 0), 3, "the word stored at last")
		})
	}
}

// TestPendingIsBounded: when as many operations are pending as may be, the next one is repeated
// until it is done.
func TestPendingIsBounded(t *testing.T) {
	uffdtest.Require(t)
	const pages = pagetable.MaxPending + 1
	fx := fixtureOf(t, pagetable.Config{Pages: pages})
	b := lab{NewRig(t, fx), fx.Table.(*pagetable.Uffd)}
	_, id := b.start()
	kernel := &flaky{eagain: 1 << 30}
	b.setKernel(id, kernel)
	for b.u.PendingCount() < pagetable.MaxPending {
		if out, err := b.u.Downgrade(pagetable.Page(b.u.PendingCount())); out != pagetable.Pending || err != nil {
			t.Fatalf("Downgrade: %d, %v", out, err)
		}
	}
	kernel.eagain = 10 * pagetable.EagainTries
	if out, err := b.u.Downgrade(pages - 1); out != pagetable.Done || err != nil {
		t.Fatalf("Downgrade when %d operations are pending: %d, %v; want it done", pagetable.MaxPending, out, err)
	}
	for done, events := 0, make([]pagetable.Event, 100); done < pagetable.MaxPending; {
		n, err := b.u.Poll(events)
		if err != nil || n == 0 {
			t.Fatalf("after %d completions: %d events, %v", done, n, err)
		}
		for i, ev := range events[:n] {
			if ev.Kind != pagetable.Completed || ev.Page != pagetable.Page(done+i) || ev.Err != nil {
				t.Fatalf("event %+v, want the completion of page %d", ev, done+i)
			}
		}
		done += n
	}
}

// TestOneOperationPerPage: a second operation on a page whose first is pending is a bug of the
// caller.
func TestOneOperationPerPage(t *testing.T) {
	b := newLab(t)
	_, id := b.start()
	b.setKernel(id, &flaky{eagain: 1 << 30})
	b.u.Downgrade(4)
	defer func() {
		if recover() == nil {
			t.Error("the second did not panic")
		}
	}()
	b.u.Downgrade(4)
}

// TestOutOfMemory: what the kernel says when memory runs out reaches the caller as ErrNoMemory.
func TestOutOfMemory(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOMEM, unix.ENOSPC} {
		b := newLab(t)
		_, id := b.start()
		b.setKernel(id, &flaky{fails: always(errno)})
		for _, data := range [][]byte{nil, b.Filled(1)} {
			if _, err := b.u.Install(4, data, true, id); !errors.Is(err, pagetable.ErrNoMemory) || !errors.Is(err, errno) {
				t.Errorf("Install: %v, want ErrNoMemory and %v", err, errno)
			}
		}
	}
}

// TestOldKernelMappingRests: before Linux 6.4 a page that is read-only can be mapped in one program
// only by taking it from the others. A program that has just got it keeps it for long enough to
// make the access that it waits for. Else two of them could take it from each other for ever,
// without an access in between.
func TestOldKernelMappingRests(t *testing.T) {
	fx := flakyFixture(t, pagetable.Config{Pages: RegionPages}, flaky{noContinue: true})
	b := lab{NewRig(t, fx), fx.Table.(*pagetable.Uffd)}
	p, pid := b.start()
	q, qid := b.start()
	p.stop(t) // it does not run when it gets the page
	q.stop(t)
	b.Install(4, b.Filled(7), false, pagetable.AllProcs)
	// Each takes it from the other as soon as its rest is over. It must have rested once at least;
	// that it did each time cannot be seen, for this test may itself be without a processor for
	// that long.
	rested := false
	for round := range 20 {
		out, err := b.u.Map(4, false, []pagetable.ProcID{pid, qid}[round%2])
		rested = rested || out == pagetable.Pending
		b.Finish(pagetable.OpMap, 4, out, err)
	}
	if !rested {
		t.Error("the page was taken at once each time from a program that has had no time to use it")
	}
	p.resume(t)
	q.resume(t)
	b.Want(b.Value(p.Load(4, 0)), 7, "the word in the first program")
	b.Want(b.Value(q.Load(4, 0)), 7, "the word in the second program")
}

// TestOldKernelProgramsProgress: two programs, which run all the time, read the same few pages on a
// kernel before 6.4, and both come to an end.
func TestOldKernelProgramsProgress(t *testing.T) {
	const pages, rounds = 2, 50
	fx := flakyFixture(t, pagetable.Config{Pages: RegionPages}, flaky{noContinue: true})
	r := NewRig(t, fx)
	var programs []*testProgram
	for range 2 {
		p, _ := r.Start()
		programs = append(programs, p.(*testProgram))
	}
	for page := range pagetable.Page(pages) {
		r.Install(page, r.Filled(7), false, pagetable.AllProcs)
	}
	for range rounds {
		var scans []*Access
		for _, p := range programs {
			scans = append(scans, p.order(cmdScan, 0, 0, pages), p.order(cmdScan, 0, 0, pages))
		}
		for _, scan := range scans {
			r.Value(scan)
		}
	}
}
