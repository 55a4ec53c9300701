package pagetable

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"dsmd/internal/sigsegv/area"
)

// The levels of pages as this table keeps them, a byte each.
const (
	absent   = area.Level8(area.None)
	readOnly = area.Level8(area.ReadOnly)
	writable = area.Level8(area.Writable)
)

func levelOf(w bool) area.Level8 {
	if w {
		return writable
	}
	return readOnly
}

// Install makes an absent page present; see Table. It is Done at once.
func (s *Sigsegv) Install(p Page, data []byte, writable bool, proc ProcID) (Outcome, error) {
	s.check(OpInstall, p)
	s.checkBytes(OpInstall, p, data)
	if s.closed {
		return Done, ErrClosed
	}
	s.checkIdle(OpInstall, p)
	if s.level[p] != absent {
		panic(fmt.Sprintf("pagetable: install of page %d, which is present", p))
	}
	// Zeros need no contents: an absent page is a hole, which reads as zeros, and no program can
	// have touched it.
	if data != nil {
		if errno := s.mem.writeAt(data, s.offset(p)); errno != 0 {
			return Done, fail(OpInstall, p, errno)
		}
	}
	s.level[p] = levelOf(writable)
	if s.lost.Remove(p) {
		s.unlose(p)
	}
	for _, pr := range s.programs {
		if pr.id == proc && !pr.leaving {
			pr.area.Grant(uint64(p), area.Level(s.level[p]))
		} else {
			s.wake(pr, p)
		}
	}
	return Done, nil
}

// Lose declares an absent page lost; see Table. It is Done at once. Threads that wait for it are
// woken and fault again. Then the table knows which programs touch the page, and makes the access
// fail there.
func (s *Sigsegv) Lose(p Page) (Outcome, error) {
	s.check(OpLose, p)
	if s.closed {
		return Done, ErrClosed
	}
	s.checkIdle(OpLose, p)
	if s.level[p] != absent {
		panic(fmt.Sprintf("pagetable: page %d is to be lost, and it is present", p))
	}
	if err := s.lose(p); err != nil {
		return Done, err
	}
	for _, pr := range s.programs {
		s.wake(pr, p)
	}
	return Done, nil
}

// unlose takes back what programs were told about a page that was lost.
func (s *Sigsegv) unlose(p Page) {
	for _, pr := range s.programs {
		if !pr.leaving && !pr.gone {
			pr.area.Grant(uint64(p), area.None)
		}
	}
}

// wake makes the threads of a program that wait for a page look again. Only threads of programs
// that were here when the page was last touched can wait.
func (s *Sigsegv) wake(pr *segvProgram, p Page) {
	if !pr.leaving && !pr.gone {
		pr.area.Wake(uint64(p))
	}
}

// MakeWritable makes a read-only page writable; see Table. It is Done at once.
func (s *Sigsegv) MakeWritable(p Page) (Outcome, error) {
	s.check(OpMakeWritable, p)
	if s.closed {
		return Done, ErrClosed
	}
	s.checkIdle(OpMakeWritable, p)
	if s.level[p] != absent {
		s.level[p] = writable
	}
	for _, pr := range s.programs {
		if !pr.leaving && !pr.gone {
			pr.area.Raise(uint64(p), area.Level(s.level[p]))
		}
	}
	return Done, nil
}

// Map settles a fault of proc on a page that is present; see Table. It is Done at once.
func (s *Sigsegv) Map(p Page, writable bool, proc ProcID) (Outcome, error) {
	s.check(OpMap, p)
	if s.closed {
		return Done, ErrClosed
	}
	if _, busy := s.busy[p]; busy {
		return Done, nil // the end of what is under way wakes everybody
	}
	for _, pr := range s.programs {
		switch {
		case proc == AllProcs:
			s.wake(pr, p)
		case pr.id == proc && !pr.leaving:
			pr.area.Grant(uint64(p), area.Level(min(s.level[p], levelOf(writable))))
		}
	}
	return Done, nil
}

// Downgrade makes a writable page read-only; see Table. It is Pending if a program has stored to
// it.
func (s *Sigsegv) Downgrade(p Page) (Outcome, error) {
	s.check(OpDowngrade, p)
	return s.lower(OpDowngrade, p, readOnly, nil)
}

// Revoke makes a page absent and returns its last contents; see Table. It is Pending if a program
// has touched it.
func (s *Sigsegv) Revoke(p Page, into []byte) (Outcome, error) {
	s.check(OpRevoke, p)
	s.checkBytes(OpRevoke, p, into)
	return s.lower(OpRevoke, p, absent, into)
}

func (s *Sigsegv) lower(op Op, p Page, level area.Level8, into []byte) (Outcome, error) {
	if s.closed {
		return Done, ErrClosed
	}
	s.checkIdle(op, p)
	j := s.newJob(op, p, into)
	s.level[p] = min(s.level[p], level)
	j.waits = s.take(j.waits, p, area.Level(level))
	if len(j.waits) > 0 {
		s.pending = append(s.pending, j)
		s.busy[p] = struct{}{}
		return Pending, nil
	}
	return Done, s.finish(j)
}

// take lowers the access to a page in all programs, and adds to waits those which must acknowledge.
func (s *Sigsegv) take(waits []segvWait, p Page, level area.Level) []segvWait {
	for _, pr := range s.programs {
		switch {
		case pr.gone:
		case pr.leaving:
			waits = append(waits, segvWait{pr, pr.queued}) // the last command takes everything
		case pr.area.Limit(uint64(p), level) > level:
			waits = append(waits, segvWait{pr, s.command(pr, uint64(p))})
		}
	}
	return waits
}

// finish does what is left of a job once no program has the access any more.
func (s *Sigsegv) finish(j *segvJob) error {
	defer func() { s.spare = append(s.spare, j) }()
	if j.op == OpDrop {
		return s.finishDrop(j)
	}
	if j.op != OpRevoke {
		return nil
	}
	if j.into != nil {
		if errno := s.mem.readAt(j.into, s.offset(j.page)); errno != 0 {
			return fail(j.op, j.page, errno)
		}
	}
	if errno := s.mem.punch(s.offset(j.page), uint64(s.pageBytes)); errno != 0 {
		return fail(j.op, j.page, errno)
	}
	return nil
}

func (s *Sigsegv) newJob(op Op, p Page, into []byte) *segvJob {
	if len(s.spare) == 0 {
		return &segvJob{op: op, page: p, into: into}
	}
	j := s.spare[len(s.spare)-1]
	s.spare = s.spare[:len(s.spare)-1]
	j.op, j.page, j.into, j.waits = op, p, into, j.waits[:0]
	return j
}

// checkIdle panics if the caller starts an operation on a page while another is pending there.
func (s *Sigsegv) checkIdle(op Op, p Page) {
	if len(s.busy) == 0 {
		return
	}
	if _, busy := s.busy[p]; busy {
		panic(fmt.Sprintf("pagetable: %v of page %d while another operation is pending there", op, p))
	}
}

// acknowledged reports whether all programs have given up the access, or have ended, which amounts
// to the same.
func (j *segvJob) acknowledged() bool {
	for len(j.waits) > 0 {
		w := &j.waits[len(j.waits)-1]
		if !w.pr.gone && w.pr.area.Done() < w.seq {
			return false
		}
		j.waits = j.waits[:len(j.waits)-1]
	}
	return true
}

// Poll fills events with what has happened and returns how many; see Table. As long as programs do
// something, and there is room for all of it, it makes no system call.
func (s *Sigsegv) Poll(events []Event) (int, error) {
	if s.closed {
		return 0, ErrClosed
	}
	if len(events) == 0 {
		return 0, nil
	}
	n := s.collect(events)
	if n == 0 {
		if err := s.hear(); err != nil {
			return 0, err
		}
		n = s.collect(events)
	} else {
		s.vain = 0
	}
	if n < len(events) {
		s.ring(0)
	} else {
		// There may be more, of which no program tells again: it told before hear, or has ended.
		s.ring(1)
	}
	return n, nil
}

// hear makes WaitFD unreadable, and sees from time to time which programs have ended.
func (s *Sigsegv) hear() error {
	for _, pr := range s.programs {
		s.drain(pr)
	}
	s.vain++
	if s.vain%looksPerHangup != 1 {
		return nil
	}
	return s.checkReady()
}

// collect reports completions, ends and faults.
func (s *Sigsegv) collect(events []Event) int {
	n := s.settle(events)
	for n < len(events) && len(s.goneNews) > 0 {
		events[n] = Event{Kind: ProcGone, Proc: s.goneNews[0]}
		s.goneNews = append(s.goneNews[:0], s.goneNews[1:]...)
		n++
	}
	for i := range s.programs {
		if n == len(events) {
			break
		}
		n += s.takeFaults(s.programs[i], events[n:])
	}
	// The next time another program comes first, so that none starves behind others.
	if len(s.programs) > 1 && n == len(events) {
		first := s.programs[0]
		s.programs = append(append(s.programs[:0], s.programs[1:]...), first)
	}
	return n
}

// settle reports the operations that have come to their end.
func (s *Sigsegv) settle(events []Event) int {
	n := 0
	for _, pr := range s.programs {
		for len(pr.backlog) > 0 && pr.area.Post(pr.backlog[0]) {
			pr.backlog = append(pr.backlog[:0], pr.backlog[1:]...)
		}
	}
	if len(s.pending) == 0 {
		return 0
	}
	kept := s.pending[:0]
	for _, j := range s.pending {
		if n == len(events) || !j.acknowledged() {
			kept = append(kept, j)
			continue
		}
		events[n] = Event{Kind: Completed, Op: j.op, Page: j.page, Err: s.finish(j)}
		n++
		if j.op == OpDrop {
			continue // it has woken who waits
		}
		delete(s.busy, j.page)
		// Faults on it were not reported meanwhile.
		for _, pr := range s.programs {
			s.wake(pr, j.page)
		}
	}
	clear(s.pending[len(kept):])
	s.pending = kept
	return n
}

func (s *Sigsegv) takeFaults(pr *segvProgram, events []Event) int {
	n := 0
	if pr.leaving || pr.gone {
		return 0
	}
	// The bound is for a program that writes faults as fast as they are taken.
	for looks := 0; n < len(events) && looks < area.FaultSlots; looks++ {
		f, ok := pr.area.TakeFault()
		if !ok {
			break
		}
		if f.Page >= s.pages {
			continue // the program has written rubbish into the area: its own thread waits in vain
		}
		if len(s.busy) > 0 {
			if _, busy := s.busy[Page(f.Page)]; busy {
				continue
			}
		}
		if s.lost.Has(Page(f.Page)) {
			pr.area.Grant(f.Page, area.Lost)
			continue
		}
		events[n] = Event{Kind: Fault, Proc: pr.id, Thread: f.Thread, Page: Page(f.Page), Offset: f.Offset % uint32(s.pageBytes), Write: f.Write}
		n++
	}
	return n
}

// drain makes WaitFD unreadable once everything that it announced was looked at. The flag means
// that the program has written to the eventfd, or is just about to. In the second case there is
// nothing to read yet, and the flag must stay.
func (s *Sigsegv) drain(pr *segvProgram) {
	if pr.gone || !pr.area.Signalled() {
		return
	}
	var count [8]byte
	if readNoWait(pr.events, count[:]) == len(count) {
		pr.area.Unsignal()
	}
}

// readNoWait reads from an eventfd that the program has a copy of, and with which it shares
// O_NONBLOCK: it can clear it at any time.
func readNoWait(fd int, b []byte) int {
	n, err := unix.Preadv2(fd, [][]byte{b}, -1, unix.RWF_NOWAIT)
	if err == unix.EOPNOTSUPP { // before Linux 5.8
		n, _ = unix.Read(fd, b)
	}
	return n
}

// checkReady looks for programs that have ended.
func (s *Sigsegv) checkReady() error {
	ready, err := s.look()
	if err != nil {
		return err
	}
	for _, r := range ready {
		if r.Events&(unix.EPOLLHUP|unix.EPOLLRDHUP|unix.EPOLLERR) != 0 {
			s.markGone(ProcID(r.Fd))
		}
	}
	return nil
}

// markGone notes that a program can't touch anything any more.
func (s *Sigsegv) markGone(id ProcID) {
	i := slices.IndexFunc(s.programs, func(pr *segvProgram) bool { return pr.id == id })
	if i < 0 || s.programs[i].gone {
		return
	}
	pr := s.programs[i]
	if pr.leaving {
		s.remove(pr)
		return
	}
	pr.gone = true
	s.unwatch(pr)
	s.goneNews = append(s.goneNews, id)
}

// Drop makes a run of pages absent; see Table. It is Pending if a program has touched some of them
// and not unmapped them, or is about to end.
func (s *Sigsegv) Drop(first Page, count uint64) (Outcome, error) {
	if s.closed {
		return Done, ErrClosed
	}
	s.checkRun(first, count)
	if count == 0 {
		return Done, nil
	}
	j := s.newJob(OpDrop, first, nil)
	j.count = count
	s.lost.RemoveRun(first, count)
	for p := first; p < first+Page(count); p++ {
		if s.level[p] == absent {
			continue // no program has it
		}
		s.level[p] = absent
		j.waits = s.take(j.waits, p, area.None)
	}
	if j.acknowledged() {
		return Done, s.finish(j)
	}
	s.pending = append(s.pending, j)
	return Pending, nil
}

// finishDrop gives up the contents of a run of pages that no program can touch any more.
func (s *Sigsegv) finishDrop(j *segvJob) error {
	if err := s.punchRun(j.page, j.count); err != nil {
		return err
	}
	for _, pr := range s.programs {
		if pr.leaving || pr.gone {
			continue
		}
		end := uint64(j.page) + j.count
		for p, ok := pr.area.NextTouched(uint64(j.page), end); ok; p, ok = pr.area.NextTouched(p+1, end) {
			// what it is anyway, unless the page was lost; and it wakes
			pr.area.Grant(p, area.None)
		}
	}
	return nil
}
