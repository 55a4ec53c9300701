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

// neighbours are the threads at the four sides, or none.
func (a area) neighbours() [4]int {
	return [4]int{north: a.up, south: a.down, west: a.west, east: a.east}
}

// A layout says where the grids of each thread are in one slice.
type layout struct {
	points []int        // by thread; on a page's start
	frames [][kinds]int // by thread and kind; on a page's start
	words  int          // of the slice
}

// What lies in a part of the frames: red points, black ones, or points of both colours, of grids
// that are published as a whole.
const (
	whole = black + 1
	kinds = whole + 1
)

// layout places for each thread first its points, then its frames, each part starting on a page.
func (d division) layout(pageWords int) layout {
	l := layout{points: make([]int, d.threads), frames: make([][kinds]int, d.threads)}
	pages := func(words int) int { return (words + pageWords - 1) / pageWords * pageWords }
	for thread := range d.threads {
		var p placing
		d.eachGrid(thread, new(basin), func(_ *grid, a area, relaxed bool) { p.place(&grid{area: a}, relaxed) })
		l.points[thread] = l.words
		l.words += pages(p.points.used)
		for kind := range p.frames {
			l.frames[thread][kind] = l.words
			l.words += pages(p.frames[kind].used)
		}
	}
	return l
}

// A region is a part of the slice, of which the beginning is used. One without words only counts.
type region struct {
	words []float64
	used  int
}

func (r *region) take(words int) []float64 {
	from := r.used
	r.used += words
	if r.words == nil {
		return nil
	}
	return r.words[from:r.used:r.used]
}

// A placing gives a thread's grids their words.
type placing struct {
	points region
	frames [kinds]region
}

// place gives a grid its words. A relaxed grid is published colour by colour.
func (p *placing) place(g *grid, relaxed bool) {
	g.points = p.points.take(g.words())
	for side, neighbour := range g.neighbours() {
		if neighbour == none {
			continue
		}
		line := g.lineAt(side, false)
		for _, colour := range []int{red, black} {
			kind := whole
			if relaxed {
				kind = colour
			}
			g.frame[side].colours[colour] = p.frames[kind].take((line.n - line.first(colour) + 2) / 2)
		}
		g.frame[side].ends = p.frames[whole].take(2)
	}
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
		p := placing{points: region{words: words[l.points[thread]:]}}
		for kind, at := range l.frames[thread] {
			p.frames[kind].words = words[at:]
		}
		d.eachGrid(thread, &all[thread], func(g *grid, a area, relaxed bool) {
			g.area = a
			p.place(g, relaxed)
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

// eachGrid calls f for every grid of a thread, always in the same order, with its area, and whether
// it is relaxed. The relaxed ones come from the finest on: where half a line fills a page, it lies
// on one. The others come as they are published, so that what the same barrier follows shares
// pages.
func (d division) eachGrid(thread int, b *basin, f func(g *grid, a area, relaxed bool)) {
	b.q, b.rhs, b.residual = make([]grid, d.levels), make([]grid, d.levels), make([]grid, d.levels-1)
	for level := d.levels - 1; level >= 0; level-- {
		f(&b.q[level], d.area(thread, level), true)
	}
	for level := range b.residual {
		f(&b.residual[level], d.area(thread, level), false)
	}
	for level := range d.levels {
		f(&b.rhs[level], d.area(thread, level), false)
	}
	finest := d.area(thread, d.levels-1)
	for _, g := range []*grid{
		&b.psi[0], &b.psi[1],
		&b.temp[0], &b.temp[1], &b.work2, &b.work3, &b.work7[0], &b.work7[1], &b.work1[0], &b.work1[1],
		&b.psim[0], &b.psim[1], &b.work4[0], &b.work4[1],
		&b.psib, &b.work5[0], &b.work5[1], &b.work6, &b.psium, &b.psilm, &b.ga, &b.gb, &b.oldga, &b.oldgb, &b.tauz,
	} {
		f(g, finest, false)
	}
}
