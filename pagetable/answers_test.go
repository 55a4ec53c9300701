package pagetable_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/pagetable"
)

// script starts a program with pages 4 to 6 installed whose kernel is s.
func (b lab) script(s *flaky) (*testProgram, pagetable.ProcID) {
	b.Helper()
	p, id := b.start()
	for page := pagetable.Page(4); page < 7; page++ {
		b.Value(b.Installed(p, id, page, 40+uint64(page), true))
	}
	b.setKernel(id, s)
	return p, id
}

// TestRunsThatAreRefused: where the kernel does not protect a run as a whole each page of it is
// protected alone, before it is said to be done or its contents are read.
func TestRunsThatAreRefused(t *testing.T) {
	for _, op := range []pagetable.Op{pagetable.OpDowngrade, pagetable.OpRevoke} {
		b := newLab(t)
		s := &flaky{fails: func(c call, length int) unix.Errno {
			if c == callWriteProtect && length > b.u.PageBytes() {
				return unix.ENOENT
			}
			return 0
		}}
		b.script(s)
		run := pagetable.Run{Op: op, First: 4, Count: 3}
		if op == pagetable.OpRevoke {
			for range 3 {
				run.Into = append(run.Into, make([]byte, b.u.PageBytes()))
			}
		}
		if err := b.u.Operate(&run, make([]pagetable.Outcome, 3)); err != nil || s.protected != 3 {
			t.Errorf("%v of three pages protects %d of them, %v", op, s.protected, err)
		}
		for i, into := range run.Into {
			b.Want(Word(into, 0), 44+uint64(i), "the last word of a page")
		}
	}
}

// TestOldKernelMapsIntoWhatIsGone: before Linux 6.4 a page is mapped read-only by copying it. What
// the program has unmapped meanwhile is no error, and where a page is already it is mapped anew.
func TestOldKernelMapsIntoWhatIsGone(t *testing.T) {
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EEXIST} {
		b := newLab(t)
		s := &flaky{noContinue: true}
		b.script(s)
		q, qid := b.start()
		b.setKernel(qid, s)
		b.Downgrade(5)
		load := q.Load(5, 0)
		b.Fault(qid, 5, false)
		s.fails = func(c call, _ int) unix.Errno {
			if c != callCopy {
				return 0
			}
			s.fails = nil // once
			return errno
		}
		out, err := b.u.Map(5, false, qid)
		b.Finish(pagetable.OpMap, 5, out, err)
		if errno == unix.ENOENT { // it was there after all: the thread faults again
			b.Fault(qid, 5, false)
			b.Map(5, qid)
		}
		b.Want(b.Value(load), 45, "the word in the other program")
		b.Want(Word(b.Read(5), 0), 45, "the word in the file")
	}
}

// TestBadMappingIsTheProgramsFault: a program whose mapping the kernel refuses is given up, and the
// operation is done for all others.
func TestBadMappingIsTheProgramsFault(t *testing.T) {
	b := newLab(t)
	s := &flaky{fails: func(c call, _ int) unix.Errno {
		if c == callContinue {
			return unix.EIO
		}
		return 0
	}}
	_, id := b.script(s)
	if out, err := b.u.Map(5, true, id); out != pagetable.Done || err != nil {
		t.Errorf("Map: %d, %v", out, err)
	}
	wantGivenUp(t, b.u, id)
}

// TestPendingOperationsTell: an operation that is pending makes the table look at it again, and
// says what has become of it.
func TestPendingOperationsTell(t *testing.T) {
	b := newLab(t)
	_, id := b.start()
	kernel := &flaky{eagain: 1 << 30}
	b.setKernel(id, kernel)
	if out, err := b.u.Downgrade(4); out != pagetable.Pending || err != nil {
		t.Fatalf("Downgrade: %d, %v", out, err)
	}
	awaitReadable(t, b.u.WaitFD(), "somebody must look at what is pending")
	kernel.eagain, kernel.fails = 0, always(unix.ENOMEM)
	var events [1]pagetable.Event
	n, err := b.u.Poll(events[:])
	if n != 1 || err != nil || events[0].Kind != pagetable.Completed || !errors.Is(events[0].Err, pagetable.ErrNoMemory) {
		t.Errorf("%d events, %+v, %v; want that Downgrade fails with ErrNoMemory", n, events[0], err)
	}
}

// TestAttachRefusesHalfPages: the region of a program begins at a page boundary.
func TestAttachRefusesHalfPages(t *testing.T) {
	b := newLab(t)
	p, fd := startProgram(t, b.u, programOptions{})
	if err := b.u.Attach(9, fd, p.base+8); err == nil || !strings.Contains(err.Error(), "not a page boundary") {
		t.Errorf("a region that begins 8 bytes behind a boundary is attached: %v", err)
	}
}

// TestFileFails: what cannot be read or dropped is an error, and not taken for done.
func TestFileFails(t *testing.T) {
	b := newLab(t)
	p, id := b.start()
	b.Value(b.Installed(p, id, 4, 1, true))
	mend := b.u.BreakFile()
	for what, do := range map[string]func() (pagetable.Outcome, error){
		"Lose":                 func() (pagetable.Outcome, error) { return b.u.Lose(4) },
		"Revoke":               func() (pagetable.Outcome, error) { return b.u.Revoke(4, nil) },
		"Revoke with contents": func() (pagetable.Outcome, error) { return b.u.Revoke(4, make([]byte, b.u.PageBytes())) },
	} {
		if _, err := do(); !errors.Is(err, unix.EBADF) {
			t.Errorf("%s: %v, want EBADF", what, err)
		}
	}
	mend()
	last, behind := make([]byte, b.u.PageBytes()), make([]byte, b.u.PageBytes())
	if err := b.u.Scatter(RegionPages-1, last, behind); !errors.Is(err, unix.EIO) {
		t.Errorf("reading beyond the end of the file: %v", err)
	}
}
