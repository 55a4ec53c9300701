package agreement

import (
	"cmp"
	"slices"
)

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
	// processes are which processes those members are that were not there from the start; sorted by
	// node. Another one in its place is no member.
	processes []process
}

// process is a process that has come as a node: id, which is not 0, tells it from others that come,
// or came, as the same.
type process struct {
	node NodeID
	id   uint64
}

// processOf is which process a member is: 0 if it was there from the start.
func (v view) processOf(n NodeID) uint64 {
	if at, found := searchProcess(v.processes, n); found {
		return v.processes[at].id
	}
	return 0
}

// has reports whether a process is a member; one that was there from the start has the id 0.
func (v view) has(p process) bool { return contains(v.members, p.node) && v.processOf(p.node) == p.id }

// among are those of some processes that come as one of these nodes, or, if not, as none of them.
func among(all []process, nodes []NodeID, as bool) []process {
	return slices.DeleteFunc(slices.Clone(all), func(p process) bool { return contains(nodes, p.node) != as })
}

func searchProcess(sorted []process, n NodeID) (at int, found bool) {
	return slices.BinarySearchFunc(sorted, n, func(p process, n NodeID) int { return cmp.Compare(p.node, n) })
}

// insertProcess adds a process to a sorted list, in place of another of the same node.
func insertProcess(sorted []process, p process) []process {
	at, found := searchProcess(sorted, p.node)
	if found {
		sorted[at] = p
		return sorted
	}
	return slices.Insert(sorted, at, p)
}

// voters are those members that decide.
func (v view) voters() []NodeID { return without(v.members, v.leaving) }

func (v view) equal(w view) bool {
	return slices.Equal(v.members, w.members) && slices.Equal(v.leaving, w.leaving) && slices.Equal(v.processes, w.processes)
}

func (v view) clone() view {
	return view{slices.Clone(v.members), slices.Clone(v.leaving), slices.Clone(v.processes)}
}

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
	return slices.DeleteFunc(slices.Clone(view), func(n NodeID) bool { return contains(left, n) })
}

// isSubset reports whether all of part are in view.
func isSubset(part, view []NodeID) bool {
	return !slices.ContainsFunc(part, func(n NodeID) bool { return !contains(view, n) })
}
