package pagetable

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/sigsegv/area"
)

// looksPerHangup is after how many vain polls the table asks the kernel whether a program has died.
// A poll that finds nothing is otherwise free of system calls.
const looksPerHangup = 64

// Sigsegv is the Table over memory protection: programs map the pages without access, and a signal
// handler in the program (package internal/sigsegv) reports what they touch, through memory that it
// shares with the table (package area).
//
// Giving access (Install, MakeWritable, Map) is Done at once: the table says so in the program's
// area, and the thread that waits protects its page by itself. Taking access (Downgrade, Revoke) is
// Pending whenever a program has the page mapped: an agent thread of the program takes it and
// acknowledges. While such an operation is pending, faults on its page are not reported: their
// threads are woken at its end, and fault again.
//
// All methods belong to one goroutine, except WaitFD, MemFD, PageBytes and Pages, which any may
// call. Close is called when the others have come to rest.
type Sigsegv struct {
	store
	// Over the sockets and eventfds of programs. The alarm is for what Poll has left.
	readiness
	level []area.Level8 // what each page is; mapped, so what is never touched costs nothing

	programs []*segvProgram
	goneNews []ProcID // programs found gone and not reported yet; at most one entry per program
	pending  []*segvJob
	busy     map[Page]struct{} // pages of pending
	spare    []*segvJob        // done with, kept for their memory
	vain     int               // polls in a row that found nothing
}

var _ Table = (*Sigsegv)(nil)

// segvProgram is an attached program, or one that was detached and may still have access.
type segvProgram struct {
	id     ProcID
	sock   int // hangs up when the program has ended, or has given up all access
	events int // eventfd that the program writes to
	area   *area.Area
	queued uint64 // commands so far, those in backlog included
	// backlog: commands for which the ring had no room; at most one for each page that is being
	// taken away.
	backlog []uint64
	leaving bool // detached, and told to give up all access; waits for that
	gone    bool // its address space has ended
}

// segvJob is a Downgrade, Revoke or Drop that waits for programs.
type segvJob struct {
	op    Op
	page  Page
	count uint64 // OpDrop: how many pages from page on
	into  []byte
	waits []segvWait
}

// segvWait is a command that a program has not acknowledged.
type segvWait struct {
	pr  *segvProgram
	seq uint64
}

// NewSigsegv makes a table with all pages absent and no program attached. Errors: a size out of
// range, the memory file cannot be had, or the kernel's settings for huge pages make pages present
// that nobody asked for.
func NewSigsegv(cfg Config) (*Sigsegv, error) {
	st, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	s := &Sigsegv{store: st, readiness: noReadiness(), busy: make(map[Page]struct{})}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(cfg.Pages), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		st.mem.close()
		return nil, fmt.Errorf("pagetable: map a byte for each of %d pages: %w", cfg.Pages, err)
	}
	s.level = unsafe.Slice((*area.Level8)(p), cfg.Pages)
	if err := s.open(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// WaitFD is readable, level-triggered, when Poll has something to report. It is an epoll descriptor
// over all programs.
func (s *Sigsegv) WaitFD() int { return s.epoll }

// Attach adds a program; see Table. fd is the socket that Trap.Handover of package internal/sigsegv
// names; base is not needed. Errors: ErrAttached, ErrTooMany, ErrClosed, and a description of what
// is wrong with fd.
func (s *Sigsegv) Attach(proc ProcID, fd int, base uintptr) error {
	pr := &segvProgram{id: proc, sock: fd, events: -1}
	err := s.attach(pr, base)
	if err != nil {
		s.discard(pr.fds()...)
		pr.unmap()
	}
	return err
}

func (s *Sigsegv) attach(pr *segvProgram, base uintptr) error {
	switch {
	case s.closed:
		return ErrClosed
	case pr.id == AllProcs || s.program(pr.id) != nil:
		return fmt.Errorf("%w: %d", ErrAttached, pr.id)
	case len(s.programs) >= MaxPrograms:
		return fmt.Errorf("%w: %d are attached", ErrTooMany, MaxPrograms)
	case base%uintptr(os.Getpagesize()) != 0:
		return fmt.Errorf("pagetable: attach program %d: its region starts at %#x, which is not a page boundary", pr.id, base)
	}
	file, err := s.receive(pr)
	if err != nil {
		return fmt.Errorf("pagetable: attach program %d: %w", pr.id, err)
	}
	defer s.discard(file)
	if pr.area, err = area.Open(file, s.pages, uint64(s.pageBytes)); err != nil {
		return fmt.Errorf("pagetable: attach program %d: %w", pr.id, err)
	}
	for fd, events := range map[int]uint32{pr.sock: unix.EPOLLRDHUP, pr.events: unix.EPOLLIN} {
		if err := s.watch(fd, events, pr.id); err != nil {
			s.unwatch(pr)
			return err
		}
	}
	s.programs = append(s.programs, pr)
	return nil
}

// receive takes the area's file and the eventfd out of the socket. The program put them there
// before it passed the socket on.
func (s *Sigsegv) receive(pr *segvProgram) (file int, err error) {
	if kind, err := unix.GetsockoptInt(pr.sock, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || kind != unix.AF_UNIX {
		return -1, errors.Join(errors.New("the descriptor is not the socket of a sigsegv trap"), err)
	}
	var byte1 [1]byte
	oob := make([]byte, unix.CmsgSpace(2*4))
	n, oobn, _, _, err := unix.Recvmsg(pr.sock, byte1[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("its trap socket is empty: %w", err)
	}
	var fds []int
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil && len(msgs) == 1 {
		fds, err = unix.ParseUnixRights(&msgs[0])
	}
	if err != nil || n != 1 || byte1[0] != area.Version || len(fds) != 2 {
		s.discard(fds...)
		return -1, errors.Join(fmt.Errorf("its trap socket brought %d descriptors and version %d, want 2 and %d", len(fds), byte1[0], area.Version), err)
	}
	pr.events = fds[1]
	if !isAnonymous(pr.events, "eventfd") { // reading from anything else could block
		s.discard(fds[0])
		return -1, errors.New("its trap socket brought no eventfd")
	}
	if err := unix.SetNonblock(pr.events, true); err != nil {
		s.discard(fds[0])
		return -1, fmt.Errorf("its eventfd: %w", err)
	}
	return fds[0], nil
}

// fds are the program's descriptors.
func (pr *segvProgram) fds() []int {
	if pr.events < 0 {
		return []int{pr.sock}
	}
	return []int{pr.sock, pr.events}
}

func (pr *segvProgram) close() {
	closeAll(pr.fds()...)
	pr.unmap()
}

func (pr *segvProgram) unmap() {
	if pr.area != nil {
		pr.area.Close()
	}
}

// unwatch hears no more of a program.
func (s *Sigsegv) unwatch(pr *segvProgram) {
	s.readiness.unwatch(pr.sock)
	s.readiness.unwatch(pr.events)
}

// Detach forgets a program. If it has not ended it is told to give up all access, and operations
// wait until it has: its threads wait from then on until the program ends. Pages stay. An unknown
// program is ignored.
func (s *Sigsegv) Detach(proc ProcID, _ bool) {
	pr := s.program(proc)
	if pr == nil {
		return
	}
	for i, id := range s.goneNews {
		if id == proc {
			s.goneNews = append(s.goneNews[:i], s.goneNews[i+1:]...)
			break
		}
	}
	if pr.gone {
		s.remove(pr)
		return
	}
	pr.leaving = true
	s.command(pr, area.Leave)
}

// remove drops a program that can't touch anything any more.
func (s *Sigsegv) remove(pr *segvProgram) {
	s.unwatch(pr)
	for i := range s.programs {
		if s.programs[i] == pr {
			s.programs = append(s.programs[:i], s.programs[i+1:]...)
			break
		}
	}
	pr.gone = true // for the jobs that know it
	pr.close()
}

// Close detaches all programs and closes the file. A second call does nothing.
func (s *Sigsegv) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	for _, pr := range s.programs {
		s.unwatch(pr)
		pr.close()
	}
	s.programs, s.pending, s.spare, s.goneNews = nil, nil, nil, nil
	err := s.mem.close()
	err = errors.Join(err, s.readiness.close())
	unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(s.level)), uintptr(len(s.level)))
	// Nothing may reach by these numbers what somebody else opens next.
	s.level, s.mem = nil, noMemfd
	return err
}

// program finds an attached program. There are few, so a scan beats a map.
func (s *Sigsegv) program(id ProcID) *segvProgram {
	for _, pr := range s.programs {
		if pr.id == id && !pr.leaving {
			return pr
		}
	}
	return nil
}

// command gives a program's agent a command and returns its number: it is carried out when
// Area.Done has reached that.
func (s *Sigsegv) command(pr *segvProgram, c uint64) uint64 {
	pr.queued++
	if len(pr.backlog) > 0 || !pr.area.Post(c) {
		pr.backlog = append(pr.backlog, c)
	}
	return pr.queued
}
