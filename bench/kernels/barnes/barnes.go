// Package barnes is the Barnes-Hut benchmark: a galaxy simulation in three dimensions, after the
// program of that name in SPLASH-2 (Woo et al., ISCA 1995).
//
// Each of four time steps builds an octree of all bodies in shared memory, computes its centres of
// mass, divides the bodies among the threads so that all have about the same work and each a
// compact region (costzones), computes the force on each body by walking the tree, where a far cell
// counts as one mass, and moves the bodies.
//
// The tree is made in two stages: each thread builds one of its own bodies, without locks, and
// merges it into the tree of all, taking the lock of a cell for each octant that it changes.
//
// On pages this means: the tree is written by the threads that build it, each of which has an arena
// of cells and of leaves, and then read by all, nearly whole. The bodies are written once in a step
// by their threads. The input has them in no order, and in the original they stay in it, so that
// every page has bodies of all threads. Here they lie in memory in the order in which the first
// tree has them (Hu, Cox and Zwaenepoel, "Improving fine-grained irregular shared-memory benchmarks
// by data reordering", SC 2000): neighbours in space share pages, a thread's bodies are together,
// and since bodies move little in a step that stays so. Two things more help where regions meet.
// What only the owner of a body needs lies in another array than what everybody reads. And a thread
// keeps what it computes to itself until the end of the step, and then writes all its bodies in the
// order in which they lie in memory.
//
// In one thing this program is stricter than the original, where a thread moves its bodies while
// others may still be reading them, and where the cost of a body may change while the bodies are
// being divided: here a barrier lies between. And the bodies of a leaf are put in order. With that,
// the result does not depend on the number of threads or nodes, not by a bit.
package barnes

import (
	_ "embed" // for the facts of the original program
	"errors"
	"fmt"
	"math"
	"slices"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
)

const (
	steps = 4
	// agreement is the relative difference to the original program's figures that is allowed: its
	// figures differ by that much from one number of threads to another.
	agreement = 1e-6
)

//go:embed testdata/facts.json
var factsText []byte

var original = facts.Parse(factsText)

// Kernel is the benchmark "barnes". Its output is the positions of the bodies, x, y and z of each;
// the sizes' parameter is their number.
var Kernel = kernel.Kernel{
	Name:    "barnes",
	Summary: fmt.Sprintf("Barnes-Hut simulation of two star clusters, %d steps, octree built in shared memory, bodies divided by cost", steps),
	Sizes:   kernel.Sizes{Parameter: "bodies", Test: 1024, Default: 16384, Large: 65536, Min: 2, Max: 1 << 22},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

type problem struct{ n int }

// Verify compares bit for bit with the sequential version, and at the sizes where they are known
// with the figures of the original program.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got), original.Check(p.n, got.Figures, agreement))
}

// Prepare has each thread store its block of the bodies, and note their extent.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	arena := arenaNodes(p.n)
	bodies, motions := plummer(p.n)
	order, err := orderInSpace(bodies)
	if err != nil {
		return nil, err
	}
	r := &run{
		tree: tree{
			order:  order,
			bodies: kernel.Share[body](t, "barnes/bodies", p.n),
			cells:  kernel.Share[cell](t, "barnes/cells", t.Total*arena),
			leaves: kernel.Share[leaf](t, "barnes/leaves", t.Total*arena),
			locks:  t.Mutexes("barnes/cell", cellLocks),
		},
		motions: kernel.Share[motion](t, "barnes/motions", p.n),
		notes:   kernel.Share[note](t, "barnes/notes", t.Total),
		barrier: t.Barrier("barnes/barrier"),
	}
	return r, t.Each(func(t *kernel.Thread) {
		low, high := t.Mine(p.n)
		extent := newExtent()
		for i := low; i < high; i++ {
			r.bodies[i], r.motions[i] = bodies[order[i]], motions[order[i]]
			extent.include(r.bodies[i].pos)
		}
		r.notes[t.Index].extent = extent
	})
}

// noteBytes is at least a page of any page size in use up to 4 KiB; with larger pages notes share
// pages, which is only slower.
const noteBytes = 4096

// A note is what a thread tells all others in each step. Each is on a page of its own.
type note struct {
	extent  extent // of the thread's bodies
	deepest int64  // level of a cell that the thread has made, or -1
	_       [noteBytes - 56]byte
}

type run struct {
	tree
	motions []motion
	notes   []note
	barrier kernel.Barrier
}

// An extent is the smallest box, not a cube, around some points.
type extent struct{ low, high vector }

func newExtent() extent {
	inf := math.Inf(1)
	return extent{low: vector{inf, inf, inf}, high: vector{-inf, -inf, -inf}}
}

func (e *extent) include(p vector) { e.join(extent{p, p}) }

func (e *extent) join(o extent) {
	for k := range e.low {
		e.low[k] = min(e.low[k], o.low[k])
		e.high[k] = max(e.high[k], o.high[k])
	}
}

func (r *run) Compute(t *kernel.Thread) {
	w := &worker{Thread: t, run: r, builder: newBuilder(&r.tree, t, len(r.cells)/t.Total)}
	low, high := t.Mine(len(r.bodies))
	for i := low; i < high; i++ {
		w.mine = append(w.mine, int32(i))
	}
	for step := range steps {
		w.step(step == 0)
		t.Done(step+1, steps)
	}
}

// A worker is one thread of a run.
type worker struct {
	*kernel.Thread
	run     *run
	builder *builder
	mine    []int32 // the bodies of this thread, in the order of the tree
	pulls   []pull  // on them
}

// meet waits for all threads.
func (w *worker) meet(where string) { w.Wait(w.run.barrier, where) }

// step advances the system by one time step.
func (w *worker) step(firstStep bool) {
	// The tree of the step before has been read by all: they have met at a barrier since.
	w.builder.reset()
	// The root must be there before anybody inserts, and all bodies where they have moved to.
	w.meet("before building the tree")
	w.builder.box = w.run.boundingBox()
	// The bodies are the ones of the step before, which are near each other.
	w.builder.build(w.mine)
	w.run.notes[w.Index].deepest = int64(w.builder.deepest())
	w.meet("after building the tree")
	w.weigh()
	w.take()
	w.pulls = w.pulls[:0]
	for _, number := range w.mine {
		w.pulls = append(w.pulls, w.run.pullOn(number, w.builder.box.side))
	}
	w.meet("after computing the forces")
	w.move(firstStep)
}

// boundingBox is the cube around all bodies, by the notes of all threads.
func (r *run) boundingBox() box {
	all := newExtent()
	for i := range r.notes {
		all.join(r.notes[i].extent)
	}
	return newBox(all.low, all.high)
}

// weigh computes the centres of mass of this thread's leaves and cells, level by level from below
// with barriers between. (The original waits for each child that another thread has made. On pages
// that is a fault a look, and there are far fewer levels than such children.)
func (w *worker) weigh() {
	deepest := int64(0)
	for i := range w.run.notes {
		deepest = max(deepest, w.run.notes[i].deepest)
	}
	w.builder.weighLeaves()
	for level := int(deepest); level >= 0; level-- {
		w.meet("before a level of the tree")
		w.builder.weighCells(level)
	}
	w.meet("after computing the centres of mass")
}

// take chooses this thread's bodies for the step.
func (w *worker) take() {
	work, total := w.run.cells[root].cost, int64(w.Total)
	low, high := work*int64(w.Index)/total, work*int64(w.Index+1)/total
	if w.Index == w.Total-1 {
		high = math.MaxInt64
	}
	w.mine = w.run.share(w.mine[:0], low, high)
}

// move advances this thread's bodies in the order of memory, starting from where its block of the
// array would be: so each page is written in one go, and the threads are spread over the pages.
func (w *worker) move(firstStep bool) {
	order := make([]int, len(w.mine))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(w.mine[a] - w.mine[b]) })
	from, _ := w.Mine(len(w.run.bodies))
	at, _ := slices.BinarySearchFunc(order, int32(from), func(i int, from int32) int { return int(w.mine[i] - from) })
	extent := newExtent()
	for i := range order {
		i = order[(at+i)%len(order)]
		number := w.mine[i]
		p := &w.run.bodies[number]
		advance(p, &w.run.motions[number], w.pulls[i], firstStep)
		extent.include(p.pos)
	}
	w.run.notes[w.Index].extent = extent
}

// Result returns the positions in the order of the input, and as figures the kinetic energy after
// the last step, the potential energy in its force phase, and sums.
func (r *run) Result() kernel.Result {
	output := make(kernel.Float64s, 0, 3*len(r.bodies))
	var kinetic, potential float64
	var sum, absolute vector
	places := make([]int, len(r.order)) // by their number in the input
	for i, number := range r.order {
		places[number] = i
	}
	for _, i := range places {
		p, m := &r.bodies[i], &r.motions[i]
		kinetic += float64(p.mass * m.vel.Dot(m.vel))
		potential += float64(p.mass * m.phi)
		sum = sum.Add(p.pos)
		absolute = absolute.Add(vector{math.Abs(p.pos[0]), math.Abs(p.pos[1]), math.Abs(p.pos[2])})
		output = append(output, p.pos[:]...)
	}
	return kernel.Result{
		Figures: map[string]any{
			"KE": kinetic / 2, "PE": potential / 2, "poshash": kernel.FNV(output),
			"sumpos_x": sum[0], "sumpos_y": sum[1], "sumpos_z": sum[2],
			"sumabs_x": absolute[0], "sumabs_y": absolute[1], "sumabs_z": absolute[2],
		},
		Output: output,
	}
}
