package pagetable

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Lose declares an absent page lost; see Table. Threads that wait for it are woken and fault again,
// and only then, when it is known which programs touch the page, is the access made to fail there.
func (u *Uffd) Lose(p Page) (Outcome, error) {
	u.check(OpLose, p)
	if u.closed {
		return Done, ErrClosed
	}
	if err := u.lose(p); err != nil {
		return Done, err
	}
	u.programs.wake(p, 1, nil)
	return Done, nil
}

// poison makes all accesses of a program to a lost page fail, and wakes the threads that wait for
// it, which are the first. If the address space is changing they are only woken, and fault again.
func (s *programs) poison(pr *program, p Page) {
	// Where the page was write-protected a mark of that is left, which the kernel does not replace.
	// There is no page that could be stored to.
	if s.protectIn(pr, p, 1, false) == unix.EAGAIN {
		s.wakeIn(pr, p, 1)
		return
	}
	at, existed := s.addr(pr, p), false
	for done, tries := uintptr(0), 0; done < s.pageBytes && !pr.gone; {
		n, errno := pr.traps.Poison(at+done, s.pageBytes-done)
		done += uintptr(n)
		switch errno {
		case 0:
		case unix.EEXIST: // poisoned already, and its threads are not woken yet
			existed = true
			done += s.osPage
		case unix.EAGAIN:
			if tries++; n == 0 && tries >= eagainTries {
				s.wakeIn(pr, p, 1)
				return
			}
		case unix.ENOENT: // unmapped by the program: the threads see for themselves
			s.wakeIn(pr, p, 1)
			return
		case unix.ESRCH:
			s.markEnded(pr)
		case unix.EINVAL:
			s.giveUp(pr, ErrNoPoison)
		default:
			s.giveUp(pr, fmt.Errorf("make accesses to a lost page fail: %w", errno))
		}
	}
	if existed {
		s.wakeIn(pr, p, 1)
	}
}

// cure installs a page that was lost: into the file first, then in all programs, over what makes
// accesses fail there. Where the kernel does not let that be replaced they go on failing, until the
// program maps the page anew.
func (u *Uffd) cure(p Page, data []byte, writable bool) (Outcome, error) {
	if data == nil {
		data = zeros[:u.pageBytes]
	}
	if errno := u.mem.writeAt(data, u.offset(p)); errno != 0 {
		return Done, fail(OpInstall, p, errno)
	}
	return u.run(job{op: OpInstall, page: p, writable: writable, cure: true})
}

// mapInstalled maps a page that is in the file now where the job says.
func (u *Uffd) mapInstalled(j job) unix.Errno {
	if !j.cure {
		return u.mapIn(u.programs.find(j.proc), j.page, j.writable)
	}
	for _, pr := range u.programs.attached {
		// each may take it from the one before: only the last keeps it, and none waits for a lost
		// page any more
		delete(u.old.rests, j.page)
		if errno := u.mapIn(pr, j.page, j.writable); errno != 0 {
			return errno
		}
	}
	return 0
}
