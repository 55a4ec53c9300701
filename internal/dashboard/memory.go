package dashboard

import (
	"cmp"
	"slices"
	"time"

	"dsmd/internal/faultlog"
	"dsmd/internal/runstats"
)

const (
	// maxCells bounds the cells of a heat map; in a larger allocation one is several pages.
	maxCells = 2048
	// maxMaps bounds the heat maps: those of the allocations for which most was waited.
	maxMaps = 64
	// maxLive bounds the allocations that are known. Faults in others have no name.
	maxLive = 4096
	// maxSites bounds the lines of the program that are known of an allocation, and mostSites those
	// that are shown.
	maxSites, mostSites = 256, 4
)

// unnamed is where faults are that lie in no allocation that is known.
const unnamed = "(other memory)"

// memory is what is known by page.
type memory struct {
	live   []*allocation // by their first page; none overlaps another
	mapped []*allocation // those with a heat map
}

// allocation is what is known of an allocation.
type allocation struct {
	runstats.Allocation
	pagesPerCell uint64
	faults       [4]uint64 // by access
	waited       time.Duration
	cells        []cell // nil: it has no heat map
	sites        map[siteKey]uint64
}

// cell is what happened at some neighbouring pages.
type cell struct {
	faults [4]uint64 // by access
	waited time.Duration
	ranks  []rankFaults
}

// rankFaults is how many of the faults were of a group of ranks.
type rankFaults struct {
	group int
	count uint64
}

type siteKey struct {
	at    string
	write bool
}

// find is the allocation that has a page, or nil, and where it would be in live.
func (m *memory) find(page uint64) (*allocation, int) {
	i, exact := slices.BinarySearchFunc(m.live, page, func(a *allocation, page uint64) int { return cmp.Compare(a.First, page) })
	switch {
	case exact:
		return m.live[i], i
	case i > 0 && page-m.live[i-1].First < m.live[i-1].Pages:
		return m.live[i-1], i - 1
	}
	return nil, i
}

// add makes an allocation known, which every rank names. Those that it overlaps have been freed.
func (m *memory) add(a runstats.Allocation) {
	if a.Pages == 0 || a.PageBytes == 0 || a.First+a.Pages < a.First {
		return
	}
	same := func(x *allocation) bool { return x.First == a.First && x.Pages == a.Pages && x.Name == a.Name }
	if x, _ := m.find(a.First); x != nil && same(x) {
		return
	}
	m.live = slices.DeleteFunc(m.live, func(x *allocation) bool { return x.First < a.First+a.Pages && a.First < x.First+x.Pages })
	if len(m.live) == maxLive {
		return
	}
	x := &allocation{Allocation: a, pagesPerCell: (a.Pages-1)/maxCells + 1, sites: map[siteKey]uint64{}}
	if i := slices.IndexFunc(m.mapped, same); i >= 0 {
		x = m.mapped[i] // a rank names it late, or it came back
	}
	_, i := m.find(a.First)
	m.live = slices.Insert(m.live, i, x)
}

// fault counts a fault of a group of ranks, and is the name of the allocation.
func (m *memory) fault(group int, f *faultlog.Fault) (name string) {
	a, _ := m.find(f.Page)
	if a == nil {
		return unnamed
	}
	access := int(f.Access) % len(a.faults)
	a.faults[access]++
	a.waited += f.Waited
	if a.cells == nil && !m.makeMap(a) {
		return a.Name
	}
	c := &a.cells[(f.Page-a.First)/a.pagesPerCell]
	c.faults[access]++
	c.waited += f.Waited
	i := slices.IndexFunc(c.ranks, func(r rankFaults) bool { return r.group == group })
	if i < 0 {
		i, c.ranks = len(c.ranks), append(c.ranks, rankFaults{group: group})
	}
	c.ranks[i].count++
	return a.Name
}

// makeMap gives an allocation a heat map, if need be that of another one for which less was waited.
func (m *memory) makeMap(a *allocation) bool {
	if len(m.mapped) == maxMaps {
		least := slices.MinFunc(m.mapped, func(a, b *allocation) int { return cmp.Compare(a.waited, b.waited) })
		if least.waited >= a.waited {
			return false
		}
		least.cells = nil
		m.mapped = slices.DeleteFunc(m.mapped, func(x *allocation) bool { return x == least })
	}
	a.cells = make([]cell, (a.Pages-1)/a.pagesPerCell+1)
	m.mapped = append(m.mapped, a)
	return true
}

// site counts samples of a line of the program.
func (m *memory) site(s runstats.Site) {
	a, _ := m.find(s.Page)
	if a == nil {
		return
	}
	key := siteKey{s.At, s.Write}
	if _, known := a.sites[key]; known || len(a.sites) < maxSites {
		a.sites[key] += s.Count
	}
}
