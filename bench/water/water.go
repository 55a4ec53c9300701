// Package water is the Water benchmark: the motion of water molecules in a cubic box.
//
// The molecules start on a lattice with given velocities. Each of five steps of 0.15 fs predicts where the atoms
// will be, computes the forces within each molecule and between all pairs of molecules that are nearer
// than a cutoff, corrects the prediction (Gear's method of the sixth order), and evaluates the energies. Distances are
// to the nearest of a molecule's periodic images. It computes what the program Water-Nsquared of SPLASH-2 does (Woo
// et al., ISCA 1995), with the energies computed after every step.
//
// # How it is divided
//
// Each thread has a block of neighbouring molecules, and computes the pairs of each with the n/2 that follow,
// cyclically. The forces that this exerts on both are summed up in memory of the thread's own; then each thread adds its sums
// to the shared forces, under locks, beginning with its own block so that the threads start at different places.
//
// Where this port differs from the original is what shares pages. There a molecule is one record of 672 bytes,
// with seven derivatives of nine coordinates, and has a lock of its own. Here shared memory has two arrays: where the
// molecules are, which everybody reads and the owner writes, and the forces, to which everybody adds. The derivatives,
// which only the owner uses, are in ordinary memory. That is a quarter of the bytes, and so of the pages, and one lock guards
// the forces of a page of molecules: a lock for each would cost as much as fetching the page, 56 times over.
//
// # What depends on the number of threads
//
// Forces and energies are sums in the order in which threads come to the locks, so they differ from run to run by
// rounding. Problem.Verify bounds the difference.
package water

import (
	"context"
	"errors"
	"fmt"
	"math"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

const (
	steps = 5 // as in the reference output
	// lockSpan is how many molecules' forces one lock guards: those that fit on a page of 4096 bytes.
	lockSpan = 4096 / (9 * 8)

	smallest = 8
	largest  = 32768 // 537 million pairs a step
)

// Kernel is the benchmark "water". Its output is where the atoms are at the end, in Ångström: by molecule, by
// direction (x, y, z), by atom (hydrogen, oxygen, hydrogen).
type Kernel struct{}

// Name returns "water".
func (Kernel) Name() string { return "water" }

// Summary describes the kernel in one line.
func (Kernel) Summary() string {
	return fmt.Sprintf("water molecules in a box, %d steps with forces between all pairs, added up under locks", steps)
}

// Sizes returns the sizes; the parameter is the number of molecules, the original's NMOL.
func (Kernel) Sizes() kernel.Sizes {
	return kernel.Sizes{
		Parameter: "molecules, a cube number", Test: 64, Default: 512, Large: 4096, Min: smallest, Max: largest,
		Valid: func(n int) error {
			if edge := latticeEdge(n); edge*edge*edge != n {
				return errors.New("not a cube number")
			}
			return nil
		},
	}
}

// latticeEdge is the number of molecules along an edge of the box at the start.
func latticeEdge(n int) int { return int(math.Round(math.Cbrt(float64(n)))) }

// Problem returns the problem with n molecules.
func (Kernel) Problem(n int) kernel.Problem { return problem{n: n} }

type problem struct{ n int }

// Sequential prepares a run by one thread. Its locks are uncontended, and few.
func (p problem) Sequential() (kernel.Run, error) { return p.Goroutines(1) }

// Goroutines prepares a run on ordinary memory.
func (p problem) Goroutines(threads int) (kernel.Run, error) {
	r := &run{
		system: newSystem(p.n), threads: threads, total: threads, barrier: kernel.NewBarrier(threads),
		places: make([]place, p.n), forces: make([]vectors, p.n), sums: new(sums), sumsLock: kernel.NewMutex(),
	}
	for range lockCount(p.n) {
		r.forceLocks = append(r.forceLocks, kernel.NewMutex())
	}
	return r, r.initialise()
}

// Cluster prepares a run on shared memory.
func (p problem) Cluster(ctx context.Context, c *dsm.Cluster, threads int) (kernel.Run, error) {
	r := &run{
		system: newSystem(p.n), first: threads * c.Rank(), threads: threads, total: threads * c.Size(),
		barrier:  dsm.NewTeamBarrier(c, "water/barrier", c.Size(), threads),
		sumsLock: dsm.NewMutex(c, "water/sums"),
		prefetch: func(ctx context.Context, places []place) error { return dsm.Prefetch(ctx, c, places, dsm.Read) },
		claim:    func(ctx context.Context, forces []vectors) error { return dsm.Prefetch(ctx, c, forces, dsm.Write) },
	}
	for i := range lockCount(p.n) {
		r.forceLocks = append(r.forceLocks, dsm.NewMutex(c, fmt.Sprintf("water/forces/%d", i)))
	}
	if err := errors.Join(
		kernel.Share(ctx, &r.Memory, c, "water/places", p.n, &r.places),
		kernel.Share(ctx, &r.Memory, c, "water/forces", p.n, &r.forces),
		kernel.ShareAlone(ctx, &r.Memory, c, "water/sums", &r.sums)); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, r.initialise()
}

func lockCount(molecules int) int { return (molecules + lockSpan - 1) / lockSpan }

// locked does what it is given while it holds the lock.
func locked(ctx context.Context, l kernel.Mutex, do func()) error {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	do()
	return l.Unlock()
}

// A run is this process's threads, which are first to first+threads-1 of total.
type run struct {
	kernel.Memory
	system     *system
	first      int
	threads    int
	total      int
	barrier    kernel.Barrier
	places     []place
	forces     []vectors
	forceLocks []kernel.Mutex // number i guards forces[i*lockSpan:(i+1)*lockSpan] while they are added to
	sums       *sums
	sumsLock   kernel.Mutex
	// prefetch brings places here at once, not page by page as they are touched; nil on ordinary memory.
	prefetch func(ctx context.Context, places []place) error
	// claim does so with forces, to be written.
	claim   func(ctx context.Context, forces []vectors) error
	workers []*worker // of this process
}

// initialise has each thread put its own molecules on the lattice, so that pages start where they will be used.
func (r *run) initialise() error {
	momenta, err := momenta(r.system.n)
	if err != nil {
		return err
	}
	v := r.system.velocities(momenta)
	for thread := range r.threads {
		w := newWorker(r, r.first+thread)
		for mol := w.lo; mol < w.hi; mol++ {
			r.places[mol].atoms = r.system.lattice(mol)
			w.derivatives[0][mol-w.lo] = v[mol]
		}
		r.workers = append(r.workers, w)
	}
	return nil
}

// Compute lets every thread go through the whole simulation.
func (r *run) Compute(ctx context.Context, progress kernel.Progress) error {
	return kernel.Spawn(ctx, r.threads, func(ctx context.Context, thread int) error {
		w := r.workers[thread]
		if err := w.simulate(ctx, progress); err != nil {
			return fmt.Errorf("water, thread %d: %w", w.index, err)
		}
		return nil
	})
}

func (r *run) Result(context.Context) (kernel.Result, error) {
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
	return kernel.Result{Figures: figures, Output: output}, nil
}
