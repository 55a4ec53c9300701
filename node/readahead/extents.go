package readahead

import (
	"cmp"
	"slices"
	"sort"

	"dsmd/pagetable"
)

// Extents are the allocations that programs of this node know: beyond them nothing is asked for.
// The zero Extents has none.
type Extents struct {
	list []Extent // in ascending order, disjoint
}

// Extent is an allocation.
type Extent struct {
	First, End pagetable.Page
	Name       string
	// Owned, Copies and Spilled are for who counts the pages of each allocation; 0 at first.
	Owned, Copies, Spilled uint64
}

// search returns the first extent that ends after page.
func (x *Extents) search(page pagetable.Page) int {
	return sort.Search(len(x.list), func(i int) bool { return page < x.list[i].End })
}

// Add notes an allocation. Known ones are ignored.
func (x *Extents) Add(first pagetable.Page, count uint64, name string) {
	i := x.search(first)
	if count == 0 || i < len(x.list) && x.list[i].First <= first {
		return
	}
	x.list = append(x.list, Extent{})
	copy(x.list[i+1:], x.list[i:])
	x.list[i] = Extent{First: first, End: first + pagetable.Page(count), Name: name}
}

// Drop forgets the allocation that begins at a page.
func (x *Extents) Drop(first pagetable.Page) {
	if i := x.search(first); i < len(x.list) && x.list[i].First == first {
		x.list = append(x.list[:i], x.list[i+1:]...)
	}
}

// Find is the allocation with a page, or nil. It is valid until the next Add or Drop.
func (x *Extents) Find(page pagetable.Page) *Extent {
	if i := x.search(page); i < len(x.list) && x.list[i].First <= page {
		return &x.list[i]
	}
	return nil
}

// Of is the allocation with a page; that page alone if it is in none.
func (x *Extents) Of(page pagetable.Page) Extent {
	if in := x.Find(page); in != nil {
		return *in
	}
	return Extent{First: page, End: page + 1}
}

// Largest are so many of the allocations with most pages, those with more first.
func (x *Extents) Largest(most int) []Extent {
	all := slices.SortedStableFunc(slices.Values(x.list), func(a, b Extent) int { return cmp.Compare(b.End-b.First, a.End-a.First) })
	return all[:min(most, len(all))]
}

// From are the allocations that end after a page, in ascending order: all of them, from page 0 on.
// They are valid until the next Add or Drop.
func (x *Extents) From(page pagetable.Page) []Extent { return x.list[x.search(page):] }
