package ocean

import (
	"math"
	"math/bits"

	"dsmd/bench/kernel"
)

// A division says which thread has which points. The grid's interior, at every level of the
// multigrid method, is cut into across columns and down rows of rectangles, one for each working
// thread, numbered row by row. The cuts are made at the coarsest level and scaled up, so that a
// thread has the same part of the basin at all levels, and the four points of the next finer level
// that correspond to each of its points.
type division struct {
	edge         int // points along an edge of the finest grid, with the fixed ones
	across, down int
	threads      int // at least across*down; the rest have no points
	coarsest     int // interior points along an edge of the coarsest level
	levels       int // level 0 is the coarsest
}

// deepest is how many levels below the finest the solver may need. Its equations have a diagonal
// that grows with the square of the points' distance, so two levels down it converges without help
// whatever the grid's edge. A division must leave that many levels, or the number of threads would
// change the result by far more than rounding.
const deepest = 2

// divide divides the grid of edge by edge points among as many of the threads as find two points
// each in both directions at the coarsest level, as the original demands, which is at least deepest
// below the finest. One thread has all levels.
func divide(edge, threads int) division {
	interior := edge - 2
	for working := threads; ; working-- {
		across, down := rectangle(working)
		coarsest := 2
		for coarsest < 2*down {
			coarsest *= 2
		}
		if working == 1 || coarsest<<deepest <= interior {
			return division{
				edge: edge, across: across, down: down, threads: threads,
				coarsest: coarsest, levels: bits.Len(uint(interior / coarsest)),
			}
		}
	}
}

// rectangle returns the factors of n that are nearest to each other, the smaller one first. More
// rows than columns of rectangles make them wider than high, and rows are contiguous.
func rectangle(n int) (across, down int) {
	across = int(math.Sqrt(float64(n)))
	for n%across != 0 {
		across--
	}
	return across, n / across
}

// none stands for a neighbour that is not there.
const none = -1

// An area is a thread's rectangle at one level. Its points have local indices: rows 1 to rows and
// columns 1 to cols are the interior points, around them is the border. Where there is a neighbour,
// the border holds copies of its points; where there is none it is the fixed edge of the basin,
// which the area owns.
type area struct {
	rows, cols int
	row0, col0 int // the indices in the whole grid of local row 0 and local column 0
	// The thread numbers of the neighbours, or none.
	up, down, west, east int
	// The points that the thread owns are rows top to bottom, columns left to right, both
	// inclusive. A thread without points has none in this range either.
	top, bottom, left, right int
	interior                 int // of the whole grid at this level, along an edge
}

// area returns the area of a thread at a level.
func (d division) area(thread, level int) area {
	if thread >= d.across*d.down {
		return area{up: none, down: none, west: none, east: none, bottom: -1, right: -1}
	}
	y, x := thread/d.across, thread%d.across
	rowLo, rowHi := kernel.Block(d.coarsest, d.down, y)
	colLo, colHi := kernel.Block(d.coarsest, d.across, x)
	a := area{
		rows: (rowHi - rowLo) << level, cols: (colHi - colLo) << level,
		row0: rowLo << level, col0: colLo << level,
		up: thread - d.across, down: thread + d.across, west: thread - 1, east: thread + 1,
		top: 1, left: 1, interior: d.coarsest << level,
	}
	a.bottom, a.right = a.rows, a.cols
	if y == 0 {
		a.up, a.top = none, 0
	}
	if y == d.down-1 {
		a.down, a.bottom = none, a.rows+1
	}
	if x == 0 {
		a.west, a.left = none, 0
	}
	if x == d.across-1 {
		a.east, a.right = none, a.cols+1
	}
	return a
}

// words is the memory for the points of one grid.
func (a area) words() int {
	if a.rows == 0 {
		return 0
	}
	return (a.rows + 2) * (a.cols + 2)
}

// frameWords is the memory for what is published of one grid.
func (a area) frameWords() int {
	if a.rows == 0 {
		return 0
	}
	return 2*(a.rows+2) + 2*(a.cols+2)
}

// A layout says where the grids of each thread are in one slice.
type layout struct {
	points []int // by thread; on a page's start
	frames []int // by thread; on a page's start
	words  int   // of the slice
}

// layout places for each thread first its points, then its frames, both starting on pages.
func (d division) layout(pageWords int) layout {
	l := layout{points: make([]int, d.threads), frames: make([]int, d.threads)}
	pages := func(words int) int { return (words + pageWords - 1) / pageWords * pageWords }
	for thread := range d.threads {
		points, frames := 0, 0
		d.eachGrid(thread, new(basin), func(_ *grid, a area) {
			points += a.words()
			frames += a.frameWords()
		})
		l.points[thread] = l.words
		l.words += pages(points)
		l.frames[thread] = l.words
		l.words += pages(frames)
	}
	return l
}

// memory is what a thread has of the slice.
func (l layout) memory(words []float64, thread int) []float64 {
	end := l.words
	if thread+1 < len(l.points) {
		end = l.points[thread+1]
	}
	return words[l.points[thread]:end]
}

// basins cuts the slice as laid out.
func (d division) basins(l layout, words []float64) []basin {
	all := make([]basin, d.threads)
	for thread := range all {
		points, frames := words[l.points[thread]:], words[l.frames[thread]:]
		d.eachGrid(thread, &all[thread], func(g *grid, a area) {
			g.area = a
			g.points, points = points[:a.words():a.words()], points[a.words():]
			g.frame, frames = frames[:a.frameWords():a.frameWords()], frames[a.frameWords():]
		})
	}
	return all
}

// A basin is all grids of one thread. The names are those of the original, where psi is the stream
// function and psim that of the step before; psi[1] there is called psi3, of the lower layer.
type basin struct {
	psi, psim, temp, work1, work4, work5, work7 [2]grid

	psium, psilm, psib, ga, gb, oldga, oldgb, work2, work3, work6, tauz grid

	// The multigrid method's, by level: the solution, the right-hand side, and the residual that
	// the next finer level leaves at this level's points (none for the finest).
	q, rhs, residual []grid
}

// eachGrid calls f for every grid of a thread, always in the same order, with its area.
func (d division) eachGrid(thread int, b *basin, f func(*grid, area)) {
	finest := d.area(thread, d.levels-1)
	for _, pair := range []*[2]grid{&b.psi, &b.psim, &b.temp, &b.work1, &b.work4, &b.work5, &b.work7} {
		f(&pair[0], finest)
		f(&pair[1], finest)
	}
	for _, g := range []*grid{
		&b.psium, &b.psilm, &b.psib, &b.ga, &b.gb, &b.oldga, &b.oldgb, &b.work2, &b.work3, &b.work6, &b.tauz,
	} {
		f(g, finest)
	}
	b.q, b.rhs, b.residual = make([]grid, d.levels), make([]grid, d.levels), make([]grid, d.levels-1)
	for level := range d.levels {
		a := d.area(thread, level)
		f(&b.q[level], a)
		f(&b.rhs[level], a)
		if level < d.levels-1 {
			f(&b.residual[level], a)
		}
	}
}
