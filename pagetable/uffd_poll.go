package pagetable

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// Poll fills events with what has happened and returns how many; see Table. With one program
// attached, the common case, it is one system call: a nonblocking read of that program's
// userfaultfd.
func (u *Uffd) Poll(events []Event) (int, error) {
	if u.closed {
		return 0, ErrClosed
	}
	n := 0
	if len(u.pending)+len(u.programs.news)+u.programs.sealing > 0 || u.programs.rung {
		n = u.settle(events)
	}
	switch {
	case n == len(events):
		return n, nil
	case len(u.programs.attached) == 1:
		m, err := u.readSole(u.programs.attached[0], events[n:])
		return n + m, err
	case len(u.programs.attached) > 1:
		m, err := u.readReady(events[n:])
		return n + m, err
	}
	return n, nil
}

// settle retries the pending operations. It reports them, and the programs that were found gone,
// protects more of what detached programs have, and sets the alarm for what is left.
func (u *Uffd) settle(events []Event) int {
	n := 0
	if u.programs.sealing > 0 {
		u.programs.sealOn(sealEachPoll)
	}
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
		// in place: order kept, nothing allocated
		u.pending = append(u.pending[:i], u.pending[i+1:]...)
	}
	told := 0
	for told < len(u.programs.news) && n < len(events) {
		events[n] = Event{Kind: ProcGone, Proc: u.programs.news[told]}
		if pr := u.programs.find(u.programs.news[told]); pr != nil {
			events[n].Err = pr.why
		}
		n++
		told++
	}
	u.programs.news = append(u.programs.news[:0], u.programs.news[told:]...)
	u.setAlarm()
	return n
}

// setAlarm makes WaitFD readable now if a program is to be reported gone, soon if an operation is
// pending, and else never.
func (u *Uffd) setAlarm() {
	switch {
	case len(u.programs.news) > 0:
		u.programs.ring(1)
	case len(u.pending)+u.programs.sealing > 0:
		u.programs.ring(int64(pendingRetry))
	default:
		u.programs.ring(0)
	}
}

// readSole reads the faults of the only program. When there are none for long it sees whether that
// is because the program has spoilt its descriptor.
func (u *Uffd) readSole(pr *program, events []Event) (int, error) {
	if n := u.readFaults(pr, events); n > 0 {
		u.vain = 0
		return n, nil
	}
	if u.vain++; u.vain%looksPerReady == 0 {
		return u.readReady(events)
	}
	return 0, nil
}

// readReady asks which programs have faults and reads those.
func (u *Uffd) readReady(events []Event) (int, error) {
	ready, err := u.programs.look()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, r := range ready {
		pr := u.programs.find(ProcID(r.Fd))
		if pr == nil || n == len(events) {
			// the alarm, which Poll looks at first in any case; or no room, and it stays readable
			continue
		}
		if r.Events&unix.EPOLLERR != 0 && !pr.gone {
			// so the kernel says that reading would block; it stays readable for ever
			u.programs.giveUp(pr, errors.New("it has made its userfaultfd a blocking one"))
			continue
		}
		n += u.readFaults(pr, events[n:])
	}
	return n, nil
}

// readFaults reports the faults of one program.
func (u *Uffd) readFaults(pr *program, events []Event) int {
	faults, err := pr.traps.ReadFaults(&u.programs.buffer, len(events))
	n := 0
	for i := range faults {
		f := &faults[i]
		offset := f.Addr - pr.base
		page := Page(offset / u.pageBytes)
		if f.Addr < pr.base || uint64(page) >= u.pages {
			u.programs.release(pr, f)
			continue
		}
		if u.lost.Has(page) {
			u.programs.poison(pr, page)
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
		u.programs.giveUp(pr, err)
	case err != nil:
		u.programs.giveUp(pr, fmt.Errorf("read its faults: %w", err))
	}
	return n
}

// release frees a thread that faults outside the region: the program has registered memory that is
// not ours with the descriptor that it gave us. Nobody would ever answer that fault, so the page
// goes back to the kernel's ordinary care.
func (s *programs) release(pr *program, f *uffd.Fault) {
	at := f.Addr &^ (s.osPage - 1)
	if pr.traps.Unregister(at, s.osPage) != 0 {
		// unmapped in between: the access starts over and meets what is there now
		pr.traps.Wake(at, s.osPage)
	}
}
