package backing

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"dsmd/internal/diskio"
	"dsmd/pagetable"
)

// file is the spill file: a file on a disk with a slot for each page that is there. It has no name:
// it is gone when the daemon is, however that ends.
type file struct {
	fd        int
	pageBytes int
	slots     slots
}

// CheckDir checks that a directory can have the file: it is there, this user may write to it, and
// it is not in memory, for pages there would take what they are to leave.
func CheckDir(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("backing: look at the directory %s: %w", dir, err)
	}
	if fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.RAMFS_MAGIC {
		return fmt.Errorf("backing: the directory %s is in memory (tmpfs): give one on a disk", dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("backing: make a file in the directory %s: %w: give this user the permission to write there, or name another directory", dir, err)
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
		return nil, false, fmt.Errorf("backing: make a file in the directory %s: %w", dir, err)
	}
	return &file{fd: fd, pageBytes: pageBytes}, direct, nil
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

// at is the place of a slot.
func (f *file) at(slot uint32) Location {
	return Location{FD: f.fd, Offset: int64(slot) * int64(f.pageBytes)}
}

// slot is the slot at a place of this file.
func (f *file) slot(at *Location) uint32 { return uint32(at.Offset / int64(f.pageBytes)) }

// has is whether a place is in this file. Without a spill file f is nil.
func (f *file) has(at *Location) bool { return f != nil && at.FD == f.fd }

// free gives the slot at a place back. Places in other files have none.
func (f *file) free(at *Location) {
	if f.has(at) {
		f.slots.free(f.slot(at))
	}
}

// Wrong tells why contents that were read from a place are of no use, if they are not.
func (at *Location) Wrong(tr *diskio.Transfer) error {
	if tr.Err == nil && at.Check && tr.CRC != at.CRC {
		return fmt.Errorf("%w: %08x at byte %d, want %08x", ErrDamaged, tr.CRC, at.Offset, at.CRC)
	}
	return tr.Err
}

// check tells why the contents of a page that were read are of no use, if they are not.
func (f *file) check(p pagetable.Page, at *Location, tr *diskio.Transfer) error {
	err := at.Wrong(tr)
	switch {
	case err == nil:
		return nil
	case *at == Elsewhere:
		return fmt.Errorf("backing: %w", err)
	case f.has(at):
		return fmt.Errorf("backing: read the spill file: %w", err)
	}
	advice := ""
	if at.Check { // it is of a checkpoint
		advice = " (dsmd checkpoint verify says what else is damaged)"
	}
	name, failed := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", at.FD))
	if failed != nil {
		name = "its file"
	}
	return fmt.Errorf("backing: read the contents of page %d from %s%s: %w", p, name, advice, err)
}

// close removes the file, if there is one.
func (f *file) close() error {
	if f == nil {
		return nil
	}
	return unix.Close(f.fd)
}

// slots are those of the file, and which are in use. The zero slots has none.
type slots struct {
	words []uint64 // a bit for each slot
	next  uint32   // where to look first: pages that leave together lie together
	used  int
	lent  map[uint32]lending
}

// lending is what is known of a slot that must stay as it is for a while.
type lending struct {
	count int  // how often it was lent, and not given back yet
	freed bool // it was freed meanwhile
}

// lend keeps a slot that is in use as it is until it is given back.
func (s *slots) lend(i uint32) {
	if s.lent == nil {
		s.lent = map[uint32]lending{}
	}
	l := s.lent[i]
	l.count++
	s.lent[i] = l
}

// giveBack ends what lend began.
func (s *slots) giveBack(i uint32) {
	l := s.lent[i]
	if l.count--; l.count > 0 {
		s.lent[i] = l
		return
	}
	delete(s.lent, i)
	if l.freed {
		s.free(i)
	}
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

// free has a slot be taken again, when it is not lent.
func (s *slots) free(i uint32) {
	if l, is := s.lent[i]; is {
		l.freed = true
		s.lent[i] = l
		return
	}
	s.words[i/64] &^= 1 << (i % 64)
	s.used--
}
