package pagetable

// pageSet is a set of pages. It is mostly empty, and costs nothing then. Pages that lie together
// cost little more than a bit each.
type pageSet struct {
	words map[Page]uint64 // by page / 64; never 0
}

func (s *pageSet) add(p Page) {
	if s.words == nil {
		s.words = make(map[Page]uint64)
	}
	s.words[p/64] |= 1 << (p % 64)
}

func (s *pageSet) has(p Page) bool {
	return len(s.words) > 0 && s.words[p/64]&(1<<(p%64)) != 0
}

// hasSome reports whether one of count pages from first on is in. It looks at each.
func (s *pageSet) hasSome(first Page, count uint64) bool {
	for p := first; len(s.words) > 0 && p < first+Page(count); p++ {
		if s.has(p) {
			return true
		}
	}
	return false
}

// remove takes a page out, and reports whether it was in.
func (s *pageSet) remove(p Page) bool {
	if !s.has(p) {
		return false
	}
	s.mask(p/64, 1<<(p%64))
	return true
}

// removeRun takes count pages from first on out. It takes time in proportion to the set or to the
// run, whichever is shorter.
func (s *pageSet) removeRun(first Page, count uint64) {
	if len(s.words) == 0 || count == 0 {
		return
	}
	last := first + Page(count) - 1
	if uint64(last/64-first/64) < uint64(len(s.words)) {
		for at := first / 64; at <= last/64; at++ {
			s.mask(at, runBits(at, first, last))
		}
		return
	}
	for at := range s.words {
		s.mask(at, runBits(at, first, last))
	}
}

// mask takes the pages out that bits names in the word at.
func (s *pageSet) mask(at Page, bits uint64) {
	left := s.words[at] &^ bits
	if left == 0 {
		delete(s.words, at)
		return
	}
	s.words[at] = left
}

// runBits are the bits of pages first to last in the word at.
func runBits(at, first, last Page) uint64 {
	low, high := max(first, at*64), min(last, at*64+63)
	if low > high {
		return 0
	}
	return ^uint64(0) >> (63 - (high - low)) << (low % 64)
}
