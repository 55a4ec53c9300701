package cholesky

import (
	"slices"

	"dsmd/bench/kernel"
)

// diagonalExcess is by how much the diagonal exceeds what makes every row's sum at least zero: the
// original's constant. With it the matrix is positive definite.
const diagonalExcess = 0.1

// A matrix is a sparse symmetric matrix with the numbers that the original gives to any: -1 off the
// diagonal wherever there is an element, and on all of the diagonal the number of elements in the
// fullest column, and a tenth.
type matrix struct {
	// starts is where each column's rows begin in rows, and where the last one's end.
	starts []int32
	// rows are those of the elements off the diagonal, above it as well as below, column by column,
	// increasing.
	rows []int32
	// diagonal is the number that stands everywhere on the diagonal.
	diagonal float64
}

// newMatrix makes a matrix of what is below its diagonal: column c has elements in
// rows[starts[c]:starts[c+1]], which increase and are all greater than c.
func newMatrix(starts, rows []int32) *matrix {
	n := len(starts) - 1
	m := &matrix{starts: make([]int32, n+1), rows: make([]int32, 2*len(rows))}
	for column := range n {
		for _, row := range rows[starts[column]:starts[column+1]] {
			m.starts[column+1]++
			m.starts[row+1]++
		}
	}
	fullest := int32(0)
	for column := range n {
		fullest = max(fullest, 1+m.starts[column+1])
		m.starts[column+1] += m.starts[column]
	}
	m.diagonal = float64(fullest) + diagonalExcess
	// A column's rows above the diagonal come from earlier columns, so that they are there, in
	// order, before its own.
	next := append([]int32(nil), m.starts[:n]...)
	put := func(row, column int32) {
		m.rows[next[column]] = row
		next[column]++
	}
	for column := range int32(n) {
		for _, row := range rows[starts[column]:starts[column+1]] {
			put(row, column)
			put(column, row)
		}
	}
	return m
}

// size is the number of equations: of rows, and of columns.
func (m *matrix) size() int { return len(m.starts) - 1 }

// elements is the number of elements on and below the diagonal.
func (m *matrix) elements() int { return m.size() + len(m.rows)/2 }

// neighbours are the rows of the elements off the diagonal in a column, increasing.
func (m *matrix) neighbours(column int) []int32 { return m.rows[m.starts[column]:m.starts[column+1]] }

// fingerprint tells matrices apart: the FNV of the number of columns and, of each column, the
// number of its elements off the diagonal and their rows.
func (m *matrix) fingerprint() string {
	words := kernel.Uint64s{uint64(m.size())}
	for column := range m.size() {
		words = append(words, uint64(len(m.neighbours(column))))
		for _, row := range m.neighbours(column) {
			words = append(words, uint64(row))
		}
	}
	return kernel.FNV(words)
}

// permuted is the matrix with its rows and columns in another order: order[k] is which one becomes
// number k.
func (m *matrix) permuted(order []int32) *matrix {
	place := make([]int32, len(order))
	for k, column := range order {
		place[column] = int32(k)
	}
	starts, rows := make([]int32, 1, len(order)+1), make([]int32, 0, len(m.rows)/2)
	for k, column := range order {
		first := len(rows)
		for _, row := range m.neighbours(int(column)) {
			if int(place[row]) > k {
				rows = append(rows, place[row])
			}
		}
		slices.Sort(rows[first:])
		starts = append(starts, int32(len(rows)))
	}
	return newMatrix(starts, rows)
}

// apply is the matrix times x.
func (m *matrix) apply(x []float64) []float64 {
	product := make([]float64, len(x))
	for column := range x {
		sum := float64(m.diagonal * x[column])
		for _, row := range m.neighbours(column) {
			sum -= x[row]
		}
		product[column] = sum
	}
	return product
}
