package ocean

import (
	"math/bits"

	"dsmd/bench/kernel"
)

// A division says which thread has which points. The grid's interior, at every level of the
// multigrid method, is cut into bands of rows, one for each working thread, from north to south.
// The cuts are made at the coarsest level and scaled up, so that a thread has the same part of the
// basin at all levels, and the four points of the next finer level that correspond to each of its
// points.
type division struct {
	edge     int // points along an edge of the finest grid, with the fixed ones
	bands    int
	threads  int // at least bands; the rest have no points
	coarsest int // interior points along an edge of the coarsest level
	levels   int // level 0 is the coarsest
}

// deepest is how many levels below the finest the solver may need. Its equations have a diagonal
// that grows with the square of the points' distance, so two levels down it converges without help
// whatever the grid's edge. A division must leave that many levels, or the number of threads would
// change the result by far more than rounding.
const deepest = 2

// reach is how many of a thread's rows its neighbours need at most.
const reach = 2

// divide divides the grid of edge by edge points among as many of the threads as find reach rows
// each at the coarsest level, which is at least deepest below the finest. One thread has all
// levels.
func divide(edge, threads int) division {
	interior := edge - 2
	for bands := threads; ; bands-- {
		coarsest := 2
		for coarsest < reach*bands {
			coarsest *= 2
		}
		if bands == 1 || coarsest<<deepest <= interior {
			return division{
				edge: edge, bands: bands, threads: threads,
				coarsest: coarsest, levels: bits.Len(uint(interior / coarsest)),
			}
		}
	}
}

// none stands for a neighbour that is not there.
const none = -1

// An area is a thread's band at one level. Its rows have local indices: 1 to rows are its own, and
// reach rows at each side are the border. Where there is a neighbour, the border holds copies of
// its points; where there is none, its inner row is the fixed edge of the basin, which the area
// owns. The first and the last point of each row are fixed, too.
type area struct {
	rows, cols int
	row0       int // the index in the whole grid of local row 0
	up, down   int // the thread numbers of the neighbours, or none
	// The rows that the thread owns are top to bottom, inclusive. A thread without points has none
	// in this range either.
	top, bottom int
}

// area returns the area of a thread at a level.
func (d division) area(thread, level int) area {
	if thread >= d.bands {
		return area{up: none, down: none, bottom: -1}
	}
	lo, hi := kernel.Block(d.coarsest, d.bands, thread)
	a := area{
		rows: (hi - lo) << level, cols: d.coarsest << level, row0: lo << level,
		up: thread - 1, down: thread + 1, top: 1,
	}
	a.bottom = a.rows
	if thread == 0 {
		a.up, a.top = none, 0
	}
	if thread == d.bands-1 {
		a.down, a.bottom = none, a.rows+1
	}
	return a
}

// words is the memory for the points of one grid.
func (a area) words() int {
	if a.rows == 0 {
		return 0
	}
	return (a.rows + 2*reach) * (a.cols + 2)
}

// neighbours are the threads at the two sides, or none.
func (a area) neighbours() [2]int { return [2]int{north: a.up, south: a.down} }

// A layout says where the grids of each thread are in one slice.
type layout struct {
	points []int        // by thread; on a page's start
	frames [][kinds]int // by thread and kind; on a page's start
	words  int          // of the slice
}

// What lies in a part of the frames: one copy or the other of black points, or whole rows.
const (
	whole = 2
	kinds = whole + 1
)

// layout places for each thread first its points, then its frames, each part starting on a page.
func (d division) layout(pageWords int) layout {
	l := layout{points: make([]int, d.threads), frames: make([][kinds]int, d.threads)}
	pages := func(words int) int { return (words + pageWords - 1) / pageWords * pageWords }
	for thread := range d.threads {
		var p placing
		d.eachGrid(thread, new(basin), func(_ *grid, a area, published int) { p.place(&grid{area: a}, published) })
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

// relaxed says of a grid that the black points of reach rows are published. Of others so many whole
// rows are, or none.
const relaxed = -1

// place gives a grid its words.
func (p *placing) place(g *grid, published int) {
	g.points = p.points.take(g.words())
	for side, neighbour := range g.neighbours() {
		if neighbour == none {
			continue
		}
		f := &g.frame[side]
		if published == relaxed {
			for copied := range f.black {
				f.black[copied] = p.frames[copied].take(reach * g.cols / 2)
			}
		}
		for range max(published, 0) {
			f.rows = append(f.rows, p.frames[whole].take(g.cols+2))
		}
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
		d.eachGrid(thread, &all[thread], func(g *grid, a area, published int) {
			g.area = a
			p.place(g, published)
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

// eachGrid calls f for every grid of a thread, always in the same order, with its area, and how
// many rows of it are published, or that it is relaxed. Those of many levels come from the finest
// on: where what is published of that fills a page, it lies on one. The others come as they are
// published, so that what the same barrier follows shares pages.
func (d division) eachGrid(thread int, b *basin, f func(g *grid, a area, published int)) {
	b.q, b.rhs, b.residual = make([]grid, d.levels), make([]grid, d.levels), make([]grid, d.levels-1)
	for level := d.levels - 1; level >= 0; level-- {
		f(&b.q[level], d.area(thread, level), relaxed)
	}
	for level := d.levels - 2; level >= 0; level-- {
		f(&b.residual[level], d.area(thread, level), 2)
	}
	for level := range d.levels {
		f(&b.rhs[level], d.area(thread, level), 0)
	}
	finest := d.area(thread, d.levels-1)
	for _, g := range []*grid{
		&b.psi[0], &b.psi[1],
		&b.work3, &b.work7[0], &b.work7[1], &b.work1[0], &b.work1[1],
		&b.work4[0], &b.work4[1],
		&b.psib, &b.ga, &b.gb,
	} {
		f(g, finest, 1)
	}
	for _, g := range []*grid{
		&b.psim[0], &b.psim[1], &b.temp[0], &b.temp[1],
		&b.work2, &b.work5[0], &b.work5[1], &b.work6, &b.psium, &b.psilm, &b.oldga, &b.oldgb, &b.tauz,
	} {
		f(g, finest, 0)
	}
}
