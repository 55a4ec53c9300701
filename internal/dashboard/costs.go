package dashboard

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"dsmd/internal/runstats"
)

const (
	// mostCostly is how many things are shown of those that cost most.
	mostCostly = 10
	// maxCosts bounds the things whose cost is known. Above it the cheaper half is forgotten.
	maxCosts = 2048
)

type costKey struct {
	kind runstats.Kind
	name string
}

type cost struct {
	count         uint64
	time, longest time.Duration
	at            string // where in the program the longest wait was
}

// costs are what was waited for, and how long.
type costs map[costKey]*cost

func (c costs) add(kind runstats.Kind, name string, waited time.Duration, at string) {
	key := costKey{kind, name}
	x := c[key]
	if x == nil {
		if len(c) == maxCosts {
			for _, cheap := range c.sorted()[maxCosts/2:] {
				delete(c, cheap)
			}
		}
		x = &cost{}
		c[key] = x
	}
	x.count++
	x.time += waited
	if waited > x.longest {
		x.longest, x.at = waited, at
	}
}

// sorted has the costliest first.
func (c costs) sorted() []costKey {
	return slices.SortedFunc(maps.Keys(c), func(a, b costKey) int {
		return cmp.Or(cmp.Compare(c[b].time, c[a].time), cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name))
	})
}
