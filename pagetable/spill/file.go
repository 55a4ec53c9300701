package spill

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

const (
	// workers read and write the file at a time.
	workers = 8
	// mostAtOnce is how many neighbouring pages one of them moves by one system call, at most.
	mostAtOnce = 64
	// slabPages is how many buffers are made at a time.
	slabPages = 64
)

// file is a file on a disk with a slot for each page that is there. It has no name: it is gone when
// the daemon is, however that ends.
type file struct {
	fd        int
	pageBytes int
	slots     slots
	slabs     [][]byte // memory of the buffers
	spare     [][]byte // buffers that are not in use
	event     *netio.Event
	news      atomic.Bool // the event was signalled; changed under mu

	mu       sync.Mutex
	more     sync.Cond   // for workers: waiting is not empty, or closed is set
	waiting  []*transfer // first come, first served
	finished []*transfer
	closed   bool
	running  sync.WaitGroup
}

// transfer is a page on its way to the file or from it.
type transfer struct {
	write bool
	slot  uint32
	buf   []byte
	err   error
	move  *move
}

// OnDisk checks that a directory is there and not in memory: pages there would take what they are
// to leave.
func OnDisk(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("spill: look at the directory %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("spill: the directory %s is in memory (tmpfs): give one on a disk", dir)
	}
	return nil
}

// create makes the file in a directory. direct: reads and writes bypass the page cache, whose
// memory would be what the pages have left.
func create(dir string, pageBytes int) (f *file, direct bool, err error) {
	fd, err := open(dir, unix.O_DIRECT)
	direct = err == nil
	if errors.Is(err, unix.EINVAL) {
		fd, err = open(dir, 0)
	}
	if err != nil {
		return nil, false, fmt.Errorf("make a file in the directory %s: %w", dir, err)
	}
	f = &file{fd: fd, pageBytes: pageBytes}
	f.more.L = &f.mu
	if f.event, err = netio.NewEvent(); err != nil {
		unix.Close(fd)
		return nil, false, err
	}
	for range workers {
		f.running.Go(f.work)
	}
	return f, direct, nil
}

// open opens a file without a name. Where the file system has none, the name is removed at once.
func open(dir string, flags int) (int, error) {
	flags |= unix.O_RDWR | unix.O_CLOEXEC
	fd, err := unix.Open(dir, flags|unix.O_TMPFILE, 0o600)
	if err != unix.EOPNOTSUPP && err != unix.EISDIR {
		return fd, err
	}
	named, err := os.CreateTemp(dir, "dsmd-spill-")
	if err != nil {
		return -1, err
	}
	defer named.Close()
	defer os.Remove(named.Name())
	return unix.Open(named.Name(), flags, 0)
}

// buffer returns memory for a page, which begins at a page of the system's, as direct input and
// output wants it. Errors: out of memory.
func (f *file) buffer() ([]byte, error) {
	if len(f.spare) == 0 {
		slab, err := unix.Mmap(-1, 0, slabPages*f.pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("spill: memory for pages on their way: %w", err)
		}
		f.slabs = append(f.slabs, slab)
		f.spare = slices.AppendSeq(f.spare, slices.Chunk(slab, f.pageBytes))
	}
	b := f.spare[len(f.spare)-1]
	f.spare = f.spare[:len(f.spare)-1]
	return b, nil
}

// recycle takes a buffer back.
func (f *file) recycle(b []byte) { f.spare = append(f.spare, b) }

// submit begins transfers. Those of neighbouring slots that follow each other are made together.
func (f *file) submit(list ...*transfer) {
	f.mu.Lock()
	f.waiting = append(f.waiting, list...)
	f.mu.Unlock()
	f.more.Signal()
}

// work is a worker.
func (f *file) work() {
	for {
		f.mu.Lock()
		for len(f.waiting) == 0 && !f.closed {
			f.more.Wait()
		}
		if f.closed {
			f.mu.Unlock()
			return
		}
		n := f.neighbours()
		list := append([]*transfer(nil), f.waiting[:n]...)
		f.waiting = f.waiting[n:]
		rest := len(f.waiting) > 0
		f.mu.Unlock()
		if rest {
			f.more.Signal()
		}
		err := f.move(list)
		for _, t := range list {
			t.err = err
		}
		f.mu.Lock()
		f.finished = append(f.finished, list...)
		f.tellLocked()
		f.mu.Unlock()
	}
}

// tell makes the event readable.
func (f *file) tell() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tellLocked()
}

func (f *file) tellLocked() {
	f.news.Store(true)
	f.event.Signal()
}

// take returns the transfers that are over, and has the event wait for the next time.
func (f *file) take() []*transfer {
	if !f.news.Load() {
		return nil
	}
	f.mu.Lock() // who has told has also signalled then
	defer f.mu.Unlock()
	f.news.Store(false)
	f.event.Clear()
	list := f.finished
	f.finished = nil
	return list
}

// neighbours is how many of those that wait can be made by one system call. Preconditions: mu is
// held, and one waits.
func (f *file) neighbours() int {
	n := 1
	for first := f.waiting[0]; n < min(len(f.waiting), mostAtOnce); n++ {
		if next := f.waiting[n]; next.write != first.write || next.slot != first.slot+uint32(n) {
			break
		}
	}
	return n
}

// move makes transfers of neighbouring slots.
func (f *file) move(list []*transfer) error {
	bufs := make([][]byte, len(list))
	for i, t := range list {
		bufs[i] = t.buf
	}
	off := int64(list[0].slot) * int64(f.pageBytes)
	call := unix.Preadv
	if list[0].write {
		call = unix.Pwritev
	}
	for len(bufs) > 0 {
		n, err := call(f.fd, bufs, off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n < len(bufs[0]): // a page is not moved by halves, unless the disk is full
			return errShort
		}
		off += int64(n - n%f.pageBytes)
		bufs = bufs[n/f.pageBytes:]
	}
	return nil
}

var errShort = errors.New("the system has moved a part of a page only")

// read reads a page at once.
func (f *file) read(slot uint32, into []byte) error {
	buf, err := f.buffer()
	if err != nil {
		return err
	}
	err = f.move([]*transfer{{slot: slot, buf: buf}})
	copy(into, buf)
	f.recycle(buf)
	return err
}

// close ends the workers and removes the file.
func (f *file) close() error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.more.Broadcast()
	f.running.Wait()
	err := errors.Join(unix.Close(f.fd), f.event.Close())
	for _, slab := range f.slabs {
		err = errors.Join(err, unix.Munmap(slab))
	}
	return err
}

// slots are those of the file, and which are in use. The zero slots has none.
type slots struct {
	words []uint64 // a bit for each slot
	next  uint32   // where to look first: pages that leave together lie together
	used  int
}

// take returns a slot that was free.
func (s *slots) take() uint32 {
	all := uint32(len(s.words) * 64)
	for range all {
		if s.next >= all {
			s.next = 0
		}
		word := s.words[s.next/64]
		if word == ^uint64(0) && s.next%64 == 0 {
			s.next += 64
			if s.used == int(all) {
				break
			}
			continue
		}
		i := s.next
		s.next++
		if word&(1<<(i%64)) == 0 {
			s.words[i/64] |= 1 << (i % 64)
			s.used++
			return i
		}
	}
	s.words = append(s.words, 1)
	s.next = all + 1
	s.used++
	return all
}

// free gives a slot back.
func (s *slots) free(i uint32) {
	s.words[i/64] &^= 1 << (i % 64)
	s.used--
}
