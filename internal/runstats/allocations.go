package runstats

import (
	"fmt"
	"slices"
)

// maxAllocations bounds what Allocations know.
const maxAllocations = 1 << 14

// Allocations are those of a job, as its ranks tell of them. The zero value has none. They belong
// to one goroutine.
type Allocations struct {
	byPage []Allocation // in order; none overlaps another
}

// Add makes an allocation known. Those that it overlaps are taken to be freed. One that cannot be,
// or that is one too many, is left away.
func (m *Allocations) Add(a Allocation) {
	if a.Pages == 0 || a.PageBytes == 0 || a.First+a.Pages < a.First {
		return
	}
	first, last := m.search(a.First), m.search(a.First+a.Pages-1)
	if last < len(m.byPage) && m.byPage[last].First < a.First+a.Pages {
		last++
	}
	if first < last || len(m.byPage) < maxAllocations {
		m.byPage = slices.Replace(m.byPage, first, last, a)
	}
}

// search is the place of the first allocation that ends behind a page.
func (m *Allocations) search(page uint64) int {
	i, _ := slices.BinarySearchFunc(m.byPage, page, func(a Allocation, page uint64) int {
		if a.First+a.Pages <= page {
			return -1
		}
		return 1
	})
	return i
}

// Find returns the allocation that a page belongs to; nil: none is known.
func (m *Allocations) Find(page uint64) *Allocation {
	if i := m.search(page); i < len(m.byPage) && m.byPage[i].First <= page {
		return &m.byPage[i]
	}
	return nil
}

// Element is what lies at a byte of a page of the allocation, as counts[123].field.
func (a *Allocation) Element(page uint64, offset uint32) string {
	if a.ElemBytes == 0 {
		return a.Name
	}
	at := (page-a.First)*a.PageBytes + uint64(offset)
	text := fmt.Sprintf("%s[%d]", a.Name, at/a.ElemBytes)
	for i := range a.Fields {
		if f := &a.Fields[i]; at%a.ElemBytes-f.Offset < f.Bytes { // below Offset it wraps around
			return text + "." + f.Name
		}
	}
	return text
}
