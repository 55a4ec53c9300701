package node

import (
	"cmp"
	"slices"

	"dsmd/internal/attach"
	"dsmd/pagetable"
)

// mostFought bounds the allocations that a Stats call is told of.
const mostFought = 8

// maxFoughtName bounds how much of an allocation's name it is told, in bytes.
const maxFoughtName = 200

// fought counts a page that was taken by a writer before any program here had synchronised.
func (x *extents) fought(page pagetable.Page) {
	if i := x.search(page); i < len(x.list) && x.list[i].first <= page {
		x.list[i].taken++
	}
}

// foughtIn lists the allocations whose pages were fought for most. Those that programs have called the same, in different jobs, are one.
func (n *Node) foughtIn() []attach.Counter {
	sums := map[string]uint64{}
	for _, x := range n.extents.list {
		if x.taken > 0 {
			name := plainName(x.name)
			sums[name[:min(len(name), maxFoughtName)]] += x.taken
		}
	}
	var list []attach.Counter
	for name, taken := range sums {
		list = append(list, attach.Counter{Name: attach.FoughtIn + name, Value: taken})
	}
	slices.SortFunc(list, func(a, b attach.Counter) int {
		return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), mostFought)]
}
