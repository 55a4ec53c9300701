package pagetable

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// job is an operation that can be performed again from its start: each step finds what an earlier try has done
// already and leaves it so. That is what makes EAGAIN harmless: the job is kept and performed once more.
type job struct {
	op       Op
	page     Page
	writable bool   // OpInstall, OpMap
	into     []byte // OpRevoke: where the contents go, or nil
	proc     ProcID // OpInstall, OpMap: where to map it
	cure     bool   // OpInstall: the page was lost, so it is mapped in all programs, over what makes accesses there fail
}

// run performs a job, and keeps it for Poll if an address space does not settle in time.
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

// perform does all of a job, or returns EAGAIN if it is to be performed again, or why it failed.
func (u *Uffd) perform(j job) unix.Errno {
	switch j.op {
	case OpMakeWritable:
		return u.protect(j.page, 1, false)
	case OpDowngrade:
		return u.protect(j.page, 1, true)
	case OpRevoke:
		return u.revoke(j.page, j.into)
	case OpMap:
		return u.mapIn(u.program(j.proc), j.page, j.writable)
	case OpInstall: // the contents are in the file already
		if errno := u.mapInstalled(j); errno != 0 {
			return errno
		}
		u.wake(j.page, 1, nil)
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

// Revoke makes a page absent and returns its last contents; see Table. Threads that wait for the page are woken and fault again.
func (u *Uffd) Revoke(p Page, into []byte) (Outcome, error) {
	u.check(OpRevoke, p)
	u.checkBytes(OpRevoke, p, into)
	return u.run(job{op: OpRevoke, page: p, into: into})
}

// Map settles a fault of proc on a page that is present; see Table.
func (u *Uffd) Map(p Page, writable bool, proc ProcID) (Outcome, error) {
	u.check(OpMap, p)
	if proc == AllProcs && !u.closed {
		u.wake(p, 1, nil)
		return Done, nil
	}
	return u.run(job{op: OpMap, page: p, writable: writable, proc: proc})
}

// Install makes an absent page present; see Table. When proc can take it, one ioctl fills, maps and wakes. Else
// the contents go into the file, and whoever touches the page next faults and gets it by Map.
func (u *Uffd) Install(p Page, data []byte, writable bool, proc ProcID) (Outcome, error) {
	u.check(OpInstall, p)
	u.checkBytes(OpInstall, p, data)
	if u.closed {
		return Done, ErrClosed
	}
	if u.lost.remove(p) {
		return u.cure(p, data, writable)
	}
	pr := u.living(proc)
	filled, errno := u.fill(pr, p, 1, data, writable)
	if errno == 0 {
		u.wake(p, 1, pr)
		return Done, nil
	}
	return u.installRest(pr, p, data, writable, filled, errno)
}

// living is an attached program that can be operated on, nil if there is none of this number.
func (u *Uffd) living(proc ProcID) *program {
	if pr := u.program(proc); pr != nil && !pr.gone {
		return pr
	}
	return nil
}

// installRest ends an Install of which fill has done only so many bytes, because of errno.
func (u *Uffd) installRest(pr *program, p Page, data []byte, writable bool, filled int, errno unix.Errno) (Outcome, error) {
	rest := u.zeros[filled:u.pageBytes]
	if data != nil {
		rest = data[filled:]
	}
	mapLater := ProcID(0)
	switch errno {
	case unix.ENOENT: // no program, or it has not mapped this page
	case unix.ESRCH:
		u.markGone(pr)
	case unix.EAGAIN:
		mapLater = pr.id
	case unix.EEXIST:
		// The page was absent, so its bytes can't be there: unless the kernel failed to split a huge page when it
		// was punched (it leaves zeros then), or somebody wrote to the file behind our back. No program maps it
		// in either case; what was asked for replaces it.
		mapLater = pr.id
	default:
		if pr == nil || !u.blame(pr, "install a page", errno) {
			return Done, fail(OpInstall, p, errno)
		}
	}
	if errno := u.mem.writeAt(rest, u.offset(p)+uint64(filled)); errno != 0 {
		return Done, fail(OpInstall, p, errno)
	}
	return u.run(job{op: OpInstall, page: p, writable: writable, proc: mapLater})
}

// fill fills and maps missing pages, neighbours, in a program and wakes the threads that wait there. It returns how many bytes it
// got done: those may be mapped writable and changed by now, so they must not be written again.
func (u *Uffd) fill(pr *program, p Page, count int, data []byte, writable bool) (int, unix.Errno) {
	if pr == nil {
		return 0, unix.ENOENT
	}
	zero := data == nil && writable // the kernel can't map zeros write-protected, so those are copied
	length := uintptr(count) * u.pageBytes
	if data == nil {
		data = u.zeros[:length]
	}
	mode := uint64(0)
	if !writable {
		mode = uffd.WriteProtected
	}
	at, done, tries := u.addr(pr, p), 0, 0
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

// protect makes stores to neighbouring pages fault, or lets them through and wakes who waits, in every program.
func (u *Uffd) protect(p Page, count int, on bool) unix.Errno {
	for _, pr := range u.programs {
		if errno := u.protectIn(pr, p, count, on); errno != 0 {
			return errno
		}
	}
	return 0
}

// protectIn does that in one program. Of several pages it may have done some when it fails.
func (u *Uffd) protectIn(pr *program, p Page, count int, on bool) unix.Errno {
	if pr.gone {
		return 0
	}
	errno := unix.EAGAIN
	for tries := 0; errno == unix.EAGAIN && tries < eagainTries; tries++ {
		errno = pr.traps.WriteProtect(u.addr(pr, p), uintptr(count)*u.pageBytes, on, false)
	}
	switch errno {
	case unix.ENOENT: // it has not mapped this part of the region, so it has no access to cut off or give
		if count > 1 {
			return errno // perhaps it has mapped another part
		}
		return 0
	case unix.ESRCH:
		u.markGone(pr)
		return 0
	}
	if u.blame(pr, "protect a page", errno) {
		return 0
	}
	return errno
}

// revoke takes a page from all programs. Stores are cut off before the contents are read, else one
// could fall between reading and punching and be lost. Without a reader of the contents, punching does it all.
func (u *Uffd) revoke(p Page, into []byte) unix.Errno {
	if into != nil {
		if errno := u.protect(p, 1, true); errno != 0 {
			return errno
		}
		if errno := u.mem.readAt(into, u.offset(p)); errno != 0 {
			return errno
		}
	}
	if errno := u.mem.punch(u.offset(p), uint64(u.pageBytes)); errno != 0 {
		return errno
	}
	u.wake(p, 1, nil)
	return 0
}

// wake wakes the threads that wait for one of so many pages in all programs but one.
func (u *Uffd) wake(p Page, count uint64, except *program) {
	for _, pr := range u.programs {
		if pr != except {
			u.wakeIn(pr, p, count)
		}
	}
}

func (u *Uffd) wakeIn(pr *program, p Page, count uint64) {
	if pr.gone {
		return // found so by the step before
	}
	if errno := pr.traps.Wake(u.addr(pr, p), uintptr(count)*u.pageBytes); errno != 0 {
		// Waking asks nothing of the address space, and Attach has tried it on the whole region.
		panic(fmt.Sprintf("pagetable: wake %d pages from page %d of program %d at %#x: %v", count, p, pr.id, u.addr(pr, p), errno))
	}
}

// mapIn maps a page that is in the file into a program and wakes the threads that wait there. A page of several of the operating
// system's pages may be mapped in part, because faults come for each of those.
func (u *Uffd) mapIn(pr *program, p Page, writable bool) unix.Errno {
	if pr == nil || pr.gone {
		return 0
	}
	mode := uint64(0)
	if !writable {
		if u.noContinueWP {
			return u.mapByCopy(pr, p)
		}
		mode = uffd.WriteProtected
	}
	at, done, tries, existed := u.addr(pr, p), uintptr(0), 0, false
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
			done += u.osPage
		case unix.EFAULT, unix.ENOENT: // gone from the file, or unmapped by the program: the threads see for themselves
			u.wakeIn(pr, p, 1)
			return 0
		case unix.ESRCH:
			u.markGone(pr)
			return 0
		case unix.EINVAL:
			if !writable {
				u.noContinueWP = true // refused before it did anything: the mode is unknown to this kernel
				return u.mapByCopy(pr, p)
			}
			fallthrough
		default:
			if u.blame(pr, "map a page", errno) {
				return 0
			}
			return errno
		}
	}
	if !existed {
		return 0
	}
	// What was mapped may be protected otherwise than the page is now. Lifting the protection also wakes, setting it doesn't.
	errno := u.protectIn(pr, p, 1, !writable)
	if errno == 0 && !writable {
		u.wakeIn(pr, p, 1)
	}
	return errno
}

// mapByCopy is mapIn, read-only, for kernels that can map a page from the file only writable (before 6.4). To map it so and
// protect it afterwards would let stores of other threads through in between. Instead the page is taken out of
// the file and copied in again, by the operation that can map read-only. Other programs lose their mapping and fault again.
func (u *Uffd) mapByCopy(pr *program, p Page) unix.Errno {
	off := u.offset(p)
	if !u.mem.present(off) {
		u.wakeIn(pr, p, 1)
		return 0
	}
	if u.scratch == nil {
		u.scratch = make([]byte, u.pageBytes)
	}
	if errno := u.mem.readAt(u.scratch, off); errno != 0 {
		return errno
	}
	if errno := u.mem.punch(off, uint64(u.pageBytes)); errno != 0 {
		return errno
	}
	done, errno := u.fill(pr, p, 1, u.scratch, false)
	if errno != 0 {
		if back := u.mem.writeAt(u.scratch[done:], off+uint64(done)); back != 0 {
			panic(fmt.Sprintf("pagetable: page %d is lost: it can't be put back into the file: %v", p, back))
		}
	}
	u.wake(p, 1, pr)
	switch errno {
	case unix.ENOENT:
		u.wakeIn(pr, p, 1)
		return 0
	case unix.ESRCH:
		u.markGone(pr)
		return 0
	case unix.EEXIST:
		return unix.EAGAIN // it was written back: try again from the start
	}
	return errno
}

// Drop makes a run of pages absent; see Table. Threads that wait for them are woken and fault again.
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
	u.lost.removeRun(first, count)
	u.wake(first, count, nil)
	return Done, nil
}
