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
		if pr := u.program(u.goneNews[told]); pr != nil {
			events[n].Err = pr.why
		}
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

// giveUp serves a program no more, because of what it has done to its trap or its memory. Others are not hurt. Pages that it can still
// touch it could also reach by mapping the file that it was given.
func (u *Uffd) giveUp(pr *program, why error) {
	if !pr.gone {
		pr.why = fmt.Errorf("pagetable: program %d can't be served any more: %w", pr.id, why)
	}
	u.markGone(pr)
}

// blame gives a program up if an operation on its address space has failed for its own sake: it has mapped something else
// at the region, or registered it otherwise than it was told. It says whether it did.
func (u *Uffd) blame(pr *program, what string, errno unix.Errno) bool {
	switch errno {
	case 0, unix.EAGAIN, unix.ENOMEM, unix.ENOSPC:
		return false // nobody's fault, or everybody's
	}
	u.giveUp(pr, fmt.Errorf("%s: %w", what, errno))
	return true
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
		if r.Events&unix.EPOLLERR != 0 && !pr.gone { // so the kernel says that reading would block; it stays readable for ever
			u.giveUp(pr, errors.New("it has made its userfaultfd a blocking one"))
			continue
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
		if u.lost.has(page) {
			u.poison(pr, page)
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
		// It has opened its userfaultfd by rules of its own.
		u.giveUp(pr, err)
	case err != nil:
		u.giveUp(pr, fmt.Errorf("read its faults: %w", err))
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
