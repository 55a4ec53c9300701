package lu

import (
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// A factorisation is one thread's part of the work.
type factorisation struct {
	layout
	elements []float64
	thread   *kernel.Thread
}

func (f factorisation) at(i, j int) block { return f.block(f.elements, i, j) }

func (f factorisation) inRow(i int) bool    { return f.layout.inRow(i, f.thread.Index) }
func (f factorisation) inColumn(j int) bool { return f.layout.inColumn(j, f.thread.Index) }

// fetch brings column j of the blocks here if others write to its pages, too: all of them at once,
// so that they are here while the thread works on its blocks.
func (f factorisation) fetch(j int, access dsm.Access) {
	kernel.Fetch(f.thread, f.contended(f.elements, j), access)
}

// factorDiagonal factors diagonal block k.
func (f factorisation) factorDiagonal(k int) {
	if f.inRow(k) && f.inColumn(k) {
		factor(f.at(k, k))
	}
}

// dividePerimeter divides the blocks to the right of diagonal block k and those below it. Others
// write beside the diagonal block meanwhile, so each thread has its own copy of that.
func (f factorisation) dividePerimeter(k int) {
	access := dsm.Read
	if f.inColumn(k) {
		access = dsm.Write
	}
	f.fetch(k, access)
	diagonal := f.at(k, k).clone()
	for j := k + 1; j < f.blocks() && f.inRow(k); j++ {
		if f.inColumn(j) {
			f.fetch(j, dsm.Write)
			divideByLower(f.at(k, j), diagonal)
		}
	}
	if !f.inColumn(k) {
		return
	}
	f.fetch(k, dsm.Write)
	for i := k + 1; i < f.blocks(); i++ {
		if f.inRow(i) {
			divideByUpper(f.at(i, k), diagonal)
		}
	}
}

// modifyInterior subtracts from the blocks below and to the right of diagonal block k the products
// of the perimeter. It does so column by column: in a plain array all blocks of a column are on the
// same pages, which the thread then wants once in a step, and not once for each row. Whoever has
// divided blocks of row k has the pages of their columns, and begins with the first. The others
// begin with the last, so that what they take has been used there.
func (f factorisation) modifyInterior(k int) {
	f.fetch(k, dsm.Read)
	for n := k + 1; n < f.blocks(); n++ {
		j := n
		if !f.inRow(k) {
			j = f.blocks() + k - n
		}
		if !f.inColumn(j) {
			continue
		}
		f.fetch(j, dsm.Write)
		for i := k + 1; i < f.blocks(); i++ {
			if f.inRow(i) {
				subtractProduct(f.at(i, j), f.at(i, k), f.at(k, j))
			}
		}
	}
}

// factor replaces d by its lower factor and, above the diagonal, its upper factor, whose diagonal
// is 1.
func factor(d block) {
	for j := range d.cols {
		solveColumn(d.column(j), d, j)
	}
}

// divideByLower replaces c by the solution X of L*X = c, where L is the lower factor in d.
func divideByLower(c, d block) {
	for j := range c.cols {
		solveColumn(c.column(j), d, d.cols)
	}
}

// solveColumn eliminates the first n unknowns of column with the first n columns of the lower
// factor in d.
func solveColumn(column []float64, d block, n int) {
	for k := range n {
		pivot := d.column(k)
		column[k] /= pivot[k]
		subtractMultiple(column[k+1:], pivot[k+1:], column[k])
	}
}

// divideByUpper replaces a by the solution X of X*U = a, where U is the upper factor in d.
func divideByUpper(a, d block) {
	for j := range a.cols {
		subtractCombination(a.column(j), a, d.column(j)[:j])
	}
}

// subtractProduct subtracts a*b from c.
func subtractProduct(c, a, b block) {
	for j := range c.cols {
		subtractCombination(c.column(j), a, b.column(j))
	}
}

// subtractCombination subtracts from column the first columns of a, each times its weight, in
// order. It takes four at once, which leaves the order of operations on each element as it is but
// saves three of four loads and stores.
func subtractCombination(column []float64, a block, weights []float64) {
	k := 0
	for ; k+4 <= len(weights); k += 4 {
		w0, w1, w2, w3 := weights[k], weights[k+1], weights[k+2], weights[k+3]
		a0, a1, a2, a3 := a.column(k)[:len(column)], a.column(k + 1)[:len(column)], a.column(k + 2)[:len(column)], a.column(k + 3)[:len(column)]
		for i, x := range column {
			x -= float64(w0 * a0[i])
			x -= float64(w1 * a1[i])
			x -= float64(w2 * a2[i])
			x -= float64(w3 * a3[i])
			column[i] = x
		}
	}
	for ; k < len(weights); k++ {
		subtractMultiple(column, a.column(k), weights[k])
	}
}

// subtractMultiple subtracts w*b from a. The conversion, here and above, forbids the compiler to
// fuse the multiplication and the subtraction on processors that can, which would round differently
// from one to another.
func subtractMultiple(a, b []float64, w float64) {
	b = b[:len(a)]
	for i := range a {
		a[i] -= float64(w * b[i])
	}
}
