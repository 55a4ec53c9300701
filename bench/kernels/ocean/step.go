package ocean

import (
	"slices"

	"dsmd/bench/kernel"
)

// steps is the number of time steps. The original goes on until the second day, in steps of
// timeStep.
const steps = 6

// The physics, in meters and seconds. These are variables because the Go compiler computes with
// constants exactly, and the original's values are rounded after every operation.
var (
	upperDepth, lowerDepth, depth = 1000.0, 4000.0, 5000.0
	resolution                    = 20000.0 // between two points
	timeStep                      = 28800.0
	lateral                       = -5.12e11 // friction
	coriolis, coriolisSlope       = 8.3e-5, 2.0e-11
	gravity                       = 0.02 // reduced by the layers' difference in density
	windStress                    = 0.5e-4

	eig2            = -depth * coriolis * coriolis / (upperDepth * lowerDepth * gravity)
	lowerShare      = lowerDepth / depth
	upperShare      = upperDepth / depth
	spacingSquared  = resolution * resolution
	laplacianFactor = 1. / (resolution * resolution)
	jacobianFactor  = -1. / (12. * resolution * resolution)
)

// A worker is one thread.
type worker struct {
	*kernel.Thread
	division
	run        *run
	mine       *basin
	all        []basin
	tolerances []float64 // by level; those of coarser levels change with every call for them
	coriolis   []float64 // the Coriolis parameter, by the column in the whole grid
	psibi      float64   // the integral of psib
}

func newWorker(r *run, t *kernel.Thread) *worker {
	w := &worker{
		Thread: t, division: r.division, run: r, mine: &r.basins[t.Index], all: r.basins,
		tolerances: make([]float64, r.division.levels), coriolis: make([]float64, r.division.edge),
	}
	w.tolerances[w.levels-1] = tolerance
	for j := range w.coriolis {
		y := float64(j) * resolution
		w.coriolis[j] = coriolis + float64(coriolisSlope*(y-float64(0.5*w.width())))
	}
	return w
}

// meet waits for all threads.
func (w *worker) meet(where string) { w.Wait(w.run.barrier, where) }

// width of the basin in meters.
func (w *worker) width() float64 { return float64(w.edge-1) * resolution }

// initialise sets the grids that don't start as zero: the wind, which depends on the column only,
// and the fixed edge of psib.
func (w *worker) initialise() {
	b := w.mine
	b.tauz.each(func(i int, row []float64) {
		if i > b.tauz.top {
			copy(row, b.tauz.row(b.tauz.top))
			return
		}
		for j := range row {
			row[j] = windCurl(j, w.width())
		}
	})
	ones := slices.Repeat([]float64{1}, w.edge)
	b.psib.each(func(i int, row []float64) { b.psib.copyEdge(i, row, ones) })
}

// each calls f for every row that the thread owns.
func (g *grid) each(f func(i int, row []float64)) {
	for i := g.top; i <= g.bottom; i++ {
		f(i, g.row(i))
	}
}

// bordered calls f for every row that the thread owns, and for one row of each neighbour.
func (g *grid) bordered(f func(i int, row []float64)) {
	if g.rows == 0 {
		return
	}
	for i := range g.rows + 2 {
		f(i, g.row(i))
	}
}

// fixedRow reports whether local row i is on the basin's edge.
func (a *area) fixedRow(i int) bool { return a.row0+i == 0 || a.row0+i == a.cols+1 }

// copyEdge sets those points of local row i that are on the basin's edge to the same of another
// row.
func (a *area) copyEdge(i int, to, from []float64) {
	if a.fixedRow(i) {
		copy(to, from)
		return
	}
	to[0], to[a.cols+1] = from[0], from[a.cols+1]
}

// simulate is the whole program of one thread.
func (w *worker) simulate() {
	w.begin()
	for step := range steps {
		w.step()
		w.Done(step+1, steps)
	}
	// The streams' sums over time would be output, were the simulation longer.
	w.mine.psium.add(1, &w.mine.psim[0])
	w.mine.psilm.add(1, &w.mine.psim[1])
}

// solve solves the equation with the right-hand side g, whose fixed edge is also the solution's;
// the solution replaces it. all is g of all threads, as published. q has the first guess in the
// interior.
func (w *worker) solve(g *grid, all func(thread int) *grid) {
	finest := w.levels - 1
	q, rhs := &w.mine.q[finest], &w.mine.rhs[finest]
	w.exchange(finest, "before relaxing")
	g.fetch(all)
	g.bordered(func(i int, from []float64) {
		to := rhs.row(i)[:len(from)]
		for j, x := range from {
			to[j] = x * spacingSquared
		}
		g.copyEdge(i, q.row(i), from)
	})
	s := w.multigrid()
	if w.Index == 0 {
		w.run.solves = append(w.run.solves, s)
	}
	g.copy(q)
}

// begin computes psib, a solution that is 1 at the basin's edge, and its integral. Multiples of it
// will be added so that the mean of each step's solution is zero.
func (w *worker) begin() {
	b := w.mine
	psib, q := &b.psib, &b.q[w.levels-1]
	psib.publish()
	w.meet("after publishing psib")
	all := func(thread int) *grid { return &w.all[thread].psib }
	psib.fetch(all)
	factor := 1 / (4 - float64(spacingSquared*eig2))
	for i := 1; i <= psib.rows; i++ {
		above, row, below, to := psib.row(i-1), psib.row(i), psib.row(i+1), q.row(i)
		for j := 1; j <= psib.cols; j++ {
			to[j] = factor * (below[j] + above[j] + row[j+1] + row[j-1] - float64(spacingSquared*row[j]))
		}
	}
	w.solve(psib, all)
	w.psibi = w.integrate(psib)
}

// integrate returns the sum of all points of the basin, those of its sides counting half and the
// corners a quarter.
func (w *worker) integrate(g *grid) float64 { return w.sum(g.integral()) }

// integral adds in the order of the original.
func (g *grid) integral() float64 {
	sum := 0.0
	if g.rows == 0 {
		return sum
	}
	for _, i := range []int{g.top, g.bottom} {
		if g.fixedRow(i) {
			sum += float64(0.25 * g.row(i)[0])
			sum += float64(0.25 * g.row(i)[g.cols+1])
		}
	}
	for _, i := range []int{g.top, g.bottom} {
		if g.fixedRow(i) {
			for _, x := range g.row(i)[1 : g.cols+1] {
				sum += float64(0.5 * x)
			}
		}
	}
	for _, j := range []int{0, g.cols + 1} {
		for i := 1; i <= g.rows; i++ {
			sum += float64(0.5 * g.row(i)[j])
		}
	}
	for i := 1; i <= g.rows; i++ {
		for _, x := range g.row(i)[1 : g.cols+1] {
			sum += x
		}
	}
	return sum
}

// step advances time by timeStep.
func (w *worker) step() {
	w.derivatives()
	w.equations()
	b := w.mine
	for layer, change := range []*grid{&b.work3, &b.work2} {
		b.psi[layer].add(2*timeStep, change)
		b.psi[layer].publish()
	}
	w.meet("after a step")
}

// derivatives computes the right-hand sides ga and gb of both equations, from psi and psim. What a
// phase publishes is fetched after the barrier at its end. The border of copies and differences of
// what was fetched is computed here.
func (w *worker) derivatives() {
	b := w.mine
	for layer := range 2 {
		b.psi[layer].fetch(func(thread int) *grid { return &w.all[thread].psi[layer] })
		b.work1[layer].laplacian(&b.psi[layer])
		b.temp[layer].copy(&b.psi[layer])
	}
	b.work2.subtract(&b.psi[0], &b.psi[1])
	// The original takes here for the upper layer what work3 still has from the step before.
	b.work3.combine(lowerShare, &b.work3, upperShare, &b.psi[1])
	b.work3.publish()
	for layer := range 2 {
		b.psi[layer].copy(&b.psim[layer])
		b.work7[layer].laplacian(&b.psim[layer])
		b.work7[layer].publish()
		b.work1[layer].addCoriolis(w.coriolis)
		b.work1[layer].publish()
	}
	w.meet("after the vorticities")
	for layer := range 2 {
		b.work1[layer].fetch(func(thread int) *grid { return &w.all[thread].work1[layer] })
		b.work5[layer].jacobian(&b.work1[layer], &b.temp[layer])
		b.psim[layer].copy(&b.temp[layer])
		b.work7[layer].fetch(func(thread int) *grid { return &w.all[thread].work7[layer] })
		b.work4[layer].laplacian(&b.work7[layer])
		b.work4[layer].publish()
	}
	w.meet("after the friction")
	b.work3.fetch(func(thread int) *grid { return &w.all[thread].work3 })
	b.work6.jacobian(&b.work2, &b.work3)
	for layer := range 2 {
		b.work4[layer].fetch(func(thread int) *grid { return &w.all[thread].work4[layer] })
		b.work7[layer].laplacian(&b.work4[layer])
	}
	b.rightHandSides()
}

// equations solves both equations and turns their solutions into the layers' changes, work3 for the
// upper one.
func (w *worker) equations() {
	b := w.mine
	q := &b.q[w.levels-1]
	q.copyInterior(&b.oldga)
	b.ga.publish()
	w.solve(&b.ga, func(thread int) *grid { return &w.all[thread].ga })
	b.oldga.copy(&b.ga)
	psiai := w.integrate(&b.ga)
	if w.Index == 0 {
		w.run.psiai, w.run.psibi = psiai, w.psibi
	}
	b.ga.add(-psiai/w.psibi, &b.psib)
	q.copyInterior(&b.oldgb)
	b.gb.publish()
	w.solve(&b.gb, func(thread int) *grid { return &w.all[thread].gb })
	b.oldgb.copy(&b.gb)
	b.work2.combine(1, &b.gb, -upperShare, &b.ga)
	b.work3.combine(1, &b.gb, lowerShare, &b.ga)
}
