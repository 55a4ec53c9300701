package pagetabletest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
	"dsmd/pagetable"
)

// ErrLost is how an access ends that met a page which is lost: where there is hardware, by a memory
// fault at its address, from which the program has recovered.
var ErrLost = errors.New("pagetabletest: the page is lost")

// FakeConfig configures NewFake.
type FakeConfig struct {
	// Pages is the size of the region.
	Pages uint64
	// PageBytes is the size of a page, a multiple of 8; 0 is 4096.
	PageBytes int
	// Async makes every operation return Pending: it takes effect in the next Poll, which reports
	// Completed.
	Async bool
}

// Fake is a Table in memory. Programs are simulated: a test attaches one with fd -1 and calls Load,
// Store and Access for it from any goroutine; they block as a thread does that takes a page fault,
// until the table's user settles the fault.
//
// Load, Store, Access, Restart, Remap, Kill and Attached may be called by any goroutine. The
// methods of Table belong to one, as always.
type Fake struct {
	cfg   FakeConfig
	memFD int
	ready *netio.Event // while events is not empty

	mu      sync.Mutex
	settled sync.Cond // some waiting access was woken; guarded by mu
	closed  bool
	pages   map[pagetable.Page]*fakePage
	lost    map[pagetable.Page]bool // of the absent pages
	procs   map[pagetable.ProcID]*fakeProc
	waits   []*fakeWait // accesses that wait, in order of arrival
	// events: not yet polled; at most one fault for each wait and restart, one completion for each
	// operation.
	events  []pagetable.Event
	pending []func() pagetable.Event
	threads uint32
}

// fakePage is a page that is present.
type fakePage struct {
	bytes    []byte
	writable bool
	mapped   map[pagetable.ProcID]bool
}

type fakeProc struct {
	gone bool
	told bool // ProcGone was reported
}

// fakeWait is an access that waits for its fault to be settled.
type fakeWait struct {
	proc   pagetable.ProcID
	page   pagetable.Page
	off    int
	write  bool
	thread uint32
	woken  bool
}

var _ pagetable.Table = (*Fake)(nil)

// NewFake makes a fake table with all pages absent. It panics if the machine has no descriptors
// left.
func NewFake(cfg FakeConfig) *Fake {
	if cfg.PageBytes == 0 {
		cfg.PageBytes = 4096
	}
	f := &Fake{cfg: cfg, pages: make(map[pagetable.Page]*fakePage), lost: make(map[pagetable.Page]bool), procs: make(map[pagetable.ProcID]*fakeProc)}
	f.settled.L = &f.mu
	var err error
	if f.ready, err = netio.NewEvent(); err != nil {
		panic(fmt.Sprintf("pagetabletest: %v", err))
	}
	// Nothing is ever in this file; it is there to be passed to programs that never look.
	if f.memFD, err = unix.MemfdCreate("pagetabletest", unix.MFD_CLOEXEC); err != nil {
		panic(fmt.Sprintf("pagetabletest: memfd_create: %v", err))
	}
	return f
}

// PageBytes is the size of a page.
func (f *Fake) PageBytes() int { return f.cfg.PageBytes }

// Pages is the number of pages in the region.
func (f *Fake) Pages() uint64 { return f.cfg.Pages }

// WaitFD is readable while Poll has something to report.
func (f *Fake) WaitFD() int { return f.ready.FD() }

// MemFD is a descriptor of an empty file.
func (f *Fake) MemFD() int { return f.memFD }

// Attach adds a simulated program. fd is closed if it is not negative; base is ignored.
func (f *Fake) Attach(proc pagetable.ProcID, fd int, _ uintptr) error {
	if fd >= 0 {
		unix.Close(fd)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return pagetable.ErrClosed
	}
	if _, taken := f.procs[proc]; taken || proc == pagetable.AllProcs {
		return fmt.Errorf("%w: %d", pagetable.ErrAttached, proc)
	}
	f.procs[proc] = &fakeProc{}
	return nil
}

// Attached lists the programs that are attached, in ascending order. Any goroutine may call it:
// tests of the code that attaches programs learn from it what their numbers are.
func (f *Fake) Attached() []pagetable.ProcID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.procs))
}

// Detach forgets a program. Its accesses end with ErrProcGone.
func (f *Fake) Detach(proc pagetable.ProcID, _ bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(proc)
	delete(f.procs, proc)
}

// Kill ends a program as SIGKILL does: its accesses end with ErrProcGone, and the table reports
// ProcGone once an operation notices.
func (f *Fake) Kill(proc pagetable.ProcID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endLocked(proc)
}

// endLocked marks a program gone, drops its mappings and its faults that were not polled, and ends
// its accesses.
func (f *Fake) endLocked(proc pagetable.ProcID) {
	if p := f.procs[proc]; p != nil {
		p.gone = true
	}
	for _, pg := range f.pages {
		delete(pg.mapped, proc)
	}
	kept := f.events[:0]
	for _, ev := range f.events {
		if ev.Proc != proc || ev.Kind == pagetable.Completed {
			kept = append(kept, ev)
		}
	}
	f.events = kept
	f.signalLocked()
	for _, w := range f.waits {
		if w.proc == proc {
			w.woken = true
		}
	}
	f.settled.Broadcast()
}

// Poll fills events with what has happened; it never blocks.
func (f *Fake) Poll(events []pagetable.Event) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return 0, pagetable.ErrClosed
	}
	for len(f.pending) > 0 {
		done := f.pending[0]
		f.pending = f.pending[1:]
		f.events = append(f.events, done())
	}
	n := copy(events, f.events)
	f.events = append(f.events[:0], f.events[n:]...)
	f.signalLocked()
	return n, nil
}

// signalLocked makes WaitFD readable exactly if there is something to poll.
func (f *Fake) signalLocked() {
	if f.closed {
		return
	}
	if len(f.events)+len(f.pending) == 0 {
		f.ready.Clear()
	} else {
		f.ready.Signal()
	}
}

func (f *Fake) postLocked(ev pagetable.Event) {
	f.events = append(f.events, ev)
	f.signalLocked()
}

// Load copies len(into) bytes at byte offset off of page p, in program proc. It blocks until the
// page is there, and returns ErrProcGone if the program ends first, and ErrLost if the page is
// lost.
func (f *Fake) Load(proc pagetable.ProcID, p pagetable.Page, off int, into []byte) error {
	return f.access(fakeWait{proc: proc, page: p, off: off, thread: f.newThread()}, func(page []byte) { copy(into, page[off:off+len(into)]) })
}

// Store is Load in the other direction.
func (f *Fake) Store(proc pagetable.ProcID, p pagetable.Page, off int, data []byte) error {
	return f.access(fakeWait{proc: proc, page: p, off: off, write: true, thread: f.newThread()}, func(page []byte) { copy(page[off:off+len(data)], data) })
}

// Access calls do with the contents of page p as soon as program proc may load from it, or, with
// write, store to it: one indivisible access, so that do can also be an atomic read-modify-write.
// do must not call the Fake. Each call is a thread of its own.
func (f *Fake) Access(proc pagetable.ProcID, p pagetable.Page, write bool, do func(page []byte)) error {
	return f.AccessBy(f.newThread(), proc, p, write, do)
}

// AccessBy is Access by a thread that the caller names, from 1<<31 up, so that one thread can make
// several accesses.
func (f *Fake) AccessBy(thread uint32, proc pagetable.ProcID, p pagetable.Page, write bool, do func(page []byte)) error {
	return f.access(fakeWait{proc: proc, page: p, write: write, thread: thread}, do)
}

func (f *Fake) newThread() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.threads++
	return f.threads
}

// access makes an access, and waits as a thread of a program does.
func (f *Fake) access(w fakeWait, do func(page []byte)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		prog := f.procs[w.proc]
		if f.closed || prog == nil || prog.gone {
			return pagetable.ErrProcGone
		}
		if pg := f.pages[w.page]; pg != nil && pg.mapped[w.proc] && (pg.writable || !w.write) {
			do(pg.bytes)
			return nil
		}
		if f.lost[w.page] {
			return ErrLost
		}
		w.woken = false
		f.waits = append(f.waits, &w)
		f.postLocked(w.fault())
		for !w.woken {
			f.settled.Wait()
		}
		f.unwaitLocked(&w)
	}
}

func (w *fakeWait) fault() pagetable.Event {
	return pagetable.Event{Kind: pagetable.Fault, Proc: w.proc, Page: w.page, Offset: uint32(w.off), Write: w.write, Thread: w.thread}
}

func (f *Fake) unwaitLocked(w *fakeWait) {
	f.waits = slices.DeleteFunc(f.waits, func(one *fakeWait) bool { return one == w })
}

// Restart reports every fault of proc that is not settled once more, as a signal to the waiting
// threads does.
func (f *Fake) Restart(proc pagetable.ProcID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.waits {
		if w.proc == proc && !w.woken {
			f.postLocked(w.fault())
		}
	}
}

// Remap takes all mappings of a program away: its next access to each page is reported as a fault.
func (f *Fake) Remap(proc pagetable.ProcID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, pg := range f.pages {
		delete(pg.mapped, proc)
	}
}

// run performs an operation now, or in the next Poll if the fake is asynchronous.
func (f *Fake) run(op pagetable.Op, p pagetable.Page, do func()) (pagetable.Outcome, error) {
	if uint64(p) >= f.cfg.Pages {
		panic(fmt.Sprintf("pagetabletest: %v of page %d of a region of %d pages", op, p, f.cfg.Pages))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return pagetable.Done, pagetable.ErrClosed
	}
	if !f.cfg.Async {
		do()
		return pagetable.Done, nil
	}
	f.pending = append(f.pending, func() pagetable.Event {
		do()
		return pagetable.Event{Kind: pagetable.Completed, Op: op, Page: p}
	})
	f.signalLocked()
	return pagetable.Pending, nil
}

// wakeLocked wakes the accesses that wait for a page, of one program or of all.
func (f *Fake) wakeLocked(p pagetable.Page, proc pagetable.ProcID) {
	for _, w := range f.waits {
		if w.page == p && (proc == pagetable.AllProcs || w.proc == proc) {
			w.woken = true
		}
	}
	f.settled.Broadcast()
}

// noticeLocked reports programs whose end an operation comes across, once.
func (f *Fake) noticeLocked() {
	for _, id := range slices.Sorted(maps.Keys(f.procs)) { // sorted, so that a test's run repeats
		if pr := f.procs[id]; pr.gone && !pr.told {
			pr.told = true
			f.postLocked(pagetable.Event{Kind: pagetable.ProcGone, Proc: id})
		}
	}
}

// Install makes an absent page present. Installing over a present page panics: it is a bug of the
// caller.
func (f *Fake) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	contents := make([]byte, f.cfg.PageBytes)
	if data != nil && copy(contents, data) != len(data) || data != nil && len(data) != len(contents) {
		panic(fmt.Sprintf("pagetabletest: install of page %d with %d bytes; a page has %d", p, len(data), len(contents)))
	}
	return f.run(pagetable.OpInstall, p, func() {
		if f.pages[p] != nil {
			panic(fmt.Sprintf("pagetabletest: install of page %d, which is present", p))
		}
		f.noticeLocked()
		pg := &fakePage{bytes: contents, writable: writable, mapped: make(map[pagetable.ProcID]bool)}
		f.pages[p] = pg
		delete(f.lost, p)
		if f.procs[proc] != nil {
			pg.mapped[proc] = true
		}
		f.wakeLocked(p, pagetable.AllProcs)
	})
}

// MakeWritable makes a present page writable.
func (f *Fake) MakeWritable(p pagetable.Page) (pagetable.Outcome, error) {
	return f.run(pagetable.OpMakeWritable, p, func() {
		f.noticeLocked()
		if pg := f.pages[p]; pg != nil {
			pg.writable = true
		}
		f.wakeLocked(p, pagetable.AllProcs)
	})
}

// Downgrade makes a present page read-only.
func (f *Fake) Downgrade(p pagetable.Page) (pagetable.Outcome, error) {
	return f.run(pagetable.OpDowngrade, p, func() {
		f.noticeLocked()
		if pg := f.pages[p]; pg != nil {
			pg.writable = false
		}
	})
}

// Revoke makes a page absent and returns its last contents.
func (f *Fake) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return f.run(pagetable.OpRevoke, p, func() {
		f.noticeLocked()
		f.readLocked(p, into)
		delete(f.pages, p)
		f.wakeLocked(p, pagetable.AllProcs)
	})
}

// Map maps a present page into a program. A writability other than the page's panics: it is a bug
// of the caller.
func (f *Fake) Map(p pagetable.Page, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	return f.run(pagetable.OpMap, p, func() {
		f.noticeLocked()
		if pg := f.pages[p]; pg != nil && proc != pagetable.AllProcs {
			if pg.writable != writable {
				panic(fmt.Sprintf("pagetabletest: map of page %d writable=%v, which is writable=%v", p, writable, pg.writable))
			}
			if f.procs[proc] != nil {
				pg.mapped[proc] = true
			}
		}
		f.wakeLocked(p, proc)
	})
}

// Operate does an operation on each page of a run.
func (f *Fake) Operate(r *pagetable.Run, outcomes []pagetable.Outcome) error {
	return pagetable.OneByOne(f, r, outcomes)
}

// Read copies pages; absent ones read as zeros.
func (f *Fake) Read(first pagetable.Page, into ...[]byte) error {
	pagetable.CheckRead(first, into, f.cfg.Pages, f.cfg.PageBytes)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return pagetable.ErrClosed
	}
	for i, b := range into {
		f.readLocked(first+pagetable.Page(i), b)
	}
	return nil
}

func (f *Fake) readLocked(p pagetable.Page, into []byte) {
	if pg := f.pages[p]; pg != nil {
		copy(into, pg.bytes)
		return
	}
	clear(into)
}

// Drop makes a run of pages absent.
func (f *Fake) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	if uint64(first) > f.cfg.Pages || count > f.cfg.Pages-uint64(first) {
		panic(fmt.Sprintf("pagetabletest: drop of %d pages from page %d of a region of %d", count, first, f.cfg.Pages))
	}
	if count == 0 && !f.isClosed() {
		return pagetable.Done, nil
	}
	return f.run(pagetable.OpDrop, first, func() {
		for p := range f.pages {
			if p >= first && uint64(p-first) < count {
				delete(f.pages, p)
			}
		}
		for p := range f.lost {
			if p >= first && uint64(p-first) < count {
				delete(f.lost, p)
			}
		}
		for _, w := range f.waits {
			if w.page >= first && uint64(w.page-first) < count {
				w.woken = true
			}
		}
		f.settled.Broadcast()
	})
}

// Lose declares an absent page lost. It panics if the page is present: it is a bug of the caller.
func (f *Fake) Lose(p pagetable.Page) (pagetable.Outcome, error) {
	return f.run(pagetable.OpLose, p, func() {
		if f.pages[p] != nil {
			panic(fmt.Sprintf("pagetabletest: page %d is to be lost, and it is present", p))
		}
		f.noticeLocked()
		f.lost[p] = true
		f.wakeLocked(p, pagetable.AllProcs)
	})
}

func (f *Fake) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// Close ends all programs and drops all pages. A second call does nothing.
func (f *Fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	for id := range f.procs {
		f.endLocked(id)
	}
	f.closed = true
	f.ready.Close()
	unix.Close(f.memFD)
	return nil
}
