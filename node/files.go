package node

import (
	"fmt"
	"runtime"

	"dsmd/internal/attach"

	"golang.org/x/sys/unix"
)

// files are those that a program has given to its daemon (OpFile) and that no call has taken. They
// have numbers, from 1.
type files struct {
	closer *closer
	last   uint32
	open   map[uint32]int
}

// keepFile keeps the descriptor that has come with a call. The error is the program's.
func (p *program) keepFile(c *attach.Call) error {
	fd, err := p.stream.TakeFD()
	if err != nil {
		return err
	}
	f := &p.files
	if len(f.open) >= attach.MaxFiles {
		f.closer.close(fd)
		return fmt.Errorf("%w: more than %d files that no call takes", attach.ErrMalformed, attach.MaxFiles)
	}
	if f.open == nil {
		f.open = map[uint32]int{}
	}
	f.last++
	f.open[f.last] = fd
	p.answer(&attach.Reply{Ticket: c.Ticket, Rank: f.last})
	return nil
}

// take takes a file over.
func (f *files) take(number uint32) (fd int, err error) {
	fd, is := f.open[number]
	if !is {
		return -1, fmt.Errorf("%w: file %d, which was not given", attach.ErrMalformed, number)
	}
	delete(f.open, number)
	return fd, nil
}

// given is a file that a program has given. It is left to be closed when nobody refers to it any
// more. It is no os.File, which asks whether a file is readable that is non-blocking, and closes it
// itself: a file system may never answer.
type given struct {
	fd     int
	closer *closer
}

func (g given) close() { g.closer.close(g.fd) }

// takeRun takes files over that have successive numbers.
func (f *files) takeRun(first, count uint32) (list []*given, err error) {
	for i := range count {
		fd, err := f.take(first + i)
		if err != nil {
			return nil, err
		}
		g := &given{fd, f.closer}
		runtime.AddCleanup(g, given.close, *g)
		list = append(list, g)
	}
	return list, nil
}

// takeTwo takes two files over, or none.
func (f *files) takeTwo(a, b uint32) (fdA, fdB int, err error) {
	if fdA, err = f.take(a); err != nil {
		return -1, -1, err
	}
	if fdB, err = f.take(b); err != nil {
		f.open[a] = fdA
		return -1, -1, err
	}
	return fdA, fdB, nil
}

// abandon leaves the files open until this process ends. So whoever has given the end of a pipe
// learns of that.
func (f *files) abandon() { clear(f.open) }

// drop closes files that are not needed; 0 is none.
func (f *files) drop(numbers ...uint32) error {
	for _, n := range numbers {
		if n == 0 {
			continue
		}
		fd, err := f.take(n)
		if err != nil {
			return err
		}
		f.closer.close(fd)
	}
	return nil
}

func (f *files) close() {
	for _, fd := range f.open {
		f.closer.close(fd)
	}
	f.open = nil
}

// inMemory checks that a descriptor is of a memory file. Reading that holds up nobody, which a file
// on a disk or on another machine may do for ever.
func inMemory(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return fmt.Errorf("it is in no memory file: %w", err)
	}
	return nil
}

// refuseCall answers a call that can't be done, with the reason.
func (p *program) refuseCall(c *attach.Call, why error) {
	p.answer(&attach.Reply{Ticket: c.Ticket, Status: attach.StatusUnknown, Payload: []byte(clip(why.Error()))})
}
