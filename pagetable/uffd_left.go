package pagetable

import (
	"math/bits"
	"slices"

	"golang.org/x/sys/unix"
)

// A program that is detached may live on: it was cut off for what it has done, or has closed its
// connection. What was mapped in it stays mapped, and when the last descriptor of its userfaultfd
// is closed nothing traps there any more. So the table keeps its own descriptor until the address
// space has ended, maps nothing more, and protects all that was mapped against stores: at once, or,
// where that is very much, in the course of later polls, and before then every stretch of which a
// page is given up. Nobody lifts that protection again.

const (
	// stretchBytes is the unit in which a table knows what was mapped in a program: a page of the
	// kernel's page tables. A program has one bit for each, 1 MiB for the largest region.
	stretchBytes = 2 << 20
	// sealAtOnce is how many stretches Detach protects before it returns, and sealEachPoll how many
	// a poll. A full one takes some 80 µs, so Detach keeps the table's owner for at most 20 ms, and
	// polls protect the rest later.
	sealAtOnce   = 256
	sealEachPoll = 32
	// sealTries is how often a program may answer that its address space is changing. Only a
	// program that has opened its userfaultfd by rules of its own does that. It could have mapped
	// the file by itself as well, so the table lets it go.
	sealTries = 4096
)

// stretches is a set of stretches of the region.
type stretches []uint64

func newStretches(regionBytes uint64) stretches {
	return make(stretches, (regionBytes+64*stretchBytes-1)/(64*stretchBytes))
}

// add takes in the stretches of which some bytes lie at [first, end) of the region.
func (s stretches) add(first, end uint64) {
	for at := first / stretchBytes; at <= (end-1)/stretchBytes; at++ {
		s[at/64] |= 1 << (at % 64)
	}
}

func (s stretches) has(at uint64) bool { return s[at/64]&(1<<(at%64)) != 0 }
func (s stretches) remove(at uint64)   { s[at/64] &^= 1 << (at % 64) }

// next is the first stretch in the set that is at least from.
func (s stretches) next(from uint64) (at uint64, ok bool) {
	for word := from / 64; word < uint64(len(s)); word++ {
		left := s[word]
		if word == from/64 {
			left &= ^uint64(0) << (from % 64)
		}
		if left != 0 {
			return word*64 + uint64(bits.TrailingZeros64(left)), true
		}
	}
	return 0, false
}

// noteGiven notes that pages are about to be mapped in a program.
func (s *programs) noteGiven(pr *program, p Page, count int) {
	pr.given.add(s.offset(p), s.offset(p)+uint64(count)*uint64(s.pageBytes))
}

// letGo keeps a program that may live after it was detached.
func (s *programs) letGo(pr *program) {
	pr.gone = true
	s.left = append(s.left, pr)
	s.sealing++
	s.sealOn(sealAtOnce)
}

// sealOn protects so many more stretches of what was mapped in programs that were detached.
func (s *programs) sealOn(budget int) {
	for i := 0; i < len(s.left) && s.sealing > 0; i++ {
		pr := s.left[i]
		if pr.sealed {
			continue
		}
		for ; budget > 0 && !pr.sealed; budget-- {
			at, some := pr.given.next(pr.sealedTo)
			if !some {
				s.endSeal(pr)
				break
			}
			if s.seal(pr, at) != 0 {
				break // in the next poll
			}
			pr.sealedTo = at + 1
		}
	}
	s.reap()
}

// endSeal notes that there is nothing left to protect in a program.
func (s *programs) endSeal(pr *program) {
	if !pr.sealed {
		pr.sealed, pr.given = true, nil
		s.sealing--
	}
}

// sealPages protects neighbouring pages in the programs that were detached, so that the caller may
// give them up.
func (s *programs) sealPages(p Page, count int) unix.Errno {
	if s.sealing == 0 {
		return 0
	}
	first, last := s.offset(p)/stretchBytes, (s.offset(p+Page(count))-1)/stretchBytes
	for _, pr := range s.left {
		for at := first; at <= last && !pr.sealed; at++ {
			if !pr.given.has(at) {
				continue
			}
			if errno := s.seal(pr, at); errno != 0 {
				return errno
			}
		}
	}
	return 0
}

// seal protects one stretch in a program. If that has no address space any more there is nothing
// left to protect.
func (s *programs) seal(pr *program, at uint64) unix.Errno {
	start := uintptr(at * stretchBytes)
	switch errno := s.sealRange(pr, pr.base+start, min(stretchBytes, uintptr(s.pages)*s.pageBytes-start)); errno {
	case unix.EAGAIN:
		if pr.refused++; pr.refused < sealTries {
			return errno
		}
		s.endSeal(pr)
	case unix.ENOMEM:
		return errno
	case unix.ESRCH:
		pr.ended = true
		s.endSeal(pr)
	default: // done, or there is something else than our file
		pr.given.remove(at)
	}
	return 0
}

// sealRange protects what of a range is mapped from the file: the kernel stops where something is
// not, and the rest is looked at in halves.
func (s *programs) sealRange(pr *program, addr, length uintptr) unix.Errno {
	errno := pr.traps.WriteProtect(addr, length, true, false)
	if errno != unix.ENOENT || length <= s.osPage {
		if errno == unix.ENOENT {
			errno = 0
		}
		return errno
	}
	half := length / 2 &^ (s.osPage - 1)
	if errno := s.sealRange(pr, addr, half); errno != 0 {
		return errno
	}
	return s.sealRange(pr, addr+half, length-half)
}

// reap closes the descriptors of programs whose address space has ended.
func (s *programs) reap() {
	s.left = slices.DeleteFunc(s.left, func(pr *program) bool {
		if !pr.ended && pr.traps.WriteProtect(pr.base, s.osPage, true, false) != unix.ESRCH {
			return false
		}
		s.endSeal(pr)
		pr.traps.Close()
		return true
	})
}
