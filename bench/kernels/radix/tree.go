package radix

import (
	"fmt"

	"dsmd/bench/kernel"
)

// counts are how many keys have each digit.
type counts [digits]int64

// sums are what a node of the tree holds about the threads below it. It is 16 KiB long, whole pages
// on most machines, so that nodes share none.
type sums struct {
	each counts // keys with this digit
	upTo counts // keys with this digit or a lower one
}

// A tree adds the counts of all threads. Its leaves are the threads. On each level two neighbouring
// nodes have a node above them; one that is left over at the end of a level is its own upper node.
// The right-hand child's thread does the adding, when the left-hand one has arrived.
type tree struct {
	nodes  []sums
	widths []int // number of nodes on each level, from the leaves up
	bases  []int // index of the first node of each level
	meets  []kernel.Barrier
}

// treeSize is the number of nodes of a tree of so many leaves.
func treeSize(leaves int) int {
	size := leaves
	for leaves > 1 {
		leaves = (leaves + 1) / 2
		size += leaves
	}
	return size
}

// newTree makes a tree with a leaf for each thread.
func newTree(team *kernel.Team) *tree {
	size := treeSize(team.Total)
	t := &tree{nodes: kernel.Share[sums](team, "radix/tree", size), meets: make([]kernel.Barrier, size)}
	for base, width := 0, team.Total; ; width = (width + 1) / 2 {
		t.widths, t.bases = append(t.widths, width), append(t.bases, base)
		base += width
		if width == 1 {
			break
		}
	}
	for node := team.Total; node < size; node++ {
		t.meets[node] = team.Pair(fmt.Sprintf("radix/node%d", node))
	}
	return t
}

// node finds node i of a level; a node without a sibling lies where its only child does.
func (t *tree) node(level, i int) *sums {
	for level > 0 && 2*i+1 >= t.widths[level-1] {
		level, i = level-1, 2*i
	}
	return &t.nodes[t.bases[level]+i]
}

// add enters a thread's counts and climbs. When all threads have returned, the tree is complete.
func (t *tree) add(thread *kernel.Thread, own *counts) {
	leaf := t.node(0, thread.Index)
	leaf.each = *own
	leaf.upTo[0] = own[0]
	for digit := 1; digit < digits; digit++ {
		leaf.upTo[digit] = leaf.upTo[digit-1] + own[digit]
	}
	for level, i := 0, thread.Index; t.widths[level] > 1; level, i = level+1, i/2 {
		if i%2 == 0 && i+1 == t.widths[level] {
			continue
		}
		thread.Wait(t.meets[t.bases[level+1]+i/2], "of two nodes of the tree of counts")
		if i%2 == 0 {
			return
		}
		left, right, above := t.node(level, i-1), t.node(level, i), t.node(level+1, i/2)
		for digit := range digits {
			above.each[digit] = left.each[digit] + right.each[digit]
			above.upTo[digit] = left.upTo[digit] + right.upTo[digit]
		}
	}
}

// places says where a thread's first key of each digit goes: after all keys with lower digits, and
// after those with the same digit of the threads before it. The latter are below the left-hand
// siblings on the way up.
func (t *tree) places(thread int) *counts {
	places := new(counts)
	for level, i := 0, thread; t.widths[level] > 1; level, i = level+1, i/2 {
		if i%2 == 0 {
			continue
		}
		for digit, n := range t.node(level, i-1).each {
			places[digit] += n
		}
	}
	root := t.node(len(t.widths)-1, 0)
	for digit := 1; digit < digits; digit++ {
		places[digit] += root.upTo[digit-1]
	}
	return places
}
