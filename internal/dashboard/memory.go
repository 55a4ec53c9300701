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
	live   runstats.Allocations[*allocation]
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

// add makes an allocation known, which every rank names.
func (m *memory) add(a runstats.Allocation) {
	same := func(x *allocation) bool { return x.First == a.First && x.Pages == a.Pages && x.Name == a.Name }
	if x := m.live.Find(a.First); x != nil && same(x) {
		return
	}
	x := &allocation{Allocation: a, pagesPerCell: (a.Pages-1)/maxCells + 1, sites: map[siteKey]uint64{}}
	if i := slices.IndexFunc(m.mapped, same); i >= 0 {
		x = m.mapped[i] // a rank names it late, or it came back
	}
	m.live.Add(x)
}

// fault counts a fault of a group of ranks, and is the name of the allocation.
func (m *memory) fault(group int, f *faultlog.Fault) (name string) {
	a := m.live.Find(f.Page)
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
	a := m.live.Find(s.Page)
	if a == nil {
		return
	}
	key := siteKey{s.At, s.Write}
	if _, known := a.sites[key]; known || len(a.sites) < maxSites {
		a.sites[key] += s.Count
	}
}
