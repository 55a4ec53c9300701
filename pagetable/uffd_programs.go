package pagetable

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// zeros are the longest run of pages, read only.
var zeros [MaxRunBytes]byte

// programs are the address spaces in which a Uffd traps accesses: those of attached programs, and
// those of detached ones that may not have ended; see uffd_left.go. What is done to a page in each
// of them stands here; what the memory file has to do with it is the business of Uffd.
type programs struct {
	region
	readiness // over their userfaultfds; the alarm is for pending operations and a ProcGone
	osPage    uintptr

	attached []*program
	left     []*program // detached, with an address space that may not have ended
	sealing  int        // how many of those have something left to protect
	news     []ProcID   // programs found gone and not reported yet; at most one entry per program
	buffer   uffd.Buffer
}

// program is an attached program.
type program struct {
	id    ProcID
	base  uintptr
	traps traps
	given stretches // of which something was mapped in it
	gone  bool      // its address space has ended, or it is served no more
	ended bool      // its address space has ended
	why   error     // gone although its address space has not ended: what it has broken

	sealedTo uint64 // detached: the stretches below are protected
	sealed   bool   // detached: all are
	refused  int    // detached: how often it could not be protected
}

// traps is what Uffd needs of a userfaultfd: the seam at which tests inject the kernel's rarer
// answers. The methods are those of uffd.FD.
type traps interface {
	Copy(dst uintptr, src []byte, mode uint64) (int, unix.Errno)
	ZeroPage(dst, length uintptr, mode uint64) (int, unix.Errno)
	Continue(dst, length uintptr, mode uint64) (int, unix.Errno)
	Poison(dst, length uintptr) (int, unix.Errno)
	WriteProtect(addr, length uintptr, on, dontWake bool) unix.Errno
	Wake(addr, length uintptr) unix.Errno
	Unregister(addr, length uintptr) unix.Errno
	ReadFaults(b *uffd.Buffer, limit int) ([]uffd.Fault, error)
	Sysfd() int
	Close() error
}

// open makes the descriptors by which the table hears of programs, of which there are none yet.
func (s *programs) open(r region) error {
	s.region, s.osPage, s.readiness = r, uintptr(os.Getpagesize()), noReadiness()
	err := s.readiness.open()
	if err != nil {
		s.readiness.close()
	}
	return err
}

// attach adds a program. Its caller discards f if there is an error.
func (s *programs) attach(proc ProcID, f *uffd.FD, base uintptr) error {
	s.reap()
	switch {
	case proc == AllProcs || s.find(proc) != nil:
		return fmt.Errorf("%w: %d", ErrAttached, proc)
	case len(s.attached)+len(s.left) == MaxPrograms:
		return fmt.Errorf("%w: %d are attached, or were and have not ended", ErrTooMany, MaxPrograms)
	case base%s.osPage != 0:
		return fmt.Errorf("pagetable: attach program %d: its region starts at %#x, which is not a page boundary", proc, base)
	}
	if !isAnonymous(f.Sysfd(), "userfaultfd") {
		return fmt.Errorf("pagetable: attach program %d: its descriptor is not a userfaultfd", proc)
	}
	if err := f.SetNonblock(); err != nil {
		return fmt.Errorf("pagetable: attach program %d: %w", proc, err)
	}
	if err := s.tryOut(proc, f, base); err != nil {
		return err
	}
	if err := s.watch(f.Sysfd(), unix.EPOLLIN, proc); err != nil {
		return err
	}
	s.attached = append(s.attached, &program{id: proc, base: base, traps: f, given: newStretches(s.pages * uint64(s.pageBytes))})
	return nil
}

// tryOut checks that features are enabled on f, that the region lies in user space, and that the
// address space still exists. It does so by operations that change nothing: waking, when nobody can
// wait, and lifting the write protection that the pages of a program just attached don't have, as
// none is mapped.
func (s *programs) tryOut(proc ProcID, f *uffd.FD, base uintptr) error {
	regionBytes := uintptr(s.pages) * s.pageBytes
	if errno := f.Wake(base, regionBytes); errno != 0 {
		return fmt.Errorf("pagetable: attach program %d: no features are enabled on its userfaultfd, or its region %#x+%#x is not in user space: %w",
			proc, base, regionBytes, errno)
	}
	if errno := f.WriteProtect(base, s.osPage, false, true); errno == unix.ESRCH {
		return fmt.Errorf("pagetable: attach program %d: %w", proc, ErrProcGone)
	}
	return nil
}

// detach forgets an attached program, or keeps it with those that have left.
func (s *programs) detach(pr *program, unmapped bool) {
	s.attached = slices.DeleteFunc(s.attached, func(one *program) bool { return one == pr })
	s.unwatch(pr)
	if unmapped || pr.ended {
		pr.traps.Close()
	} else {
		s.letGo(pr)
	}
}

func (s *programs) close() error {
	for _, pr := range s.attached {
		s.unwatch(pr)
	}
	for _, pr := range append(s.attached, s.left...) {
		pr.traps.Close()
	}
	s.attached, s.left, s.sealing, s.news = nil, nil, 0, nil
	return s.readiness.close()
}

// unwatch hears no more of a program, and reports nothing more of it.
func (s *programs) unwatch(pr *program) {
	s.readiness.unwatch(pr.traps.Sysfd())
	s.news = slices.DeleteFunc(s.news, func(id ProcID) bool { return id == pr.id })
}

// find finds an attached program. There are few, so a scan beats a map.
func (s *programs) find(id ProcID) *program {
	for _, pr := range s.attached {
		if pr.id == id {
			return pr
		}
	}
	return nil
}

// living is an attached program that can be operated on: nil if none has this number.
func (s *programs) living(proc ProcID) *program {
	if pr := s.find(proc); pr != nil && !pr.gone {
		return pr
	}
	return nil
}

// addr is where program pr has page p.
func (s *programs) addr(pr *program, p Page) uintptr { return pr.base + uintptr(p)*s.pageBytes }

// markEnded notes that a program's address space has ended.
func (s *programs) markEnded(pr *program) {
	pr.ended = true
	s.markGone(pr)
}

// markGone notes that a program is served no more, to be reported once by Poll.
func (s *programs) markGone(pr *program) {
	if pr.gone {
		return
	}
	pr.gone = true
	s.news = append(s.news, pr.id)
	s.ring(1)
}

// giveUp serves a program no more, because of what it has done to its trap or its memory. Others
// are not hurt. Until it is detached it loses its pages together with the others, and then for
// good.
func (s *programs) giveUp(pr *program, why error) {
	if !pr.gone {
		pr.why = fmt.Errorf("pagetable: program %d can't be served any more: %w", pr.id, why)
	}
	s.markGone(pr)
}

// blame gives a program up if an operation on its address space has failed because of the program:
// it has mapped something else at the region, or registered it otherwise than it was told. It
// reports whether it did.
func (s *programs) blame(pr *program, what string, errno unix.Errno) bool {
	switch errno {
	case 0, unix.EAGAIN, unix.ENOMEM, unix.ENOSPC:
		return false // nobody's fault, or everybody's
	}
	s.giveUp(pr, fmt.Errorf("%s: %w", what, errno))
	return true
}
