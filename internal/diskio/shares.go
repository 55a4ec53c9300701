package diskio

import "golang.org/x/sys/unix"

// Shares divide among files what there is of something, as requests at a time or memory. A file may
// never answer, nor may any other of its file system: a disk fails, or the machine that has it.
// What they have taken then does not come back. So a file takes more only while what it has, and
// what all files of its file system have, are together less than what is left: it has a third at
// most, and all of them half. So does the next file system with what is left then, and something is
// left even if several hang.
type Shares struct {
	free  int
	files map[int]*share // those that have something, by descriptor
	disks map[uint64]int // what the files of each file system have
}

// share is that of a file.
type share struct {
	disk uint64
	has  int
}

// NewShares has so much to divide.
func NewShares(most int) Shares {
	return Shares{free: most, files: map[int]*share{}, disks: map[uint64]int{}}
}

// Free is what nobody has.
func (s *Shares) Free() int { return s.free }

// of is the share of a file. That of one which has nothing is new: the descriptor may have been
// another's before.
func (s *Shares) of(fd int) *share {
	if f := s.files[fd]; f != nil {
		return f
	}
	return &share{disk: diskOf(fd)}
}

// May is whether a file may take some more.
func (s *Shares) May(fd int) bool {
	f := s.of(fd)
	return f.has+s.disks[f.disk] < s.free
}

// Take takes n for a file, which stays open until it has given that back.
func (s *Shares) Take(fd, n int) {
	f := s.of(fd)
	s.files[fd] = f
	f.has += n
	s.disks[f.disk] += n
	s.free -= n
}

// GiveBack gives back n of what a file has.
func (s *Shares) GiveBack(fd, n int) {
	f := s.files[fd]
	f.has -= n
	s.disks[f.disk] -= n
	s.free += n
	if f.has == 0 {
		delete(s.files, fd)
	}
	if s.disks[f.disk] == 0 {
		delete(s.disks, f.disk)
	}
}

// diskOf is the number of a file's file system, or 0. Nobody is asked for it who might hang.
func diskOf(fd int) uint64 {
	var file unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &file) != nil {
		return 0
	}
	return unix.Mkdev(file.Dev_major, file.Dev_minor)
}
