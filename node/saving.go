package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dsmd/internal/attach"
	"dsmd/internal/diskio"
	"dsmd/pagetable"
)

// saving is the pages of one checkpoint.
type saving struct {
	by             *program // nil: it has gone
	closer         *closer
	id, base       [16]byte
	inPlace        bool // pages are written to the files in which they begin
	order          attach.Order
	orderFile      int
	data           int
	starts         []uint64 // of each run: which page of the order its first is
	bits           []uint64 // of the order's pages: those that are saved, here or elsewhere
	twice          bool     // bits are those that are saved here and elsewhere
	begun, awaited uint64   // tickets of the open calls; 0: none
	over           bool

	copied []pagetable.Page // that are in other files, and not in memory
	batch  []*diskio.Transfer
	flying int // transfers that are not over
	// fetching is how many of them are reads of the spill file.
	fetching int
	starved  bool
	// slots is how many the file has, as far as this reactor has used it; of inPlace, how many
	// pages were written.
	slots   uint64
	entries []byte
	err     error

	looking
	sharing
}

// looking is which pages are looked at.
type looking struct {
	copies bool // those of which this node is not the owner, too
	run    int  // where the look goes on
	page   uint64
}

// sharing is what the reactors of a daemon have to know of each other.
type sharing struct {
	// next is the first slot that no reactor has taken.
	next *atomic.Uint64
	// handed: the other reactors have the file.
	handed bool
	// parts is how many of the other reactors have not done what they were told last.
	parts int
	// report tells the reactor that leads how far this one's part of its checkpoint is; nil: this
	// one leads.
	report func(func(k *checkpointer, s *saving))
}

// readOrder reads which pages are to be saved.
func (s *saving) readOrder(pages uint64) error {
	if err := inMemory(s.orderFile); err != nil {
		return fmt.Errorf("the order of a checkpoint: %w", err)
	}
	head := make([]byte, 8)
	if _, err := unix.Pread(s.orderFile, head, 0); err != nil {
		return fmt.Errorf("read the order of a checkpoint: %w", err)
	}
	n, err := attach.RunsIn(head)
	if err != nil {
		return err
	}
	runs := make([]byte, 16*n)
	if got, err := unix.Pread(s.orderFile, runs, 8); got != len(runs) && n > 0 {
		return fmt.Errorf("the order of a checkpoint ends after %d runs of %d: %w", got/16, n, orEnd(err))
	}
	if s.order, err = attach.DecodeOrder(runs, pages); err != nil {
		return err
	}
	sum := uint64(0)
	for _, r := range s.order.Runs {
		s.starts = append(s.starts, sum)
		sum += r.Count
	}
	s.bits = make([]uint64, sum/64+1)
	return nil
}

// orEnd is what a read that ends early has met.
func orEnd(err error) error {
	if err == nil {
		return errors.New("the file ends there")
	}
	return err
}

// readBits reads which pages need not be saved here.
func (s *saving) readBits() error {
	b := make([]byte, 8*len(s.bits))
	if n, err := unix.Pread(s.orderFile, b, s.order.BitsAt()); n != len(b) {
		return fmt.Errorf("the order of a checkpoint has %d bytes of bits, %d are wanted: %w", n, len(b), orEnd(err))
	}
	for i := range s.bits {
		s.bits[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return nil
}

func (s *saving) writeBits() error {
	b := make([]byte, 0, 8*len(s.bits))
	for _, word := range s.bits {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return writeAll(s.orderFile, b, s.order.BitsAt())
}

// writeAll writes all of b, of which a system call takes less than 2 GiB.
func writeAll(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if err != nil && err != unix.EINTR {
			return err
		}
		b, at = b[max(n, 0):], at+int64(max(n, 0))
	}
	return nil
}

// savedTwice are the pages that another node saves, too.
func (s *saving) savedTwice(yield func(pagetable.Page) bool) {
	for i, r := range s.order.Runs {
		for p := range r.Count {
			if at := s.starts[i] + p; s.twice && s.bits[at/64]&(1<<(at%64)) != 0 && !yield(pagetable.Page(r.First+p)) {
				return
			}
		}
	}
}

// enter notes where a page is.
func (s *saving) enter(page pagetable.Page, crc uint32, slot uint64) {
	i, exact := slices.BinarySearchFunc(s.order.Runs, uint64(page), func(r attach.Run, p uint64) int { return int(int64(r.First) - int64(p)) })
	if !exact {
		i--
	}
	s.entries = attach.AppendEntry(s.entries, attach.Entry{Run: uint32(i), CRC: crc, Page: uint64(page) - s.order.Runs[i].First, Slot: slot})
}

// close closes the files, once.
func (s *saving) close() {
	for _, fd := range []*int{&s.data, &s.orderFile} {
		if *fd >= 0 {
			s.closer.close(*fd)
		}
		*fd = -1
	}
	s.bits, s.entries, s.batch = nil, nil, nil
}
