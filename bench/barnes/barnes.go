// Package barnes is the Barnes-Hut benchmark: a galaxy simulation in three dimensions, after the program of
// that name in SPLASH-2 (Woo et al., ISCA 1995).
//
// Each of four time steps builds an octree of all bodies in shared memory, computes its centres of mass, divides
// the bodies among the threads so that all have about the same work and each a compact region (costzones), computes the
// force on each body by walking the tree, where a far cell counts as one mass, and moves the bodies.
//
// The tree is made in two stages: each thread builds one of its own bodies, without locks, and merges it into the tree of all,
// taking the lock of a cell for each octant that it changes.
//
// On pages this means: the tree is written by the threads that build it, each of which has an arena of cells and of
// leaves, and then read by all, nearly whole. The bodies are written once in a step by their threads. These
// change from step to step, and neighbours in space are not neighbours in the array, so that most pages of
// bodies are written by all nodes: false sharing, which lies in the problem. Three things keep it bearable. What only the owner of a body
// needs lies in another array than what everybody reads. A thread keeps what it computes to itself until the end of
// the step, and then writes all its bodies in the order in which they lie in memory. And threads begin
// this in different places, so that they do not chase each other through the pages.
//
// In one thing this program is stricter than the original, where a thread moves its bodies while others may still be
// reading them, and where the cost of a body may change while the bodies are being divided: here a barrier lies
// between. And the bodies of a leaf are put in order. With that, the result does not depend on the number of
// threads or nodes, not by a bit.
package barnes

import (
	"context"
	_ "embed" // for the facts of the original program
	"errors"
	"fmt"
	"math"
	"slices"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

const (
	steps = 4
	// agreement is the relative difference to the original program's figures that is allowed: its figures
	// differ by that much from one number of threads to another.
	agreement = 1e-6
)

//go:embed testdata/facts.json
var factsText []byte

var original = facts.Parse(factsText)

// Kernel is the benchmark "barnes". Its output is the positions of the bodies, x, y and z of each.
type Kernel struct{}

// Name returns "barnes".
func (Kernel) Name() string { return "barnes" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("Barnes-Hut simulation of two star clusters, %d steps, octree built in shared memory, bodies divided by cost", steps)
}

// Sizes returns the sizes; the parameter is the number of bodies.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{Parameter: "bodies", Test: 1024, Default: 16384, Large: 65536, Min: 2, Max: 1 << 22}
}

// Problem returns the problem with n bodies.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Verify compares bit for bit with the sequential version, and at the sizes where they are known with the
// figures of the original program.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(kernel.SameBits(sequential, got), original.Check(p.n, got.Figures, agreement))
}

// Sequential prepares a run by one thread. Its barriers and locks cost nothing beside the forces.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary slices.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	arena := arenaNodes(p.n)
	r := &run{
		tree: tree{
			bodies: make([]body, p.n),
			cells:  make([]cell, threads*arena),
			leaves: make([]leaf, threads*arena),
			locks:  make([]kernel.Mutex, cellLocks),
		},
		motions: make([]motion, p.n),
		notes:   make([]note, threads),
		barrier: kernel.NewBarrier(threads),
		threads: threads,
		total:   threads,
	}
	for i := range r.locks {
		r.locks[i] = kernel.NewMutex()
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared slices.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	total := threads * c.Size()
	r := &run{
		barrier: dsm.NewTeamBarrier(c, "barnes/barrier", c.Size(), threads),
		first:   threads * c.Rank(),
		threads: threads,
		total:   total,
	}
	arena := arenaNodes(p.n)
	err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "barnes/bodies", p.n, &r.bodies),
		kernel.Share(ctx, &r.Memory, c, "barnes/motions", p.n, &r.motions),
		kernel.Share(ctx, &r.Memory, c, "barnes/cells", total*arena, &r.cells),
		kernel.Share(ctx, &r.Memory, c, "barnes/leaves", total*arena, &r.leaves),
		kernel.Share(ctx, &r.Memory, c, "barnes/notes", total, &r.notes))
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for i := range cellLocks {
		r.locks = append(r.locks, dsm.NewMutex(c, fmt.Sprintf("barnes/cell/%d", i)))
	}
	return r, r.initialise()
}

// noteBytes is at least a page of any page size in use up to 4 KiB; with larger pages notes share pages, which
// is only slower.
const noteBytes = 4096

// A note is what a thread tells all others in each step. Each is on a page of its own.
type note struct {
	low, high vector // the extent of the thread's bodies
	deepest   int64  // level of a cell that the thread has made, or -1
	_         [noteBytes - 56]byte
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	tree
	motions []motion
	notes   []note
	barrier kernel.Barrier
	first   int
	threads int
	total   int
}

// initialise has each thread store its block of the bodies, and note their extent.
func (r *run) initialise() error {
	bodies, motions := plummer(len(r.bodies))
	return kernel.Spawn(context.Background(), r.threads, func(_ context.Context, thread int) error {
		k := r.first + thread
		low, high := kernel.Block(len(bodies), r.total, k)
		copy(r.bodies[low:high], bodies[low:high])
		copy(r.motions[low:high], motions[low:high])
		extent := newExtent()
		for i := low; i < high; i++ {
			extent.include(bodies[i].pos)
		}
		r.notes[k].low, r.notes[k].high = extent.low, extent.high
		return nil
	})
}

// An extent is the smallest box, not a cube, around some points.
type extent struct{ low, high vector }

func newExtent() extent {
	inf := math.Inf(1)
	return extent{low: vector{inf, inf, inf}, high: vector{-inf, -inf, -inf}}
}

func (e *extent) include(p vector) {
	for k := range p {
		e.low[k] = min(e.low[k], p[k])
		e.high[k] = max(e.high[k], p[k])
	}
}

func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		k := r.first + thread
		w := &worker{run: r, k: k, builder: newBuilder(&r.tree, k, len(r.cells)/r.total)}
		low, high := kernel.Block(len(r.bodies), r.total, k)
		for i := low; i < high; i++ {
			w.mine = append(w.mine, int32(i))
		}
		for step := range steps {
			if err := w.step(ctx, step == 0); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			if thread == 0 {
				progress.Report(step+1, steps)
			}
		}
		return nil
	})
}

// A worker is one thread of a run, number k of all nodes' threads.
type worker struct {
	run     *run
	k       int
	builder *builder
	mine    []int32 // the bodies of this thread, in the order of the tree
	pulls   []pull  // on them
}

// step advances the system by one time step.
func (w *worker) step(ctx context.Context, firstStep bool) error {
	// The tree of the step before has been read by all: they have met at a barrier since.
	if err := w.builder.reset(); err != nil {
		return err
	}
	// The root must be there before anybody inserts.
	if err := w.run.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier before building the tree: %w", err)
	}
	w.builder.box = w.run.boundingBox()
	if err := w.build(ctx); err != nil {
		return err
	}
	if err := w.weigh(ctx); err != nil {
		return err
	}
	w.take()
	w.pulls = w.pulls[:0]
	for _, number := range w.mine {
		w.pulls = append(w.pulls, w.run.pullOn(number, w.builder.box.side))
	}
	if err := w.run.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after computing the forces: %w", err)
	}
	w.move(firstStep)
	if err := w.run.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after moving the bodies: %w", err)
	}
	return nil
}

// boundingBox is the cube around all bodies, by the notes of all threads.
func (r *run) boundingBox() box {
	all := newExtent()
	for i := range r.notes {
		for k := range all.low {
			all.low[k] = min(all.low[k], r.notes[i].low[k])
			all.high[k] = max(all.high[k], r.notes[i].high[k])
		}
	}
	return newBox(all.low, all.high)
}

// build inserts this thread's bodies, the ones of the step before, which are near each other.
func (w *worker) build(ctx context.Context) error {
	if err := w.builder.build(ctx, w.mine); err != nil {
		return fmt.Errorf("building the tree: %w", err)
	}
	w.run.notes[w.k].deepest = int64(w.builder.deepest())
	if err := w.run.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after building the tree: %w", err)
	}
	return nil
}

// weigh computes the centres of mass of this thread's leaves and cells, level by level from below with barriers
// between. (The original waits for each child that another thread has made. On pages that is a fault a
// look, and there are far fewer levels than such children.)
func (w *worker) weigh(ctx context.Context) error {
	deepest := int64(0)
	for i := range w.run.notes {
		deepest = max(deepest, w.run.notes[i].deepest)
	}
	w.builder.weighLeaves()
	for level := int(deepest); level >= 0; level-- {
		if err := w.run.barrier.Wait(ctx); err != nil {
			return fmt.Errorf("barrier before level %d of the tree: %w", level, err)
		}
		w.builder.weighCells(level)
	}
	if err := w.run.barrier.Wait(ctx); err != nil {
		return fmt.Errorf("barrier after computing the centres of mass: %w", err)
	}
	return nil
}

// take chooses this thread's bodies for the step.
func (w *worker) take() {
	work, total := w.run.cells[root].cost, int64(w.run.total)
	low, high := work*int64(w.k)/total, work*int64(w.k+1)/total
	if w.k == w.run.total-1 {
		high = math.MaxInt64
	}
	w.mine = w.run.share(w.mine[:0], low, high)
}

// move advances this thread's bodies in the order of memory, starting from where its block of the array
// would be: so each page is written in one go, and the threads are spread over the pages.
func (w *worker) move(firstStep bool) {
	order := make([]int, len(w.mine))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return int(w.mine[a] - w.mine[b]) })
	from, _ := kernel.Block(len(w.run.bodies), w.run.total, w.k)
	at, _ := slices.BinarySearchFunc(order, int32(from), func(i int, from int32) int { return int(w.mine[i] - from) })
	extent := newExtent()
	for i := range order {
		i = order[(at+i)%len(order)]
		number := w.mine[i]
		p := &w.run.bodies[number]
		advance(p, &w.run.motions[number], w.pulls[i], firstStep)
		extent.include(p.pos)
	}
	w.run.notes[w.k].low, w.run.notes[w.k].high = extent.low, extent.high
}

// Result returns the positions, and as figures the kinetic energy after the last step, the potential energy in its force phase, and sums.
func (r *run) Result(context.Context) (kernel.Result, error) {
	output := make(kernel.Float64s, 0, 3*len(r.bodies))
	var kinetic, potential float64
	var sum, absolute vector
	for i := range r.bodies {
		p, m := &r.bodies[i], &r.motions[i]
		kinetic += float64(p.mass * dot(m.vel, m.vel))
		potential += float64(p.mass * m.phi)
		sum = add(sum, p.pos)
		absolute = add(absolute, vector{math.Abs(p.pos[0]), math.Abs(p.pos[1]), math.Abs(p.pos[2])})
		output = append(output, p.pos[:]...)
	}
	return kernel.Result{
		Figures: map[string]any{
			"KE": kinetic / 2, "PE": potential / 2, "poshash": kernel.FNV(output),
			"sumpos_x": sum[0], "sumpos_y": sum[1], "sumpos_z": sum[2],
			"sumabs_x": absolute[0], "sumabs_y": absolute[1], "sumabs_z": absolute[2],
		},
		Output: output,
	}, nil
}
