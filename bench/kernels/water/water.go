// Package water is the Water benchmark: the motion of water molecules in a cubic box.
//
// The molecules start on a lattice with given velocities. Each of five steps of 0.15 fs predicts
// where the atoms will be, computes the forces within each molecule and between all pairs of
// molecules that are nearer than a cutoff, corrects the prediction (Gear's method of the sixth
// order), and evaluates the energies. Distances are to the nearest of a molecule's periodic images.
// It computes what the program Water-Nsquared of SPLASH-2 does (Woo et al., ISCA 1995), with the
// energies computed after every step.
//
// # How it is divided
//
// Each thread has a block of neighbouring molecules, and computes the pairs of each with the n/2
// that follow, cyclically. The forces that this exerts on both are summed up in memory of the
// thread's own; then each thread adds its sums to the shared forces, under locks, beginning with
// its own block so that the threads start at different places.
//
// Where this port differs from the original is what shares pages. There a molecule is one record of
// 672 bytes, with seven derivatives of nine coordinates, and has a lock of its own. Here shared
// memory has two arrays: where the molecules are, which everybody reads and the owner writes, and
// the forces, to which everybody adds. The derivatives, which only the owner uses, are in ordinary
// memory. That is a quarter of the bytes, and so of the pages. One lock guards the forces of a page
// of molecules, all of one thread: a lock for each would cost as much as fetching the page, 56
// times over.
//
// # What depends on the number of threads
//
// Forces and energies are sums in the order in which threads come to the locks, so they differ from
// run to run by rounding. Problem.Verify bounds the difference.
package water

import (
	"errors"
	"fmt"
	"math"

	"dsmd/bench/kernel"
)

const (
	steps = 5 // as in the reference output
	// lockSpan is how many molecules' forces one lock guards: those that fit on a page.
	lockSpan = pageBytes / (9 * 8)
	// pageBytes is that of most machines. On larger pages several locks' forces lie together.
	pageBytes = 4096

	smallest = 8
	largest  = 32768 // 537 million pairs a step
)

// Kernel is the benchmark "water". Its output is where the atoms are at the end, in Ångström: by
// molecule, by direction (x, y, z), by atom (hydrogen, oxygen, hydrogen). The sizes' parameter is
// the number of molecules, the original's NMOL.
var Kernel = kernel.Kernel{
	Name:    "water",
	Summary: fmt.Sprintf("water molecules in a box, %d steps with forces between all pairs, added up under locks", steps),
	Sizes: kernel.Sizes{
		Parameter: "molecules, a cube number", Test: 64, Default: 512, Large: 4096, Min: smallest, Max: largest,
		Valid: func(n int) error {
			if edge := latticeEdge(n); edge*edge*edge != n {
				return errors.New("not a cube number")
			}
			return nil
		},
	},
	Problem: func(n int) kernel.Problem { return problem{n: n} },
}

// latticeEdge is the number of molecules along an edge of the box at the start.
func latticeEdge(n int) int { return int(math.Round(math.Cbrt(float64(n)))) }

type problem struct{ n int }

// Prepare has each thread put its own molecules on the lattice, so that pages start where they will
// be used.
func (p problem) Prepare(t *kernel.Team) (kernel.Program, error) {
	r := &run{
		system:   newSystem(p.n),
		barrier:  t.Barrier("water/barrier"),
		places:   kernel.Share[place](t, "water/places", p.n),
		forces:   shareForces(t, p.n),
		sums:     kernel.ShareAlone[sums](t, "water/sums"),
		sumsLock: t.Mutex("water/sums"),
		workers:  make([]*worker, t.Threads),
	}
	momenta, err := momenta(p.n)
	if err != nil {
		return nil, err
	}
	v := r.system.velocities(momenta)
	return r, t.Each(func(t *kernel.Thread) {
		w := newWorker(r, t)
		for mol := w.lo; mol < w.hi; mol++ {
			r.places[mol].atoms = r.system.lattice(mol)
			w.derivatives[0][mol-w.lo] = v[mol]
		}
		r.workers[t.Index-t.First] = w
	})
}

type run struct {
	system   *system
	barrier  kernel.Barrier
	places   []place
	forces   []forces // by thread
	sums     *sums
	sumsLock kernel.Mutex
	workers  []*worker // of this process
}

// Compute lets every thread go through the whole simulation.
func (r *run) Compute(t *kernel.Thread) {
	w := r.workers[t.Index-t.First]
	w.Thread = t
	w.simulate()
}

func (r *run) Result() kernel.Result {
	output := make(kernel.Float64s, 0, 9*r.system.n)
	for mol := range r.places {
		for dir := range 3 {
			output = append(output, r.places[mol].atoms[dir][:]...)
		}
	}
	// Rank 0 has the first thread, and all threads have the same sums.
	figures := map[string]any{"fnv": kernel.FNV(output)}
	for i, e := range r.workers[0].energies {
		e.figures(i+1, figures)
	}
	return kernel.Result{Figures: figures, Output: output}
}
