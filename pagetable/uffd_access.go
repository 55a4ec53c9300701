package pagetable

import (
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// The steps of operations that are taken in the address spaces of programs.

// fill fills and maps missing pages, neighbours, in a program and wakes the threads that wait
// there. It returns how many bytes it got done: those may be mapped writable and changed by now, so
// they must not be written again.
func (s *programs) fill(pr *program, p Page, count int, data []byte, writable bool) (int, unix.Errno) {
	if pr == nil {
		return 0, unix.ENOENT
	}
	// the kernel can't map zeros write-protected, so those are copied
	zero := data == nil && writable
	length := uintptr(count) * s.pageBytes
	if data == nil {
		data = zeros[:length]
	}
	mode := uint64(0)
	if !writable {
		mode = uffd.WriteProtected
	}
	s.noteGiven(pr, p, count)
	at, done, tries := s.addr(pr, p), 0, 0
	for {
		var n int
		var errno unix.Errno
		if zero {
			n, errno = pr.traps.ZeroPage(at+uintptr(done), length-uintptr(done), 0)
		} else {
			n, errno = pr.traps.Copy(at+uintptr(done), data[done:], mode)
		}
		done += n
		if errno != unix.EAGAIN {
			return done, errno
		}
		if n == 0 {
			tries++
		}
		if tries == eagainTries {
			return done, unix.EAGAIN
		}
	}
}

// protect makes stores to neighbouring pages fault, or lets them through and wakes the threads that
// wait, in every program. In a program that is served no more they fault for good.
func (s *programs) protect(p Page, count int, on bool) unix.Errno {
	if on {
		if errno := s.sealPages(p, count); errno != 0 {
			return errno
		}
	}
	for _, pr := range s.attached {
		if errno := s.protectIn(pr, p, count, on); errno != 0 {
			return errno
		}
	}
	return 0
}

// protectIn does that in one program. When it fails it may have done some of the pages.
func (s *programs) protectIn(pr *program, p Page, count int, on bool) unix.Errno {
	if pr.ended || pr.gone && !on {
		return 0
	}
	errno := unix.EAGAIN
	for tries := 0; errno == unix.EAGAIN && tries < eagainTries; tries++ {
		errno = pr.traps.WriteProtect(s.addr(pr, p), uintptr(count)*s.pageBytes, on, false)
	}
	switch errno {
	case unix.ENOENT:
		// it has not mapped this part of the region, so it has no access to cut off or give
		if count > 1 {
			return errno // perhaps it has mapped another part
		}
		return 0
	case unix.ESRCH:
		s.markEnded(pr)
		return 0
	}
	if s.blame(pr, "protect a page", errno) {
		return 0
	}
	return errno
}

// wake wakes the threads that wait for one of so many pages in all programs but one.
func (s *programs) wake(p Page, count uint64, except *program) {
	for _, pr := range s.attached {
		if pr != except {
			s.wakeIn(pr, p, count)
		}
	}
}

func (s *programs) wakeIn(pr *program, p Page, count uint64) {
	if pr.gone {
		return // found so by the step before
	}
	if errno := pr.traps.Wake(s.addr(pr, p), uintptr(count)*s.pageBytes); errno != 0 {
		// Waking asks nothing of the address space, and Attach has tried it on the whole region.
		panic(fmt.Sprintf("pagetable: wake %d pages from page %d of program %d at %#x: %v", count, p, pr.id, s.addr(pr, p), errno))
	}
}
