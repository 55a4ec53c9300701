package pagetable

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// job is an operation that can be performed again from its start: each step finds what an earlier
// try has done already, and leaves it so. That makes EAGAIN harmless: the job is kept, and
// performed once more.
type job struct {
	op       Op
	page     Page
	writable bool   // OpInstall, OpMap
	into     []byte // OpRevoke: where the contents go, or nil
	proc     ProcID // OpInstall, OpMap: where to map it
	// OpInstall: the page was lost, so it is mapped in all programs, over what makes accesses there
	// fail
	cure bool
}

// run performs a job, and keeps it for Poll if an address space goes on changing.
func (u *Uffd) run(j job) (Outcome, error) {
	if u.closed {
		return Done, ErrClosed
	}
	errno := u.perform(j)
	for errno == unix.EAGAIN && len(u.pending) == maxPending {
		runtime.Gosched()
		errno = u.perform(j)
	}
	switch errno {
	case 0:
		return Done, nil
	case unix.EAGAIN:
		u.keep(j)
		return Pending, nil
	}
	return Done, fail(j.op, j.page, errno)
}

func (u *Uffd) keep(j job) {
	for i := range u.pending {
		if u.pending[i].page == j.page {
			panic(fmt.Sprintf("pagetable: %v of page %d while its %v is pending", j.op, j.page, u.pending[i].op))
		}
	}
	u.pending = append(u.pending, j)
	if len(u.pending) == 1 {
		u.setAlarm()
	}
}

// perform does all of a job, or returns EAGAIN if it must be performed again, or why it failed.
func (u *Uffd) perform(j job) unix.Errno {
	switch j.op {
	case OpMakeWritable:
		return u.programs.protect(j.page, 1, false)
	case OpDowngrade:
		return u.programs.protect(j.page, 1, true)
	case OpRevoke:
		return u.revoke(j.page, j.into)
	case OpMap:
		return u.mapIn(u.programs.find(j.proc), j.page, j.writable)
	case OpInstall: // the contents are in the file already
		if errno := u.mapInstalled(j); errno != 0 {
			return errno
		}
		u.programs.wake(j.page, 1, nil)
		return 0
	}
	panic(fmt.Sprintf("pagetable: job %v of page %d", j.op, j.page))
}

// MakeWritable makes a read-only page writable; see Table.
func (u *Uffd) MakeWritable(p Page) (Outcome, error) {
	u.check(OpMakeWritable, p)
	return u.run(job{op: OpMakeWritable, page: p})
}

// Downgrade makes a writable page read-only; see Table.
func (u *Uffd) Downgrade(p Page) (Outcome, error) {
	u.check(OpDowngrade, p)
	return u.run(job{op: OpDowngrade, page: p})
}

// Revoke makes a page absent and returns its last contents; see Table. Threads that wait for the
// page are woken and fault again.
func (u *Uffd) Revoke(p Page, into []byte) (Outcome, error) {
	u.check(OpRevoke, p)
	u.checkBytes(OpRevoke, p, into)
	return u.run(job{op: OpRevoke, page: p, into: into})
}

// Map settles a fault of proc on a page that is present; see Table.
func (u *Uffd) Map(p Page, writable bool, proc ProcID) (Outcome, error) {
	u.check(OpMap, p)
	if proc == AllProcs && !u.closed {
		u.programs.wake(p, 1, nil)
		return Done, nil
	}
	return u.run(job{op: OpMap, page: p, writable: writable, proc: proc})
}

// Install makes an absent page present; see Table. When proc can take it, one ioctl fills, maps and
// wakes. Else the contents go into the file, and whoever touches the page next faults and gets it
// by Map.
func (u *Uffd) Install(p Page, data []byte, writable bool, proc ProcID) (Outcome, error) {
	u.check(OpInstall, p)
	u.checkBytes(OpInstall, p, data)
	if u.closed {
		return Done, ErrClosed
	}
	if u.lost.Remove(p) {
		return u.cure(p, data, writable)
	}
	pr := u.programs.living(proc)
	filled, errno := u.programs.fill(pr, p, 1, data, writable)
	if errno == 0 {
		u.programs.wake(p, 1, pr)
		return Done, nil
	}
	return u.installRest(pr, job{op: OpInstall, page: p, writable: writable}, data, filled, errno)
}

// installRest ends an Install, the job j, of which fill has done only so many bytes in pr, because
// of errno.
func (u *Uffd) installRest(pr *program, j job, data []byte, filled int, errno unix.Errno) (Outcome, error) {
	rest := zeros[filled:u.pageBytes]
	if data != nil {
		rest = data[filled:]
	}
	switch errno {
	case unix.ENOENT: // no program, or it has not mapped this page
	case unix.ESRCH:
		u.programs.markEnded(pr)
	case unix.EAGAIN:
		j.proc = pr.id
	case unix.EEXIST:
		// The page was absent, so its bytes can't be there: unless the kernel failed to split a
		// huge page when it was punched (it leaves zeros then), or somebody wrote to the file
		// behind our back. No program maps it in either case; what was asked for replaces it.
		j.proc = pr.id
	default:
		if pr == nil || !u.programs.blame(pr, "install a page", errno) {
			return Done, fail(j.op, j.page, errno)
		}
	}
	if errno := u.mem.writeAt(rest, u.offset(j.page)+uint64(filled)); errno != 0 {
		return Done, fail(j.op, j.page, errno)
	}
	return u.run(j)
}

// revoke takes a page from all programs. It stops stores before it reads the contents, because a
// store between reading and punching would be lost. If nobody wants the contents, punching does it
// all.
func (u *Uffd) revoke(p Page, into []byte) unix.Errno {
	if into == nil {
		return u.takeOut(p, 1)
	}
	if errno := u.programs.protect(p, 1, true); errno != 0 {
		return errno
	}
	return u.takeOut(p, 1, into)
}

// takeOut is the rest of a revocation, of several pages: it reads them, if somebody wants that, and
// punches them.
func (u *Uffd) takeOut(first Page, count int, into ...[]byte) unix.Errno {
	if len(into) > 0 {
		if errno := u.readRun(first, into); errno != 0 {
			return errno
		}
	}
	if errno := u.mem.punch(u.offset(first), uint64(count)*uint64(u.pageBytes)); errno != 0 {
		return errno
	}
	u.programs.wake(first, uint64(count), nil)
	return 0
}

// mapIn maps a page that is in the file into a program, and wakes the threads that wait there. A
// page may be several of the operating system's pages, and mapped in part, because faults come for
// each of those.
func (u *Uffd) mapIn(pr *program, p Page, writable bool) unix.Errno {
	if pr == nil || pr.gone {
		return 0
	}
	mode := uint64(0)
	if !writable {
		if u.old.noContinueWP {
			return u.mapByCopy(pr, p)
		}
		mode = uffd.WriteProtected
	}
	u.programs.noteGiven(pr, p, 1)
	at, done, tries, existed := u.programs.addr(pr, p), uintptr(0), 0, false
	for done < u.pageBytes {
		n, errno := pr.traps.Continue(at+done, u.pageBytes-done, mode)
		done += uintptr(n)
		switch errno {
		case 0:
		case unix.EAGAIN:
			if n == 0 {
				tries++
			}
			if tries == eagainTries {
				return errno
			}
		case unix.EEXIST: // mapped already, and its threads are not woken yet
			existed = true
			done += u.programs.osPage
		case unix.EFAULT, unix.ENOENT:
			// gone from the file, or unmapped by the program: the threads see for themselves
			u.programs.wakeIn(pr, p, 1)
			return 0
		case unix.ESRCH:
			u.programs.markEnded(pr)
			return 0
		case unix.EINVAL:
			if !writable {
				// refused before it did anything: the mode is unknown to this kernel
				u.old.noContinueWP = true
				return u.mapByCopy(pr, p)
			}
			fallthrough
		default:
			if u.programs.blame(pr, "map a page", errno) {
				return 0
			}
			return errno
		}
	}
	if !existed {
		return 0
	}
	// What was mapped may have another protection than the page has now. Lifting the protection
	// also wakes; setting it does not.
	errno := u.programs.protectIn(pr, p, 1, !writable)
	if errno == 0 && !writable {
		u.programs.wakeIn(pr, p, 1)
	}
	return errno
}

// Drop makes a run of pages absent; see Table. Threads that wait for them are woken and fault
// again.
func (u *Uffd) Drop(first Page, count uint64) (Outcome, error) {
	if u.closed {
		return Done, ErrClosed
	}
	u.checkRun(first, count)
	if count == 0 {
		return Done, nil
	}
	if err := u.punchRun(first, count); err != nil {
		return Done, err
	}
	u.lost.RemoveRun(first, count)
	u.programs.wake(first, count, nil)
	return Done, nil
}
