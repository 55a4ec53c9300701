package sharing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Groups that cost less than worthTelling of all waits for pages, and what is beyond the maxGroups
// that cost most, are left out.
const (
	maxGroups    = 20
	worthTelling = 0.01
)

// Result is what is known so far.
func (c *Collector) Result() Sharing {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Sharing{Groups: []Group{}, Faults: c.faults, Waited: c.waited, Forgotten: c.forgotten, Lost: c.lost}
	type same struct {
		memory string
		kind   Kind
		reason string
	}
	alike := map[same][]*finding{}
	for k, p := range c.pages {
		f := p.classify(func(node int) bool { return c.scanned(k, node) })
		if f != nil {
			k := same{kind: f.kind, reason: f.reason()}
			if p.memory != nil {
				k.memory = p.memory.Name
			}
			alike[k] = append(alike[k], f)
		}
	}
	for _, list := range alike {
		if g := c.group(list); g.Waited.Seconds() >= worthTelling*c.waited.Seconds() {
			s.Groups = append(s.Groups, g)
		}
	}
	slices.SortFunc(s.Groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Waited, a.Waited), cmp.Compare(a.Memory, b.Memory), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Advice, b.Advice))
	})
	s.Groups = s.Groups[:min(len(s.Groups), maxGroups)]
	return s
}

// scanned reports whether a node goes through the page as part of a longer way: it comes into the
// next page, or the one before, at its first word as well.
func (c *Collector) scanned(k key, node int) bool {
	for _, number := range []uint64{k.number - 1, k.number + 1} {
		p := c.pages[key{k.memory, number}]
		if p == nil {
			continue
		}
		for _, u := range p.users {
			if u.node == node && slices.ContainsFunc(u.loads.at, func(x place) bool { return x.offset < wordBytes && !minor(x.count, u.loads.most(), minorWord) }) {
				return true
			}
		}
	}
	return false
}

// reason tells findings of one kind apart that ask for different things to be done.
func (f *finding) reason() string {
	if f.kind != False {
		return ""
	}
	var locks []string
	for _, g := range f.guards {
		locks = append(locks, g.lock)
	}
	slices.Sort(locks)
	return fmt.Sprint(f.writers() > 1, strings.Join(locks, "\n"))
}

// group puts pages together.
func (c *Collector) group(list []*finding) Group {
	slices.SortFunc(list, func(a, b *finding) int {
		return cmp.Or(cmp.Compare(b.waited, a.waited), cmp.Compare(a.number, b.number))
	})
	f := list[0]
	g := Group{Kind: f.kind, Pages: len(list), Example: f.number, Advice: f.advice(len(list))}
	if f.memory != nil {
		g.Memory, g.Type, g.Example = f.memory.Name, f.memory.Type, f.number-f.memory.First
	}
	costs := map[int]Cost{}
	for _, f := range list {
		g.Faults += f.faults
		g.Waited += f.waited
		for _, x := range f.costs {
			costs[x.Rank] = x.plus(costs[x.Rank])
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(costs)) {
		g.Costs = append(g.Costs, costs[rank])
	}
	for i := range f.parties {
		g.Parties = append(g.Parties, c.party(f, i))
	}
	for _, x := range f.guards {
		g.Guards = append(g.Guards, Guard{x.lock, f.elements(x.uses.extents())})
	}
	return g
}

// party describes a party of a page.
func (c *Collector) party(f *finding, i int) Party {
	p := &f.parties[i]
	d := Party{Node: p.node, Stores: p.stores.faults, Loads: p.loads.faults, Writes: f.elements(f.writes(i))}
	for number, r := range c.ranks {
		if r.node == p.node {
			d.Ranks = append(d.Ranks, number)
		}
	}
	slices.Sort(d.Ranks)
	var stores, loads []line
	for _, l := range p.lines {
		if len(p.words) > 0 && (l.write || p.words.of(l.offset/wordBytes) > 0) {
			stores = append(stores, l)
		} else if !l.write {
			loads = append(loads, l)
		}
	}
	d.WriteAt = lineList(stores)
	if !minor(p.loads.faults, p.stores.faults, minorUser) {
		d.Reads, d.ReadAt = f.elements(p.loads.extents()), lineList(loads)
	}
	return d
}

// elements names some bytes of the page, which are in order.
func (f *finding) elements(bytes []extent) string {
	m := f.memory
	if len(bytes) == 0 {
		return ""
	}
	if m == nil || m.ElemBytes == 0 {
		var list []uint64
		for _, x := range bytes {
			list = append(list, x.from/wordBytes)
		}
		return "words " + ranges(slices.Compact(list))
	}
	return used(m, f.inMemory(bytes)).String()
}

// inMemory makes bytes of the page bytes of the allocation.
func (f *finding) inMemory(bytes []extent) []extent {
	start := (f.number - f.memory.First) * f.memory.PageBytes
	moved := make([]extent, len(bytes))
	for i, x := range bytes {
		moved[i] = extent{start + x.from, start + x.to}
	}
	return moved
}

// advice is what to do about a page, which is one of so many.
func (f *finding) advice(pages int) string {
	switch {
	case f.kind == Communication && pages == 1:
		return "none: this is what the ranks have to tell each other"
	case f.kind == Communication:
		return "none: this is what the ranks have to tell each other; dsm.Prefetch fetches all of it at once, before it is read"
	case f.kind == True:
		return "combine first: let each rank add up in memory of its own, and put the results together once, with dsm.Reduce or under a lock"
	case f.guards != nil:
		return "put what each lock guards on pages of its own: dsm.Isolate, or an allocation each"
	case f.writers() == 1:
		return "keep what is written apart from what others only read: dsm.Isolate, or an allocation each"
	}
	return f.separate(pages)
}

// separate is how to separate what several nodes write.
func (f *finding) separate(pages int) string {
	const padding = "give each rank a page of its own: pad to c.PageBytes(), or dsm.Isolate; or add up in a local variable, and store once"
	if f.memory == nil || f.memory.ElemBytes == 0 {
		return padding
	}
	var uses []use
	for i := range f.parties {
		if p := &f.parties[i]; len(p.words) > 0 {
			uses = append(uses, used(f.memory, f.inMemory(f.writes(i))))
		}
	}
	a, b := uses[0].all(), uses[1].all()
	switch {
	case len(f.memory.Fields) > 1 && meet(a, b):
		return "divide the struct by who writes its fields: an allocation for the fields of each writer"
	case pages == 1 && (f.memory.Pages == 1 || len(a)+len(b) <= fewElements):
		return padding
	case a[0] < b[len(b)-1] && b[0] < a[len(a)-1]:
		return "give each rank one contiguous block, which begins on a page, instead of elements here and there"
	}
	return fmt.Sprintf("let each rank's block begin on a page: round the division to multiples of %d elements", max(1, f.memory.PageBytes/f.memory.ElemBytes))
}

// fewElements is up to how many elements are padded rather than divided in another way.
const fewElements = 4

// meet reports whether two lists in order have something in common.
func meet(a, b []uint64) bool {
	return slices.ContainsFunc(a, func(x uint64) bool {
		_, found := slices.BinarySearch(b, x)
		return found
	})
}
