package runstats

import (
	"cmp"
	"slices"
	"strconv"
)

// MaxAllocations is how many Allocations know at most, unless Most says less.
const MaxAllocations = 1 << 14

// Allocations are those of a job by their pages, as its ranks tell of them. The zero value has
// none. They belong to one goroutine. T is an *Allocation, or a pointer to what embeds one.
type Allocations[T interface{ allocation() *Allocation }] struct {
	Most   int // 0: MaxAllocations
	byPage []T // in order; none overlaps another
}

func (a *Allocation) allocation() *Allocation { return a }

// Add makes an allocation known. Those that it overlaps are taken to be freed. One that cannot be,
// or that is one too many, is left away.
func (m *Allocations[T]) Add(t T) {
	a := t.allocation()
	if a.Pages == 0 || a.PageBytes == 0 || a.First+a.Pages < a.First {
		return
	}
	first, last := m.search(a.First), m.search(a.First+a.Pages-1)
	if last < len(m.byPage) && m.byPage[last].allocation().First < a.First+a.Pages {
		last++
	}
	if first < last || len(m.byPage) < cmp.Or(m.Most, MaxAllocations) {
		m.byPage = slices.Replace(m.byPage, first, last, t)
	}
}

// search is the place of the first allocation that ends behind a page.
func (m *Allocations[T]) search(page uint64) int {
	i, _ := slices.BinarySearchFunc(m.byPage, page, func(t T, page uint64) int {
		if a := t.allocation(); a.First+a.Pages <= page {
			return -1
		}
		return 1
	})
	return i
}

// Find returns the allocation that a page belongs to; nil: none is known.
func (m *Allocations[T]) Find(page uint64) (found T) {
	if i := m.search(page); i < len(m.byPage) && m.byPage[i].allocation().First <= page {
		return m.byPage[i]
	}
	return found
}

// Len is how many are known.
func (m *Allocations[T]) Len() int { return len(m.byPage) }

// Element is what lies at a byte of a page of the allocation, as counts[123].field.
func (a *Allocation) Element(page uint64, offset uint32) string {
	if a.ElemBytes == 0 {
		return a.Name
	}
	at := (page-a.First)*a.PageBytes + uint64(offset)
	text := a.Name + "[" + strconv.FormatUint(at/a.ElemBytes, 10) + "]"
	for i := range a.Fields {
		if f := &a.Fields[i]; at%a.ElemBytes-f.Offset < f.Bytes { // below Offset it wraps around
			return text + "." + f.Name
		}
	}
	return text
}
