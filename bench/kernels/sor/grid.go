package sor

import (
	"math"

	"dsmd/bench/kernel"
)

// Points are coloured like a chessboard, by the sum of their indices.
const (
	red   = 0 // even sums
	black = 1
)

// A grid is edge rows of edge points. The points of a colour are together, row by row: point (i, j)
// is number j/2 of row i of its colour. Rows of both colours have the same length, so that with an
// odd edge every second one has an element at its end that is no point. What a thread writes of a
// colour begins on a page.
type grid struct {
	edge    int
	starts  []int // of the rows, in the memory of each colour
	length  int   // of that memory, in elements
	colours [2][]float64
}

// newGrid lays a grid out for so many threads, without its memory.
func newGrid(edge, threads, pageBytes int) grid {
	g := grid{edge: edge, starts: make([]int, edge)}
	page := max(1, pageBytes/8)
	for thread := range threads {
		g.length = (g.length + page - 1) / page * page
		lo, hi := g.written(threads, thread)
		for i := lo; i < hi; i++ {
			g.starts[i] = g.length
			g.length += rowLength(edge)
		}
	}
	return g
}

// rowLength is how many elements a row of a colour has.
func rowLength(edge int) int { return (edge + 1) / 2 }

// relaxed is the half-open range of interior rows that a thread relaxes.
func (g grid) relaxed(threads, thread int) (lo, hi int) {
	lo, hi = kernel.Block(g.edge-2, threads, thread)
	return lo + 1, hi + 1
}

// written is the range of rows that a thread writes: those that it relaxes, and if it is the first
// or the last the fixed edge beside them. (Blocks may be empty, so the edge cannot be told from the
// block's limits.)
func (g grid) written(threads, thread int) (lo, hi int) {
	lo, hi = g.relaxed(threads, thread)
	if thread == 0 {
		lo = 0
	}
	if thread == threads-1 {
		hi = g.edge
	}
	return lo, hi
}

// row is the points of one colour in row i.
func (g grid) row(colour, i int) []float64 {
	return g.colours[colour][g.starts[i]:][:rowLength(g.edge)]
}

func (g grid) point(i, j int) *float64 { return &g.row((i+j)&1, i)[j/2] }

// fill sets row i of the input. The values vary with both coordinates in a period that no block or
// page size divides, so that a row or page in the wrong place changes the result.
func (g grid) fill(i int) {
	for j := range g.edge {
		*g.point(i, j) = float64((i*37+j*101)%1009) / 1009
	}
}

// relax updates the points of one colour in rows lo to hi-1, all of them interior.
func (g grid) relax(lo, hi, colour int) {
	other := 1 - colour
	for i := lo; i < hi; i++ {
		// The row's first point of this colour is in this column, and on the edge if that is 0.
		column := (i + colour) & 1
		first, end := 1-column, (g.edge-column)/2
		relaxRow(g.row(colour, i)[first:end], g.row(other, i-1)[first:], g.row(other, i), g.row(other, i+1)[first:])
	}
}

// relaxRow updates points of one colour. The others are their neighbours, of the other colour:
// above and below each, and beside them, of which the first is to the left of the first point. The
// conversions forbid the compiler to fuse a multiplication and an addition on processors that can,
// which would round differently from one to another.
func relaxRow(points, above, beside, below []float64) {
	n := len(points)
	above, below, left, right := above[:n], below[:n], beside[:n], beside[1:n+1]
	for k, x := range points {
		mean := float64((above[k] + below[k] + left[k] + right[k]) * 0.25)
		points[k] = x + float64(omega*(mean-x))
	}
}

// Len is the number of points.
func (g grid) Len() int { return g.edge * g.edge }

// At is a point's bits, in the order of rows: a grid is the kernel's output.
func (g grid) At(k int) uint64 { return math.Float64bits(*g.point(k/g.edge, k%g.edge)) }

// sum is the sum of the points, added up in order.
func (g grid) sum() float64 {
	sum := 0.0
	for i := range g.edge {
		for j := range g.edge {
			sum += *g.point(i, j)
		}
	}
	return sum
}
