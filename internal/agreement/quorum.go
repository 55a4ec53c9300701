package agreement

import "slices"

// NodeID names a node, from 0 to MaxNodes-1.
type NodeID uint16

// MaxNodes bounds the members of a view.
const MaxNodes = 1024

// isQuorum reports whether the nodes of part that are in view are a quorum of it: more than half of
// it, or half of it with its lowest number. Preconditions: both are sorted, without repetitions.
func isQuorum(part, view []NodeID) bool {
	count := 0
	for _, n := range part {
		if contains(view, n) {
			count++
		}
	}
	return 2*count > len(view) || 2*count == len(view) && len(view) > 0 && contains(part, view[0])
}

// view is who is in the cluster.
type view struct {
	members []NodeID // sorted; nil: no view
	leaving []NodeID // of them, sorted: they give away what they have, and decide nothing any more
}

// voters are those members that decide.
func (v view) voters() []NodeID { return without(v.members, v.leaving) }

func (v view) equal(w view) bool {
	return slices.Equal(v.members, w.members) && slices.Equal(v.leaving, w.leaving)
}

func (v view) clone() view { return view{slices.Clone(v.members), slices.Clone(v.leaving)} }

func contains(sorted []NodeID, n NodeID) bool {
	_, found := slices.BinarySearch(sorted, n)
	return found
}

// insert adds a node to a sorted list, once.
func insert(sorted []NodeID, n NodeID) []NodeID {
	at, found := slices.BinarySearch(sorted, n)
	if found {
		return sorted
	}
	return slices.Insert(sorted, at, n)
}

// without returns the members of view that are not in left.
func without(view, left []NodeID) []NodeID {
	var rest []NodeID
	for _, n := range view {
		if !contains(left, n) {
			rest = append(rest, n)
		}
	}
	return rest
}

// isSubset reports whether all of part are in view.
func isSubset(part, view []NodeID) bool {
	return !slices.ContainsFunc(part, func(n NodeID) bool { return !contains(view, n) })
}
