package ocean

import (
	"errors"
	"math"
)

const (
	// at the finest level, the largest change of a point in a relaxation that ends the solving
	tolerance = 1e-7
	maxWork   = 10000 // in relaxations of the finest level, after which the solver gives up
	// a level whose error falls to no less than this share in an iteration needs a coarser one
	slow      = 0.6
	reduction = 0.3 // by how much a coarser level reduces the error that it was called for
)

// errDiverges is returned when maxWork was not enough.
var errDiverges = errors.New("the multigrid solver does not converge")

// A solve is what became of one equation: the numbers that the original prints.
type solve struct {
	iterations int
	residual   float64 // the largest change of a point in the last iteration
	work       float64 // in relaxations of the finest level
}

// q returns how to find a level's solution in other threads.
func (w *worker) q(level int) func(thread int) *grid {
	return func(thread int) *grid { return &w.all[thread].q[level] }
}

// residual returns how to find the residual at a level's points in other threads.
func (w *worker) residual(level int) func(thread int) *grid {
	return func(thread int) *grid { return &w.all[thread].residual[level] }
}

// multigrid improves q of the finest level until it solves the equation with the right-hand side
// rhs.
func (w *worker) multigrid() solve {
	const huge = 1e30 // the error before the first iteration at a level
	finest := w.levels - 1
	level, err := finest, huge
	var s solve
	for {
		before := err
		err = w.iterate(level)
		s.iterations++
		s.work += math.Ldexp(1, 2*(level-finest))
		if err < w.tolerances[level] && level == finest {
			s.residual = err
			return s
		}
		w.mine.q[level].fetchBlack(w.q(level))
		switch {
		case err < w.tolerances[level]:
			w.ascend(level)
			level++
		case s.work > maxWork:
			w.Check(errDiverges, "after %d iterations the error at level %d is %g, not below %g",
				s.iterations, level, err, w.tolerances[level])
		case level != 0 && err/before >= slow:
			w.tolerances[level-1] = reduction * err
			w.descend(level)
			level--
		default:
			continue
		}
		err = huge // the level has changed
	}
}

// exchange lets the neighbours have the black points of a level, and takes theirs.
func (w *worker) exchange(level int, where string) {
	w.mine.q[level].publishBlack()
	w.meet(where)
	w.mine.q[level].fetchBlack(w.q(level))
}

// iterate relaxes the red points, then the black ones, and returns the largest change of all. The
// border has the neighbours' black points, and the thread's own are published.
//
// The black points need the neighbours' red ones in the row beside the band. These are relaxed here
// as well, from the same values as there, and so to the same bits.
func (w *worker) iterate(level int) float64 {
	g, rhs := &w.mine.q[level], &w.mine.rhs[level]
	factor := w.factor(level)
	for side, neighbour := range g.neighbours() {
		if neighbour != none {
			g.relaxRow(rhs, g.border(side, 0), red, factor)
		}
	}
	worst := g.relax(rhs, red, factor, 0)
	worst = g.relax(rhs, black, factor, worst)
	g.publishBlack()
	return w.max(errorNames[g.turn], worst)
}

// factor is the diagonal of the equations' matrix at a level.
func (w *worker) factor(level int) float64 {
	h := math.Ldexp(resolution, w.levels-1-level)
	return 4 - float64(eig2*h*h)
}

// relax replaces each interior point of one colour by the value that satisfies its equation, and
// returns the largest change or worst, if that is larger.
func (g *grid) relax(rhs *grid, colour int, factor, worst float64) float64 {
	for i := 1; i <= g.rows; i++ {
		worst = max(worst, g.relaxRow(rhs, i, colour, factor))
	}
	return worst
}

// relaxRow is relax for one row, which may be of the border.
func (g *grid) relaxRow(rhs *grid, i, colour int, factor float64) (worst float64) {
	row := g.row(i)
	above, below, right := g.row(i - 1)[:len(row)], g.row(i + 1)[:len(row)], rhs.row(i)[:len(row)]
	for j := g.first(i, colour); j < len(row)-1; j += 2 {
		next := (row[j+1] + row[j-1] + above[j] + below[j] - right[j]) / factor
		change := math.Abs(row[j] - next)
		row[j] = next
		if change > worst {
			worst = change
		}
	}
	return worst
}

// descend makes the residual at level the right-hand side of the next coarser one, whose points
// begin as zero, also those of the neighbours in the border.
func (w *worker) descend(level int) {
	fine, coarse, residual := &w.mine.q[level], &w.mine.q[level-1], &w.mine.residual[level-1]
	fine.residual(&w.mine.rhs[level], residual, w.factor(level))
	residual.publish()
	w.meet("after publishing the residual")
	residual.fetch(w.residual(level - 1))
	residual.restrict(&w.mine.rhs[level-1])
	clear(coarse.points)
}

// residual computes by how much the equations of every fourth point, the one with even indices, are
// missed.
func (g *grid) residual(rhs, coarse *grid, factor float64) {
	for ic := 1; ic <= coarse.rows; ic++ {
		i := 2 * ic
		above, row, below, right, to := g.row(i-1), g.row(i), g.row(i+1), rhs.row(i), coarse.row(ic)
		for jc := 1; jc <= coarse.cols; jc++ {
			j := 2 * jc
			s := row[j+1] + row[j-1] + above[j] + below[j]
			// Half-injection takes half of the residual, which the coarser grid's spacing makes 4
			// times as large.
			to[jc] = 2 * (right[j] - s + float64(factor*row[j]))
		}
	}
}

// restrict interpolates the residuals, which are at points of the finer grid, to the coarser
// grid's, also in the rows of the neighbours that are relaxed here. The fixed edge makes the two
// not quite the same: the distance from one to the other grows along the basin. Beside the upper
// and the left edge only the nearest residual counts.
func (residual *grid) restrict(rhs *grid) {
	spacing := 1 / float64(residual.cols+1)
	first, last := 1, residual.rows
	if residual.up != none {
		first--
	}
	if residual.down != none {
		last++
	}
	for ic := first; ic <= last; ic++ {
		up := float64(float64(residual.row0+ic)*spacing) * 0.5
		above, row, to := residual.row(ic-1), residual.row(ic), rhs.row(ic)
		for jc := 1; jc <= residual.cols; jc++ {
			left := float64(float64(jc)*spacing) * 0.5
			var aboveLeft, aboveHere, besideLeft float64
			if residual.row0+ic > 1 && jc > 1 {
				aboveLeft, aboveHere, besideLeft = above[jc-1], above[jc], row[jc-1]
			}
			to[jc] = blend(up, blend(left, aboveLeft, aboveHere), blend(left, besideLeft, row[jc]))
		}
	}
}

// blend is the point between a and b at which a has the weight share.
func blend(share, a, b float64) float64 { return float64(share*a) + float64((1-share)*b) }

// ascend adds the solution at level, which is a correction, to the next finer one.
func (w *worker) ascend(level int) {
	w.mine.q[level].prolong(&w.mine.q[level+1])
	w.exchange(level+1, "at a finer level")
}

// prolong adds the points, interpolated, to the finer grid.
func (coarse *grid) prolong(fine *grid) {
	spacing := 1 / float64(fine.cols+1)
	before := func(at int) float64 { return float64(coarse.cols-(at-1)) * spacing }
	after := func(at int) float64 { return float64(at) * spacing }
	for ic := 1; ic <= coarse.rows; ic++ {
		up, down := before(coarse.row0+ic), after(coarse.row0+ic)
		above, row, below := coarse.row(ic-1), coarse.row(ic), coarse.row(ic+1)
		upper, lower := fine.row(2*ic-1), fine.row(2*ic)
		for jc := 1; jc <= coarse.cols; jc++ {
			left, right := before(jc), after(jc)
			j := 2 * jc

			here := blend(left, row[jc-1], row[jc])
			upper[j-1] += blend(up, blend(left, above[jc-1], above[jc]), here)
			lower[j-1] += blend(down, blend(left, below[jc-1], below[jc]), here)

			here = blend(right, row[jc+1], row[jc])
			upper[j] += blend(up, blend(right, above[jc+1], above[jc]), here)
			lower[j] += blend(down, blend(right, below[jc+1], below[jc]), here)
		}
	}
}
