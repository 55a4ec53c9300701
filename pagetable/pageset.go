package pagetable

import (
	"iter"
	"math/bits"
)

// PageSet is a set of pages. It is mostly empty, and costs nothing then. Pages that lie together
// cost little more than a bit each. The zero PageSet has none. It is not safe for concurrent use.
type PageSet struct {
	words map[Page]uint64 // by page / 64; never 0
}

// Add adds a page.
func (s *PageSet) Add(p Page) {
	if s.words == nil {
		s.words = make(map[Page]uint64)
	}
	s.words[p/64] |= 1 << (p % 64)
}

// Has reports whether a page is in.
func (s *PageSet) Has(p Page) bool {
	return len(s.words) > 0 && s.words[p/64]&(1<<(p%64)) != 0
}

// HasSome reports whether one of count pages from first on is in. It looks at each.
func (s *PageSet) HasSome(first Page, count uint64) bool {
	for p := first; len(s.words) > 0 && p < first+Page(count); p++ {
		if s.Has(p) {
			return true
		}
	}
	return false
}

// Remove takes a page out, and reports whether it was in.
func (s *PageSet) Remove(p Page) bool {
	if !s.Has(p) {
		return false
	}
	s.mask(p/64, 1<<(p%64))
	return true
}

// RemoveRun takes count pages from first on out. It takes time in proportion to the set or to the
// run, whichever is shorter.
func (s *PageSet) RemoveRun(first Page, count uint64) {
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

// IsEmpty reports whether no page is in.
func (s *PageSet) IsEmpty() bool { return len(s.words) == 0 }

// Clear takes all pages out.
func (s *PageSet) Clear() { s.words = nil }

// mask takes the pages out that bits names in the word at.
func (s *PageSet) mask(at Page, bits uint64) {
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

// Within are the pages of the set among count pages from first on, in no order. The body must not
// change the set. It takes time in proportion to the set or to the run, whichever is shorter.
func (s *PageSet) Within(first Page, count uint64) iter.Seq[Page] {
	return func(yield func(Page) bool) {
		if len(s.words) == 0 || count == 0 {
			return
		}
		last := first + Page(count) - 1
		if uint64(last/64-first/64) < uint64(len(s.words)) {
			for at := first / 64; at <= last/64; at++ {
				if !pagesIn(at, s.words[at]&runBits(at, first, last), yield) {
					return
				}
			}
			return
		}
		for at, word := range s.words {
			if !pagesIn(at, word&runBits(at, first, last), yield) {
				return
			}
		}
	}
}

// pagesIn yields the pages that bits names in the word at.
func pagesIn(at Page, word uint64, yield func(Page) bool) bool {
	for ; word != 0; word &= word - 1 {
		if !yield(at*64 + Page(bits.TrailingZeros64(word))) {
			return false
		}
	}
	return true
}
