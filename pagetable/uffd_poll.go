package pagetable

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// Poll fills events with what has happened and returns how many; see Table. With one program attached, the common case, it is
// one system call: a nonblocking read of that program's userfaultfd.
func (u *Uffd) Poll(events []Event) (int, error) {
	if u.closed {
		return 0, ErrClosed
	}
	n := 0
	if len(u.pending)+len(u.goneNews) > 0 {
		n = u.settle(events)
	}
	switch {
	case n == len(events):
		return n, nil
	case len(u.programs) == 1:
		m, err := u.readFaults(u.programs[0], events[n:])
		return n + m, err
	case len(u.programs) > 1:
		m, err := u.readReady(events[n:])
		return n + m, err
	}
	return n, nil
}

// settle retries the pending operations and reports them and the programs found gone, then sets the alarm for
// what is left.
func (u *Uffd) settle(events []Event) int {
	n := 0
	for i := 0; i < len(u.pending) && n < len(events); {
		j := u.pending[i]
		errno := u.perform(j)
		if errno == unix.EAGAIN {
			i++
			continue
		}
		ev := Event{Kind: Completed, Op: j.op, Page: j.page}
		if errno != 0 {
			ev.Err = fail(j.op, j.page, errno)
		}
		events[n] = ev
		n++
		u.pending = append(u.pending[:i], u.pending[i+1:]...) // in place: order kept, nothing allocated
	}
	told := 0
	for told < len(u.goneNews) && n < len(events) {
		events[n] = Event{Kind: ProcGone, Proc: u.goneNews[told]}
		n++
		told++
	}
	u.goneNews = append(u.goneNews[:0], u.goneNews[told:]...)
	u.setAlarm()
	return n
}

// setAlarm makes WaitFD readable now if a program is to be reported gone, soon if an operation is pending, and else
// never. Setting a timerfd also clears what made it readable.
func (u *Uffd) setAlarm() {
	var when unix.ItimerSpec
	switch {
	case len(u.goneNews) > 0:
		when.Value.Nsec = 1
	case len(u.pending) > 0:
		when.Value.Nsec = int64(pendingRetry)
	}
	if err := unix.TimerfdSettime(u.alarm, 0, &when, nil); err != nil {
		panic(fmt.Sprintf("pagetable: timerfd_settime(%d): %v", u.alarm, err)) // only our own mistake: bad number or time
	}
}

// markGone notes that a program's address space has ended, to be reported once by Poll.
func (u *Uffd) markGone(pr *program) {
	if pr.gone {
		return
	}
	pr.gone = true
	u.goneNews = append(u.goneNews, pr.id)
	u.setAlarm()
}

// readReady asks epoll which programs have faults and reads those. The kernel moves what it has reported
// to the end of its list, so no program starves behind others.
func (u *Uffd) readReady(events []Event) (int, error) {
	count, err := unix.EpollWait(u.epoll, u.ready[:], 0)
	if err == unix.EINTR {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("pagetable: epoll_wait: %w", err)
	}
	n := 0
	for _, r := range u.ready[:count] {
		pr := u.program(ProcID(r.Fd))
		if pr == nil || n == len(events) {
			continue // the alarm, which Poll looks at first in any case; or no room, and it stays readable
		}
		m, err := u.readFaults(pr, events[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// readFaults reports the faults of one program.
func (u *Uffd) readFaults(pr *program, events []Event) (int, error) {
	faults, err := pr.traps.ReadFaults(&u.buffer, len(events))
	n := 0
	for i := range faults {
		f := &faults[i]
		offset := f.Addr - pr.base
		page := Page(offset / u.pageBytes)
		if f.Addr < pr.base || uint64(page) >= u.pages {
			u.release(pr, f)
			continue
		}
		events[n] = Event{
			Kind: Fault, Proc: pr.id, Thread: f.Thread, Page: page,
			Offset: uint32(offset % u.pageBytes), Write: f.Write || f.Protected,
		}
		n++
	}
	switch {
	case errors.Is(err, uffd.ErrNotAFault):
		// It has opened its userfaultfd by rules of its own, and is served no more. Pages that it can touch still it could also
		// reach by mapping the file that it was given.
		u.markGone(pr)
	case err != nil:
		return n, fmt.Errorf("pagetable: read the faults of program %d: %w", pr.id, err)
	}
	return n, nil
}

// release frees a thread that faults outside the region: the program has registered memory that is not ours with the
// descriptor that it gave us. Nobody will ever settle that fault, so that page goes back to the kernel's ordinary care.
func (u *Uffd) release(pr *program, f *uffd.Fault) {
	at := f.Addr &^ (u.osPage - 1)
	if pr.traps.Unregister(at, u.osPage) != 0 {
		pr.traps.Wake(at, u.osPage) // unmapped in between: the access starts over and meets what is there now
	}
}
