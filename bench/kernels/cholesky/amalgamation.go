package cholesky

import "slices"

// The machine for which the original reckons the cost of operations on supernodes: a miss of the
// cache takes as long as missCost operations, and a square of cacheEdge by cacheEdge numbers fits
// into the cache (of 16 KiB, its default).
const cacheEdge = 45

// missCost is a variable so that what is computed with it is rounded at every step, which constants
// are not.
var missCost = 4.74

// spend adds to a time what the original reckons for a supernode: for its elimination, for
// computing its contributions to others, and for adding them. The time is in operations. The terms
// are added one by one, as in the original: decisions hang on the sum's last bit.
func spend(time float64, width, height int) float64 {
	reckon := func(operations, misses float64) {
		time += (operations + float64(misses*missCost)) / (1.0 + missCost/cacheEdge)
	}
	below := height - width
	passes := (width + cacheEdge - 1) / cacheEdge
	triangle := below*below - below*(below-1)/2

	own := width*height - width*(width-1)/2
	reckon(float64(width*(width+1)*(2*width+1)/6+width*width*below), 2.0*float64(passes)/3*float64(own))

	passesBelow := (below + cacheEdge - 1) / cacheEdge
	misses := width*below + triangle
	if passes != 1 || passesBelow != 1 {
		misses = passesBelow*width*below + passes*triangle
	}
	reckon(float64(2*width*triangle), float64(misses))

	reckon(0, float64(2*triangle))
	return time
}

// An amalgamation joins supernodes with their parents. Each of its supernodes is known by the
// number of the lowest in the tree that has gone into it.
type amalgamation struct {
	list   []supernode
	into   []int // which supernode this one has been joined with, or itself
	next   []int // what comes after this one among what has gone into the same supernode, or none
	last   []int // of what has gone into this one
	width  []int
	height []int
}

// amalgamate joins supernodes with their parents wherever the original reckons that this saves
// time, although it adds elements that are zero. The supernodes are visited from the roots down,
// the last child first. It returns them with children before their parents, in which order they can
// be eliminated as well as in the matrix's: the factor has the same elements, and some zeros.
func amalgamate(list []supernode) []supernode {
	n := len(list)
	a := &amalgamation{
		list: list, into: make([]int, n), next: make([]int, n), last: make([]int, n), width: make([]int, n), height: make([]int, n),
	}
	var stack []int
	for i := range list {
		a.into[i], a.next[i], a.last[i] = i, none, i
		a.width[i], a.height[i] = list[i].width(), list[i].height
		if list[i].parent == none {
			stack = append(stack, i)
		}
	}
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], list[i].children...)
		for parent := a.parent(i); parent != none && a.saves(i, parent); parent = a.parent(i) {
			a.join(i, parent)
		}
	}
	return a.inOrder()
}

// find is the supernode into which one of the list has gone.
func (a *amalgamation) find(i int) int {
	for a.into[i] != i {
		a.into[i] = a.into[a.into[i]]
		i = a.into[i]
	}
	return i
}

func (a *amalgamation) parent(i int) int {
	parent := a.list[a.last[i]].parent
	if parent == none {
		return none
	}
	return a.find(parent)
}

// saves is whether less time is reckoned for child and parent as one supernode.
func (a *amalgamation) saves(child, parent int) bool {
	before := spend(spend(0, a.width[child], a.height[child]), a.width[parent], a.height[parent])
	return before > spend(0, a.width[child]+a.width[parent], a.width[child]+a.height[parent])
}

func (a *amalgamation) join(child, parent int) {
	a.into[parent] = child
	a.next[a.last[child]] = parent
	a.last[child] = a.last[parent]
	a.height[child] = a.width[child] + a.height[parent]
	a.width[child] += a.width[parent]
}

// inOrder is the supernodes that are left, children before parents.
func (a *amalgamation) inOrder() []supernode {
	var order, stack []int
	children := make([][]int, len(a.list))
	for i := range a.list {
		if a.into[i] != i {
			continue
		}
		if parent := a.parent(i); parent != none {
			children[parent] = append(children[parent], i)
		} else {
			stack = append(stack, i)
		}
	}
	// Parents before children, the last of these first, is the order wanted from its end.
	for len(stack) > 0 {
		i := stack[len(stack)-1]
		stack = append(stack[:len(stack)-1], children[i]...)
		order = append(order, i)
	}
	slices.Reverse(order)

	number, left := make([]int, len(a.list)), make([]supernode, len(order))
	for k, i := range order {
		number[i] = k
	}
	for k, i := range order {
		left[k] = supernode{height: a.height[i], parent: a.parent(i)}
		if left[k].parent != none {
			left[k].parent = number[left[k].parent]
		}
		for part := i; part != none; part = a.next[part] {
			left[k].columns = append(left[k].columns, a.list[part].columns...)
		}
	}
	connectSupernodes(left)
	return left
}
