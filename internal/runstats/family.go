package runstats

import (
	"fmt"
	"slices"
	"strings"
)

// familySize is how many things make a family: locks, say, whose names differ in digits only.
// Stripes of one table are what a reader knows as one thing, and each of them costs little.
const familySize = 4

// pattern is the name of the family that a name would belong to: with a star for each number.
func pattern(name string) string {
	var b strings.Builder
	number := false
	for i := range len(name) {
		c := name[i]
		digit := c >= '0' && c <= '9'
		switch {
		case !digit:
			b.WriteByte(c)
		case !number:
			b.WriteByte('*')
		}
		number = digit
	}
	return b.String()
}

// family tells families apart.
type family struct {
	kind Kind
	name string
}

// families are the large ones among items.
func families(items []Item) map[family]bool {
	names := map[family]map[string]bool{}
	large := map[family]bool{}
	for _, x := range items {
		f := x.family()
		if names[f] == nil {
			names[f] = map[string]bool{}
		}
		names[f][x.Name] = true
		if x.Of > 0 || len(names[f]) >= familySize {
			large[f] = true
		}
	}
	return large
}

func (x *Item) family() family { return family{x.Kind, pattern(x.Name)} }

// group makes one item of those of each large family. Its name has stars for the digits.
func group(items []Item, large map[family]bool) []Item {
	at := map[family]int{} // in list
	var list []Item
	for _, x := range items {
		f := x.family()
		if !large[f] {
			list = append(list, x)
			continue
		}
		i, known := at[f]
		if !known {
			i, at[f] = len(list), len(list)
			list = append(list, Item{Kind: x.Kind, Name: f.name})
		}
		list[i].add(&x)
	}
	return list
}

// add adds what other things have cost.
func (x *Item) add(y *Item) {
	x.Count, x.Time, x.Taken, x.Of = x.Count+y.Count, x.Time+y.Time, x.Taken+y.Taken, x.Of+max(y.Of, 1)
}

// largest are the items that took longest, at most so many of each kind. The last of a kind that
// has more is all the rest of it, so that what is waited for in all stays right.
func largest(items []Item, most int) (list []Item) {
	kept := map[Kind]int{}
	rest := map[Kind]*Item{}
	for _, x := range slices.SortedFunc(slices.Values(group(items, families(items))), compare) {
		if x.Name = Short(x.Name); kept[x.Kind] < most {
			kept[x.Kind]++
			list = append(list, x)
			continue
		}
		if rest[x.Kind] == nil {
			rest[x.Kind] = &Item{Kind: x.Kind}
		}
		rest[x.Kind].add(&x)
	}
	for _, kind := range []Kind{Memory, Lock, Barrier, Reduction, Prefetch} {
		if x := rest[kind]; x != nil {
			list = append(list, *x)
		}
	}
	return list
}

// title is what an item is called in a report.
func (x *Item) title() string {
	switch {
	case x.Name == "" && x.Of > 0:
		return fmt.Sprintf("%d others", x.Of)
	case x.Of > 0:
		return fmt.Sprintf("%q (%d)", x.Name, x.Of)
	}
	return fmt.Sprintf("%q", x.Name)
}
