package barnes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"dsmd/bench/kernel"
)

const (
	// leafBodies is how many bodies a leaf holds before it is divided, as in the original program.
	leafBodies = 10
	// coordinateBits is the number of bits of an integer coordinate, and so the deepest level of
	// the tree.
	coordinateBits = 62
	// arenaGranule is the number of cells or leaves of which an arena is a multiple. Times
	// nodeBytes it is a multiple of every page size in use, so that no page holds nodes of two
	// threads.
	arenaGranule = 512
	nodeBytes    = 128
	// cellLocks is how many locks protect the cells: many more than threads, so that two threads
	// that change different cells seldom meet.
	cellLocks = 512
)

// ErrArena is returned when a thread needs more cells or leaves than were allocated.
var ErrArena = errors.New("out of tree nodes")

// errCrowded is returned for bodies that no cell can divide.
var errCrowded = fmt.Errorf("more than %d bodies at one point", leafBodies)

// A ref names a child of a cell: 0 none, i+1 cell i, -(i+1) leaf i. It is an index and no pointer,
// since shared memory holds none.
type ref int32

func cellRef(i int32) ref { return ref(i + 1) }
func leafRef(i int32) ref { return ref(-i - 1) }

func (r ref) cell() int32 { return int32(r) - 1 }
func (r ref) leaf() int32 { return -int32(r) - 1 }

// A cell is an inner node of the tree: a cube, and its eight octants. It is padded to nodeBytes.
type cell struct {
	pos  vector // of the centre of mass
	mass float64
	cost int64 // of all bodies in it
	// sub is read without a lock while the tree is built, hence atomically, and changed under the
	// lock of this cell.
	sub [8]int32
	_   [nodeBytes - 72]byte
}

// child returns octant k.
func (c *cell) child(k int) ref { return ref(atomic.LoadInt32(&c.sub[k])) }

func (c *cell) setChild(k int, r ref) { atomic.StoreInt32(&c.sub[k], int32(r)) }

// A leaf holds up to leafBodies bodies. It is padded to nodeBytes.
type leaf struct {
	pos    vector // of the centre of mass
	mass   float64
	cost   int64
	count  int32
	bodies [leafBodies]int32 // guarded by the lock of the cell above while the tree is built
	_      [nodeBytes - 84]byte
}

// A box is the cube that the tree divides.
type box struct {
	low  vector
	side float64
}

// newBox returns a cube slightly larger than the extent of all bodies, as the original program has
// it.
func newBox(low, high vector) box {
	side := 0.0
	for k := range low {
		side = max(side, high[k]-low[k])
	}
	margin := -side / 100000
	return box{low: low.Add(vector{margin, margin, margin}), side: float64(1.00002 * side)}
}

// coordinates are a position as integers, of coordinateBits bits.
type coordinates [3]int64

// locate returns the integer coordinates of p. The error is for a body that is not in the box, as
// when all bodies are at one point (and the box is empty) or the computation has diverged.
func (b box) locate(p vector) (coordinates, error) {
	var at coordinates
	for k := range p {
		x := (p[k] - b.low[k]) / b.side
		if !(0 <= x && x < 1) {
			return at, fmt.Errorf("position %v is outside the box of side %v at %v", p, b.side, b.low)
		}
		at[k] = int64(math.Floor((1 << coordinateBits) * x))
	}
	return at, nil
}

// octant returns which of a cell's octants the coordinates are in; the cell is at the given level,
// and the root at level 0. The numbering is a Gray code, so that octants with neighbouring numbers
// touch.
func (c coordinates) octant(level int) int {
	bit := coordinateBits - 1 - level
	index, flip := 0, 0
	for _, x := range c {
		flip ^= int(x >> bit & 1)
		index = index<<1 | flip
	}
	return index
}

// A tree is the octree in the memory that all threads share.
type tree struct {
	order  []int32 // the bodies' numbers in the input; every process has its own
	bodies []body
	cells  []cell // one arena after another; the root is cell 0
	leaves []leaf
	locks  []kernel.Mutex
}

// root is the number of the root cell, which is the first of the first thread's arena.
const root = 0

// arenaNodes is how many cells, and how many leaves, each thread may make for n bodies. A thread
// may have to make nearly all of them, if its bodies come last everywhere. Nodes that are never
// used take no memory.
func arenaNodes(n int) int {
	return (n/arenaGranule + 2) * arenaGranule
}

// A builder is one thread's part in building a tree.
type builder struct {
	*kernel.Thread
	*tree
	box        box
	first, end int32     // of this thread's arenas
	cellsAt    [][]int32 // the cells that this thread made, by level
	leavesMade []int32
	nextCell   int32
	nextLeaf   int32
}

func newBuilder(t *tree, thread *kernel.Thread, arena int) *builder {
	return &builder{Thread: thread, tree: t, first: int32(thread.Index * arena), end: int32((thread.Index + 1) * arena)}
}

// reset forgets the last tree. The thread that owns the root makes it anew; the others must not
// look at the tree until they have met it at a barrier.
func (b *builder) reset() {
	b.nextCell, b.nextLeaf = b.first, b.first
	b.leavesMade = b.leavesMade[:0]
	for level := range b.cellsAt {
		b.cellsAt[level] = b.cellsAt[level][:0]
	}
	if b.first == root {
		b.newCell(0)
	}
}

// room ends the thread if the next node of an arena lies beyond its end.
func (b *builder) room(next int32) {
	if next == b.end {
		b.Check(ErrArena, "using all its %d cells or leaves", b.end-b.first)
	}
}

func (b *builder) newCell(level int) int32 {
	b.room(b.nextCell)
	i := b.nextCell
	b.nextCell++
	b.cells[i] = cell{}
	for len(b.cellsAt) <= level {
		b.cellsAt = append(b.cellsAt, nil)
	}
	b.cellsAt[level] = append(b.cellsAt[level], i)
	return i
}

func (b *builder) newLeaf() int32 {
	b.room(b.nextLeaf)
	i := b.nextLeaf
	b.nextLeaf++
	b.leaves[i] = leaf{}
	b.leavesMade = append(b.leavesMade, i)
	return i
}

// build makes a tree of the given bodies that only this thread sees, and then merges it into the
// tree of all. Nearly all insertions happen so without a lock or another node's page, because the
// bodies of a thread are near each other. (Shan and Singh call this PARTREE: "Parallel tree
// building on a range of shared address space multiprocessors", IPPS 1998. The original program
// inserts each body into the tree of all.)
func (b *builder) build(bodies []int32) {
	private := b.newCell(0)
	for _, number := range bodies {
		b.insert(number, private, 0, b.unshared)
	}
	b.mergeCell(private, root, 0)
}

// locking says which lock protects a cell: one of all threads', or none for a cell that only this
// thread sees.
type locking func(cell int32) kernel.Mutex

func (b *builder) shared(cell int32) kernel.Mutex { return b.locks[int(cell)%len(b.locks)] }

func (b *builder) unshared(int32) kernel.Mutex { return noLock{} }

// noLock protects what only one thread sees.
type noLock struct{}

func (noLock) Lock(context.Context) error { return nil }
func (noLock) Unlock() error              { return nil }

// mergeCell moves what is in cell from, which only this thread sees, into cell into, which all see.
// Both are at the given level and stand for the same cube. It begins with another octant in each
// thread, so that they do not meet at once.
func (b *builder) mergeCell(from, into int32, level int) {
	octants := len(b.cells[from].sub)
	for i := range octants {
		octant := (i + int(b.first)/arenaGranule) % octants
		mine := b.cells[from].child(octant)
		b.cells[from].setChild(octant, 0)
		if mine != 0 {
			b.merge(mine, into, octant, level)
		}
	}
}

// merge moves the node mine, which only this thread sees, to an octant of cell into, which all see
// and which is at the given level.
func (b *builder) merge(mine ref, into int32, octant, level int) {
	there := b.cells[into].child(octant)
	if there <= 0 {
		b.Locked(b.shared(into), func() { there = b.mergeBelow(mine, into, octant, level) })
	}
	switch {
	case there == 0:
	case mine > 0:
		b.mergeCell(mine.cell(), there.cell(), level+1)
	default:
		for _, number := range b.leaves[mine.leaf()].empty() {
			b.insert(number, there.cell(), level+1, b.shared)
		}
	}
}

// mergeBelow does it where there is no cell, under the lock of cell into. If there is one by now,
// it is returned, and nothing was moved.
func (b *builder) mergeBelow(mine ref, into int32, octant, level int) (there ref) {
	above := &b.cells[into]
	there = above.child(octant)
	switch {
	case there > 0:
		return there
	case there == 0:
		above.setChild(octant, mine)
		return 0
	case mine > 0:
		// The leaf that is there goes into the cell that comes, which nobody else sees yet.
		for _, number := range b.leaves[there.leaf()].empty() {
			b.insert(number, mine.cell(), level+1, b.unshared)
		}
		above.setChild(octant, mine)
		return 0
	}
	own, other := &b.leaves[mine.leaf()], &b.leaves[there.leaf()]
	if own.count+other.count <= leafBodies {
		for _, number := range own.empty() {
			other.put(number)
		}
		return 0
	}
	divided := b.divide(there.leaf(), level+1)
	for _, number := range own.empty() {
		b.insert(number, divided, level+1, b.unshared)
	}
	above.setChild(octant, cellRef(divided))
	return 0
}

// locate returns the integer coordinates of a body.
func (b *builder) locate(number int32) coordinates {
	at, err := b.box.locate(b.bodies[number].pos)
	b.Check(err, "locating body %d", number)
	return at
}

// insert puts a body into the tree below a cell of the given level. It descends without locks
// through cells that are there, which is right since a child that is a cell never changes while the
// tree is built, and takes the lock of the cell that it changes.
func (b *builder) insert(number, parent int32, level int, locks locking) {
	at := b.locate(number)
	for ; ; level++ {
		octant := at.octant(level)
		child := b.cells[parent].child(octant)
		if child <= 0 {
			b.Locked(locks(parent), func() { child = b.insertBelow(number, parent, octant, level) })
		}
		if child <= 0 {
			return
		}
		parent = child.cell()
	}
}

// insertBelow puts the body into the leaf that is the octant of cell parent, at the given level,
// under that cell's lock. If there is a cell by now, or must be because the leaf is full, the body
// is not inserted and the cell is returned.
func (b *builder) insertBelow(number, parent int32, octant, level int) (child ref) {
	above := &b.cells[parent]
	child = above.child(octant)
	switch {
	case child > 0:
		return child
	case child == 0:
		made := b.newLeaf()
		b.leaves[made].put(number)
		above.setChild(octant, leafRef(made))
		return leafRef(made)
	case b.leaves[child.leaf()].count < leafBodies:
		b.leaves[child.leaf()].put(number)
		return child
	}
	divided := b.divide(child.leaf(), level+1)
	above.setChild(octant, cellRef(divided))
	return cellRef(divided)
}

func (l *leaf) put(number int32) {
	l.bodies[l.count] = number
	l.count++
}

// empty takes all bodies out of the leaf and returns them.
func (l *leaf) empty() []int32 {
	bodies := l.bodies
	count := l.count
	l.count = 0
	return bodies[:count]
}

// divide makes a cell of the given level with the bodies of a leaf. The leaf itself becomes one of
// the cell's leaves. Nobody else sees the cell before it is complete.
func (b *builder) divide(leaf int32, level int) int32 {
	if level == coordinateBits {
		b.Check(errCrowded, "at %v", b.bodies[b.leaves[leaf].bodies[0]].pos)
	}
	made := b.newCell(level)
	reused := false
	for _, number := range b.leaves[leaf].empty() {
		octant := b.locate(number).octant(level)
		child := b.cells[made].child(octant)
		if child == 0 {
			into := leaf
			if reused {
				into = b.newLeaf()
			}
			reused = true
			child = leafRef(into)
			b.cells[made].setChild(octant, child)
		}
		b.leaves[child.leaf()].put(number)
	}
	return made
}

// deepest is the deepest level at which this thread has made a cell, or -1.
func (b *builder) deepest() int {
	for level := len(b.cellsAt) - 1; level >= 0; level-- {
		if len(b.cellsAt[level]) > 0 {
			return level
		}
	}
	return -1
}

// weighLeaves computes the centres of mass of the leaves that this thread has made. It sorts their
// bodies first, by their numbers in the input: a leaf holds the same bodies in whatever order they
// were inserted, and sorting makes all sums over them the same, too. So the results do not depend
// on the number of threads, nor on where bodies lie in memory.
func (b *builder) weighLeaves() {
	for _, i := range b.leavesMade {
		l := &b.leaves[i]
		if l.count == 0 {
			continue // It was merged into another node, and belongs to no cell.
		}
		bodies := l.bodies[:l.count]
		slices.SortFunc(bodies, func(a, c int32) int { return cmp.Compare(b.order[a], b.order[c]) })
		for _, number := range bodies {
			p := &b.bodies[number]
			l.mass += p.mass
			l.cost += p.cost
			l.pos = l.pos.Add(p.pos.Scaled(p.mass))
		}
		l.pos = l.pos.Over(l.mass)
	}
}

// weighCells computes the centres of mass of the cells of one level that this thread has made. All
// nodes of the levels below must be finished.
func (b *builder) weighCells(level int) {
	if level >= len(b.cellsAt) {
		return
	}
	for _, i := range b.cellsAt[level] {
		c := &b.cells[i]
		for k := range c.sub {
			child := c.child(k)
			if child == 0 {
				continue
			}
			pos, mass, cost := b.weight(child)
			c.mass += mass
			c.cost += cost
			c.pos = c.pos.Add(pos.Scaled(mass))
		}
		if c.mass > 0 { // Cells that were merged into others are empty.
			c.pos = c.pos.Over(c.mass)
		}
	}
}

// weight returns the centre of mass, the mass and the cost of a node.
func (t *tree) weight(r ref) (vector, float64, int64) {
	if r > 0 {
		c := &t.cells[r.cell()]
		return c.pos, c.mass, c.cost
	}
	l := &t.leaves[r.leaf()]
	return l.pos, l.mass, l.cost
}

// share appends to list the bodies whose work begins in [low, high), when the work of all bodies,
// in the order of the tree, is laid end to end. Bodies that are near in space are near in this
// order, so that a share is a compact region ("costzones").
func (t *tree) share(list []int32, low, high int64) []int32 {
	return t.shareBelow(list, cellRef(root), 0, low, high)
}

// shareBelow does it for the bodies below r, whose work begins at start.
func (t *tree) shareBelow(list []int32, r ref, start, low, high int64) []int32 {
	if r < 0 {
		l := &t.leaves[r.leaf()]
		for _, number := range l.bodies[:l.count] {
			if start >= low && start < high {
				list = append(list, number)
			}
			start += t.bodies[number].cost
		}
		return list
	}
	c := &t.cells[r.cell()]
	for k := range c.sub {
		child := c.child(k)
		if child == 0 {
			continue
		}
		_, _, cost := t.weight(child)
		// The last body of a node may have no cost, hence the comparison with equality.
		if start+cost >= low && start < high {
			list = t.shareBelow(list, child, start, low, high)
		}
		start += cost
	}
	return list
}
