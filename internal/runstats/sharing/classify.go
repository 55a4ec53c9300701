package sharing

import (
	"cmp"
	"slices"
)

// Of what is counted, a little is noise: who fills in memory at first stores to all of it once.
const (
	// minReturns is how often a page has come back to a node at least, to say that it travels.
	minReturns = 4
	// minorUse: a node, lock or word that is used this many times less than the one that is used
	// most does not count.
	minorUser, minorWord = 16, 8
	// sharedPart is which part of accesses goes to words of others where words are shared, as one
	// of so many.
	sharedStores, sharedLoads = 4, 2
	// mostGap is how many words in a row are left out at most of a page that is written whole, and
	// wholeGaps which part of it all of them are at most, as one of so many.
	mostGap, wholeGaps = 4, 8
)

// finding is why a page travels.
type finding struct {
	*page
	kind    Kind
	parties []party
	shared  []bool  // words to which several parties store
	guards  []guard // that guard different words; nil if that is not the reason
}

// party is a node that uses a page much.
type party struct {
	*user
	words counts // to which it stores; nil: none
}

// counts is for each word how often it was seen changed, or has faulted. Words beyond its end have
// not been seen.
type counts []uint64

func (c counts) of(word uint32) uint64 {
	if int(word) < len(c) {
		return c[word]
	}
	return 0
}

func (c *counts) add(word uint32, n uint64) {
	if more := int(word) + 1 - len(*c); more > 0 {
		*c = append(*c, make(counts, more)...)
	}
	(*c)[word] += n
}

// extents are the places that have faulted much, in order.
func (p *places) extents() (list []extent) {
	for _, x := range p.at {
		if !minor(x.count, p.most(), minorWord) {
			list = append(list, extent{uint64(x.offset), uint64(x.offset) + 1})
		}
	}
	slices.SortFunc(list, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	return list
}

func (p *places) most() (most uint32) {
	for _, x := range p.at {
		most = max(most, x.count)
	}
	return most
}

// minor reports whether n is so much less than the most that it says nothing.
func minor[T uint32 | uint64](n, most, times T) bool { return n < most/times || n == 0 }

// classify finds out why a page travels; nil if it does not, or if nobody knows.
func (p *page) classify(scanned func(node int) bool) *finding {
	if p.returns < minReturns {
		return nil
	}
	f := &finding{page: p, parties: p.parties()}
	if len(f.parties) < 2 || f.writers() == 0 {
		return nil
	}
	f.contest()
	stores, loads := f.onOthers(scanned)
	switch f.guards = p.disjointGuards(); {
	case f.guards != nil:
		f.kind = False
	case stores:
		f.kind = True
	case loads:
		f.kind = Communication
	case !f.known():
		return nil
	default:
		f.kind = False
	}
	return f
}

// parties are the nodes that use the page much.
func (p *page) parties() (list []party) {
	most := uint64(0)
	for _, u := range p.users {
		most = max(most, u.stores.faults+u.loads.faults)
	}
	for _, u := range p.users {
		if !minor(u.stores.faults+u.loads.faults, most, minorUser) {
			list = append(list, party{user: u, words: u.words(most)})
		}
	}
	slices.SortFunc(list, func(a, b party) int { return a.node - b.node })
	return list
}

// words are those that a node stores to much, with how often that was seen. Nodes that have used
// the page most have faulted there so many times.
func (u *user) words(most uint64) (words counts) {
	if minor(max(u.stores.faults, u.left), most, minorUser) {
		return nil
	}
	for _, x := range u.stores.at {
		words.add(x.offset/wordBytes, uint64(x.count))
	}
	for w, n := range u.written {
		if n > 0 {
			words.add(uint32(w), uint64(n))
		}
	}
	highest := uint64(0)
	for _, n := range words {
		highest = max(highest, n)
	}
	for w, n := range words {
		if minor(n, highest, minorWord) {
			words[w] = 0
		}
	}
	return words
}

// contest finds the words to which several parties store. Where the faults show that they store to
// different parts of a word, nobody else does.
func (f *finding) contest() {
	width := 0
	for i := range f.parties {
		width = max(width, len(f.parties[i].words))
	}
	f.shared = make([]bool, width)
	for w := range f.shared {
		most, sum := uint64(0), uint64(0)
		for i := range f.parties {
			n := f.parties[i].words.of(uint32(w))
			most, sum = max(most, n), sum+n
		}
		f.shared[w] = sum > most && 4*(sum-most) >= most && !f.divided(uint32(w))
	}
}

// divided reports whether all who store to a word have faulted at different bytes of it.
func (f *finding) divided(word uint32) bool {
	taken := map[uint32]bool{}
	for i := range f.parties {
		p := &f.parties[i]
		if p.words.of(word) == 0 {
			continue
		}
		there := p.stores.within(word)
		if len(there) == 0 {
			return false
		}
		for _, offset := range there {
			if taken[offset] {
				return false
			}
		}
		for _, offset := range there {
			taken[offset] = true
		}
	}
	return true
}

// within are the places in a word that have faulted much, in order.
func (p *places) within(word uint32) (offsets []uint32) {
	for _, x := range p.at {
		if x.offset/wordBytes == word && !minor(x.count, p.most(), minorWord) {
			offsets = append(offsets, x.offset)
		}
	}
	slices.Sort(offsets)
	return offsets
}

// isShared reports whether several parties store to a word.
func (f *finding) isShared(word uint32) bool { return int(word) < len(f.shared) && f.shared[word] }

// onOthers reports whether many stores, and many loads, are on words to which others store.
func (f *finding) onOthers(scanned func(node int) bool) (stores, loads bool) {
	var changes, theirs, faults, storesThere, loadsThere, allLoads uint64
	for i := range f.parties {
		p := &f.parties[i]
		for w, n := range p.words {
			changes += n
			if f.shared[w] {
				theirs += n
			}
		}
		for _, x := range p.stores.at {
			faults += uint64(x.count)
			if f.isShared(x.offset / wordBytes) {
				storesThere += uint64(x.count)
			}
		}
		if f.writers() == 1 && len(p.words) > 0 {
			continue // what it reads itself is not why others come
		}
		for _, x := range p.loads.at {
			allLoads += uint64(x.count)
			// Who goes through all of a page comes in at its first word, whatever it needs.
			if f.othersAt(i, x.offset) || f.inGap(x.offset/wordBytes) || x.offset < wordBytes && scanned(p.node) {
				loadsThere += uint64(x.count)
			}
		}
	}
	stores = theirs > 0 && (sharedStores*theirs >= changes || sharedStores*storesThere >= faults)
	all := allLoads
	if f.writers() > 1 {
		all += faults
	}
	return stores, loadsThere > 0 && sharedLoads*loadsThere >= all
}

// known reports whether it is known what the nodes write that do. Of the first times that is known
// only where they have faulted.
func (f *finding) known() bool {
	return f.writers() > 1 || !slices.ContainsFunc(f.parties, func(p party) bool { return len(p.words) > 0 && p.written == nil })
}

// inGap reports whether a word is one of a few that one node leaves out of a page which it writes
// whole otherwise, as a stencil leaves out the edges of its grid. Who reads the page whole may come
// in there: a copy begins with the last word.
func (f *finding) inGap(word uint32) bool {
	if f.writers() != 1 {
		return false
	}
	width := uint32(f.bytes() / wordBytes)
	isGap := func(w uint32) bool { return w < width && !f.others(-1, w) } // below 0 it wraps around
	written, gap := uint32(0), uint32(0)
	for w := range width {
		if !isGap(w) {
			written++
		}
	}
	for w := word; isGap(w); w++ {
		gap++
	}
	for w := word - 1; isGap(w); w-- {
		gap++
	}
	return gap <= mostGap && wholeGaps*(width-written) <= width
}

// others reports whether a party other than the one given stores to a word.
func (f *finding) others(but int, word uint32) bool {
	for i := range f.parties {
		if i != but && f.parties[i].words.of(word) > 0 {
			return true
		}
	}
	return false
}

// othersAt is others for the byte at an offset. In a word that is divided, a party's own part is
// nobody else's.
func (f *finding) othersAt(but int, offset uint32) bool {
	word := offset / wordBytes
	if !f.others(but, word) {
		return false
	}
	return !f.divided(word) || !slices.Contains(f.parties[but].stores.within(word), offset)
}

func (f *finding) writers() (n int) {
	for i := range f.parties {
		if len(f.parties[i].words) > 0 {
			n++
		}
	}
	return n
}

// disjointGuards are locks that guard different words of the page: nil if there are none. Some
// faults may count for a lock that was given back before, so a word belongs to the lock with most
// of its faults.
func (p *page) disjointGuards() []guard {
	most := uint64(0)
	for i := range p.guards {
		most = max(most, p.guards[i].uses.faults)
	}
	words, owner := map[uint32]uint64{}, map[uint32]int{}
	all, owned := uint64(0), uint64(0)
	for i := range p.guards {
		g := &p.guards[i]
		if minor(g.uses.faults, most, minorUser) {
			continue
		}
		all += g.uses.faults
		for w, n := range g.uses.words() {
			if n > words[w] {
				words[w], owner[w] = n, i
			}
		}
	}
	for _, n := range words {
		owned += n
	}
	if 4*owned < 3*all {
		return nil // who knows what each guards
	}
	return p.owners(owner)
}

// owners are the locks to which words belong, with those words alone; nil if there are not several.
func (p *page) owners(owner map[uint32]int) (list []guard) {
	for i := range p.guards {
		own := guard{lock: p.guards[i].lock}
		for _, x := range p.guards[i].uses.at {
			if of, known := owner[x.offset/wordBytes]; known && of == i {
				own.uses.at = append(own.uses.at, x)
				own.uses.faults += uint64(x.count)
			}
		}
		if len(own.uses.at) > 0 {
			list = append(list, own)
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// writes are the bytes to which a party stores. Of a word that it has part of, those that faulted.
func (f *finding) writes(i int) (list []extent) {
	p := &f.parties[i]
	for w, n := range p.words {
		if n == 0 {
			continue
		}
		word := uint32(w)
		if there := p.stores.within(word); len(there) > 0 && !f.shared[w] && f.others(i, word) {
			for _, offset := range there {
				list = append(list, extent{uint64(offset), uint64(offset) + 1})
			}
			continue
		}
		list = append(list, extent{uint64(w) * wordBytes, uint64(w+1) * wordBytes})
	}
	return list
}
