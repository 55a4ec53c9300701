package cholesky

import (
	"errors"
	"fmt"
	"math"
)

// ErrIndefinite is returned for a matrix that is not positive definite, to the precision of the
// computation.
var ErrIndefinite = errors.New("the matrix is not positive definite")

// A factor is the numbers of a matrix, and in the end of its factor.
type factor struct {
	*structure
	numbers []float64
}

func (f factor) block(p *panel) []float64 { return f.numbers[p.offset : p.offset+p.size()] }

// fill stores the matrix's elements in a panel. What the factor fills in is zero.
func (f factor) fill(p *panel) {
	width, block := p.width(), f.block(p)
	clear(block)
	for column := p.first; column < p.end; column++ {
		c := column - p.first
		block[c*width+c] = f.diagonal
		at := c
		for _, row := range f.neighbours(column) {
			if int(row) > column {
				at = p.rowOf(row, at)
				block[at*width+c] = -1
			}
		}
	}
}

// rowOf is the index of a row, which is at from or later in the block. The distance is small where
// rows are looked up one after another.
func (p *panel) rowOf(row int32, from int) int {
	for p.rows[from] != row {
		from++
	}
	return from
}

// update subtracts from panel to what elimination of panel by's columns changes in it: by times
// itself transposed, in the rows and columns that the two have in common.
func (f factor) update(to, by *panel) {
	first := by.width()
	for int(by.rows[first]) < to.first {
		first++
	}
	end := first
	for end < len(by.rows) && int(by.rows[end]) < to.end {
		end++
	}
	source, target := f.block(by), f.block(to)
	depth, width := by.width(), to.width()
	at := 0
	for i := first; i < len(by.rows); i++ {
		at = to.rowOf(by.rows[i], at)
		row := target[at*width : (at+1)*width]
		left := source[i*depth : (i+1)*depth]
		// Only what is on or below the diagonal counts.
		last := min(end, i+1)
		c := first
		for ; c+4 <= last; c += 4 {
			a0, a1, a2, a3 := dot4(left, source[c*depth:(c+4)*depth])
			row[int(by.rows[c])-to.first] -= a0
			row[int(by.rows[c+1])-to.first] -= a1
			row[int(by.rows[c+2])-to.first] -= a2
			row[int(by.rows[c+3])-to.first] -= a3
		}
		for ; c < last; c++ {
			row[int(by.rows[c])-to.first] -= dot(left, source[c*depth:(c+1)*depth])
		}
	}
}

// dot is the sum of products, in order. The conversion forbids the compiler to fuse a
// multiplication and an addition on processors that can, which would round differently from one to
// another.
func dot(a, b []float64) float64 {
	b = b[:len(a)]
	sum := 0.0
	for k, x := range a {
		sum += float64(x * b[k])
	}
	return sum
}

// dot4 is dot for four rows that lie one after another, at about the cost of one and a half: four
// sums do not wait for each other.
func dot4(a, rows []float64) (s0, s1, s2, s3 float64) {
	n := len(a)
	b0, b1, b2, b3 := rows[:n], rows[n:2*n], rows[2*n:3*n], rows[3*n:4*n]
	for k, x := range a {
		s0 += float64(x * b0[k])
		s1 += float64(x * b1[k])
		s2 += float64(x * b2[k])
		s3 += float64(x * b3[k])
	}
	return s0, s1, s2, s3
}

// eliminate turns a panel, to which all updates have been applied, into the factor's: the dense
// factorisation of its own rows, and the rows below divided by it.
func (f factor) eliminate(p *panel) error {
	width, block := p.width(), f.block(p)
	for i := range p.rows {
		row := block[i*width : (i+1)*width]
		for c := range min(i, width) {
			above := block[c*width : (c+1)*width]
			row[c] = (row[c] - dot(row[:c], above)) / above[c]
		}
		if i < width {
			pivot := row[i] - dot(row[:i], row)
			if !(pivot > 0) {
				return fmt.Errorf("%w: the pivot of column %d is %v", ErrIndefinite, p.first+i, pivot)
			}
			row[i] = math.Sqrt(pivot)
		}
	}
	return nil
}

// solve replaces b, by column, by the solution of the system of equations.
func (f factor) solve(b []float64) {
	for i := range f.panels {
		p := &f.panels[i]
		width, block := p.width(), f.block(p)
		for c := range width {
			x := b[p.first+c] / block[c*width+c]
			b[p.first+c] = x
			for r := c + 1; r < len(p.rows); r++ {
				b[p.rows[r]] -= float64(block[r*width+c] * x)
			}
		}
	}
	for i := len(f.panels) - 1; i >= 0; i-- {
		p := &f.panels[i]
		width, block := p.width(), f.block(p)
		for c := width - 1; c >= 0; c-- {
			x := b[p.first+c]
			for r := c + 1; r < len(p.rows); r++ {
				x -= float64(block[r*width+c] * b[p.rows[r]])
			}
			b[p.first+c] = x / block[c*width+c]
		}
	}
}
