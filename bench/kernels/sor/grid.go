package sor

import "dsmd/bench/kernel"

// A grid is edge rows of edge points, row by row.
type grid struct {
	edge   int
	points []float64
}

// block is the half-open range of interior rows that a thread relaxes.
func (g grid) block(t *kernel.Thread) (lo, hi int) {
	lo, hi = t.Mine(g.edge - 2)
	return lo + 1, hi + 1
}

func (g grid) row(i int) []float64 { return g.points[i*g.edge : (i+1)*g.edge] }

// fill sets row i of the input. The values vary with both coordinates in a period that no block or
// page size divides, so that a row or page in the wrong place changes the result.
func (g grid) fill(i int) {
	for j, row := 0, g.row(i); j < len(row); j++ {
		row[j] = float64((i*37+j*101)%1009) / 1009
	}
}

// relax updates the points of one colour in rows lo to hi-1, all of them interior.
func (g grid) relax(lo, hi, colour int) {
	for i := lo; i < hi; i++ {
		relaxRow(g.row(i-1), g.row(i), g.row(i+1), 1+(i+1+colour)&1)
	}
}

// relaxRow updates every second interior point of row, from the one at start, which is 1 or 2.
// The conversions forbid the compiler to fuse a multiplication and an addition on processors that
// can, which would round differently from one to another.
func relaxRow(above, row, below []float64, start int) {
	above, below = above[:len(row)], below[:len(row)]
	for j := start; j < len(row)-1; j += 2 {
		mean := float64((above[j] + below[j] + row[j-1] + row[j+1]) * 0.25)
		row[j] += float64(omega * (mean - row[j]))
	}
}
