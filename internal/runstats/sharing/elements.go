package sharing

import (
	"fmt"
	"slices"
	"strings"

	"dsmd/internal/runstats"
)

// shownRanges is how many ranges of indices are shown.
const shownRanges = 3

// use is which elements of an allocation are used: for each of their fields, in order, the indices.
// An element that is no struct is its only field.
type use struct {
	memory  *runstats.Allocation
	indices [][]uint64
}

// extent is some bytes of an allocation.
type extent struct{ from, to uint64 }

// used returns which elements some bytes belong to. They are in order.
func used(m *runstats.Allocation, bytes []extent) use {
	u := use{memory: m, indices: make([][]uint64, max(1, len(m.Fields)))}
	for _, x := range bytes {
		for e := x.from / m.ElemBytes; e*m.ElemBytes < x.to; e++ {
			for i, f := range fields(m) {
				from := e*m.ElemBytes + f.Offset
				if from >= x.to || from+f.Bytes <= x.from {
					continue
				}
				if list := u.indices[i]; len(list) == 0 || list[len(list)-1] != e {
					u.indices[i] = append(list, e)
				}
			}
		}
	}
	return u
}

func fields(m *runstats.Allocation) []runstats.Field {
	if len(m.Fields) == 0 {
		return []runstats.Field{{Bytes: m.ElemBytes}}
	}
	return m.Fields
}

// all are the indices of elements of which any field is used.
func (u use) all() []uint64 {
	list := slices.Concat(u.indices...)
	slices.Sort(list)
	return slices.Compact(list)
}

// String is as Go would write it: points[0..7].x.
func (u use) String() string {
	var parts []string
	for done := map[string]bool{}; len(parts) < shownRanges; {
		i := slices.IndexFunc(u.indices, func(list []uint64) bool { return len(list) > 0 && !done[ranges(list)] })
		if i < 0 {
			break
		}
		which := ranges(u.indices[i])
		done[which] = true
		parts = append(parts, fmt.Sprintf("%s[%s]%s", u.memory.Name, which, u.fieldsOf(which)))
	}
	return strings.Join(parts, ", ")
}

// fieldsOf are the fields of which these elements are used: nothing if all are.
func (u use) fieldsOf(which string) string {
	var names []string
	for i, f := range u.memory.Fields {
		if len(u.indices[i]) > 0 && ranges(u.indices[i]) == which {
			names = append(names, f.Name)
		}
	}
	switch {
	case len(names) == len(u.memory.Fields):
		return ""
	case len(names) == 1:
		return "." + names[0]
	}
	return ".{" + strings.Join(names, ", ") + "}"
}

// ranges writes indices, which are in order: 0..7, 12, or 0, 4..60 for every fourth one.
func ranges(list []uint64) string {
	var parts []string
	for len(list) > 0 {
		if len(parts) == shownRanges {
			parts = append(parts, "…")
			break
		}
		n := regular(list)
		switch first, last := list[0], list[n-1]; {
		case n == 1:
			parts = append(parts, fmt.Sprint(first))
		case list[1] == first+1:
			parts = append(parts, fmt.Sprintf("%d..%d", first, last))
		default:
			parts = append(parts, fmt.Sprintf("%d, %d..%d", first, list[1], last))
		}
		list = list[n:]
	}
	return strings.Join(parts, ", ")
}

// regular is how many indices at the beginning have the same distance: 1 if that is no pattern.
func regular(list []uint64) int {
	if len(list) < 2 {
		return len(list)
	}
	n, step := 2, list[1]-list[0]
	for n < len(list) && list[n]-list[n-1] == step {
		n++
	}
	if step > 1 && n < 4 {
		return 1
	}
	return n
}
