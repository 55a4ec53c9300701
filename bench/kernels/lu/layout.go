package lu

import (
	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

// A layout says where the elements of the matrix are, and who owns which block.
type layout interface {
	// edge is the number of rows of the matrix, blocks that of rows of blocks, length that of
	// elements of the slice.
	edge() int
	blocks() int
	length() int
	// owner is the thread that writes block (i, j), which is in row i and column j of the blocks.
	owner(i, j int) int
	// block is block (i, j) of the matrix in elements.
	block(elements []float64, i, j int) block
	// perimeter is the memory of those blocks below diagonal block k that are in rows of a thread's
	// blocks, and of those to the right of it that are in its columns; nothing of what is its own
	// or does not lie together.
	perimeter(elements []float64, k, thread int) (below, right []float64)
	// inRow and inColumn are whether blocks of a row or column of blocks are a thread's.
	inRow(i, thread int) bool
	inColumn(j, thread int) bool
	// contended is the memory of the blocks of column j if several threads write to the same pages
	// of it, and else nothing.
	contended(elements []float64, j int) []float64
	// input is what the thread makes of the input: rectangles that together, for all threads, cover
	// the matrix once.
	input(elements []float64, thread int) []block
}

// A block is a rectangle of the matrix. Element (i, j) is columns[j*stride+i].
type block struct {
	columns    []float64
	stride     int
	rows, cols int
	row, col   int // of the first element in the matrix
	edge       int // of the matrix
}

func (b block) column(j int) []float64 { return b.columns[j*b.stride : j*b.stride+b.rows] }

// clone is the block in memory of its own.
func (b block) clone() block {
	own := b
	own.columns, own.stride = make([]float64, b.rows*b.cols), b.rows
	for j := range b.cols {
		copy(own.column(j), b.column(j))
	}
	return own
}

// maxRandom is what the original divides its random numbers by.
const maxRandom = 32767.0

// fill gives the block its part of the input: random numbers in the order of columns, ten times as
// large on the diagonal.
func (b block) fill() {
	for j := range b.cols {
		source := random.Rand48(1)
		source.Skip(uint64(b.col+j)*uint64(b.edge) + uint64(b.row))
		for i, column := 0, b.column(j); i < len(column); i++ {
			column[i] = float64(source.Int31()) / maxRandom
			if b.row+i == b.col+j {
				column[i] *= 10
			}
		}
	}
}

// square is what the layouts have in common. The threads are arranged in a rectangle as close to a
// square as their number allows, acrossRows by acrossColumns, and the blocks are dealt to it
// cyclically in both directions.
type square struct {
	n                         int
	threads                   int
	acrossRows, acrossColumns int
}

// newSquare arranges the threads in shorter by threads/shorter.
func newSquare(n, threads int) (s square, shorter, longer int) {
	shorter = 1
	for k := 1; k*k <= threads; k++ {
		if threads%k == 0 {
			shorter = k
		}
	}
	return square{n: n, threads: threads}, shorter, threads / shorter
}

func (s square) edge() int          { return s.n }
func (s square) blocks() int        { return (s.n + blockEdge - 1) / blockEdge }
func (s square) owner(i, j int) int { return i%s.acrossRows*s.acrossColumns + j%s.acrossColumns }

func (s square) inRow(i, thread int) bool    { return i%s.acrossRows == thread/s.acrossColumns }
func (s square) inColumn(j, thread int) bool { return j%s.acrossColumns == thread%s.acrossColumns }

// extent is the number of rows or columns of blocks in place i: the last may have fewer.
func (s square) extent(i int) int { return min(blockEdge, s.n-i*blockEdge) }

func (s square) at(i, j int) block {
	return block{rows: s.extent(i), cols: s.extent(j), row: i * blockEdge, col: j * blockEdge, edge: s.n}
}

// contiguous is the layout of "lu".
type contiguous struct {
	square
	starts []int // of block (i, j) at i + j*blocks
	size   int
}

// newContiguous lays the blocks of each thread out together, step by step: those whose last values
// come in a step are together, so that others fetch what they need of them at once, and nobody
// writes to these pages any more but to the last, which may have blocks of the next step, too. Only
// a diagonal block is read by others while its owner writes more blocks of the step, so it has
// pages of its own.
func newContiguous(n, threads, alignBytes int) layout {
	s, shorter, longer := newSquare(n, threads)
	s.acrossRows, s.acrossColumns = shorter, longer
	l := &contiguous{square: s, starts: make([]int, s.blocks()*s.blocks())}
	for thread := range threads {
		l.align(alignBytes)
		for k := range s.blocks() {
			if s.owner(k, k) == thread {
				l.align(alignBytes)
				l.place(thread, k, k)
				l.align(alignBytes)
			}
			for i := k + 1; i < s.blocks(); i++ {
				l.place(thread, i, k)
			}
			for j := k + 1; j < s.blocks(); j++ {
				l.place(thread, k, j)
			}
		}
	}
	return *l
}

// align has the next block begin at an aligned place.
func (l *contiguous) align(bytes int) {
	align := max(1, bytes/8)
	l.size = (l.size + align - 1) / align * align
}

// place puts a block at the next place, if it is the thread's.
func (l *contiguous) place(thread, i, j int) {
	if l.owner(i, j) == thread {
		l.starts[i+j*l.blocks()] = l.size
		l.size += l.extent(i) * l.extent(j)
	}
}

// owned visits the blocks of a thread.
func (s square) owned(thread int, visit func(i, j int)) {
	for j := thread % s.acrossColumns; j < s.blocks(); j += s.acrossColumns {
		for i := thread / s.acrossColumns; i < s.blocks(); i += s.acrossRows {
			visit(i, j)
		}
	}
}

func (l contiguous) length() int { return l.size }

func (l contiguous) block(elements []float64, i, j int) block {
	b := l.at(i, j)
	start := l.starts[i+j*l.blocks()]
	b.columns, b.stride = elements[start:start+b.rows*b.cols], b.rows
	return b
}

func (l contiguous) perimeter(elements []float64, k, thread int) (below, right []float64) {
	if i, last, ok := dealt(k+1, l.blocks(), thread/l.acrossColumns, l.acrossRows); ok && l.owner(i, k) != thread {
		below = l.stretch(elements, i, k, last, k)
	}
	if j, last, ok := dealt(k+1, l.blocks(), thread%l.acrossColumns, l.acrossColumns); ok && l.owner(k, j) != thread {
		right = l.stretch(elements, k, j, k, last)
	}
	return below, right
}

// dealt is the first and the last of the numbers from lo to hi-1 that one of so many parties is
// dealt; ok is whether there is any.
func dealt(lo, hi, party, parties int) (first, last int, ok bool) {
	first = lo + (party-lo%parties+parties)%parties
	return first, first + (hi-1-first)/parties*parties, first < hi
}

// stretch is the memory from one block to another one.
func (l contiguous) stretch(elements []float64, i, j, lastRow, lastColumn int) []float64 {
	end := l.starts[lastRow+lastColumn*l.blocks()] + l.extent(lastRow)*l.extent(lastColumn)
	return elements[l.starts[i+j*l.blocks()]:end]
}

func (l contiguous) contended([]float64, int) []float64 { return nil }

func (l contiguous) input(elements []float64, thread int) (parts []block) {
	l.owned(thread, func(i, j int) { parts = append(parts, l.block(elements, i, j)) })
	return parts
}

// plain is the layout of "lu-nc".
type plain struct{ square }

// newPlain divides the rows among more threads than the columns, as the original does: with two
// threads already, both write each column.
func newPlain(n, threads int) layout {
	s, shorter, longer := newSquare(n, threads)
	s.acrossRows, s.acrossColumns = longer, shorter
	return plain{s}
}

func (l plain) length() int { return l.n * l.n }

func (l plain) block(elements []float64, i, j int) block {
	b := l.at(i, j)
	start := b.row + b.col*l.n
	b.columns, b.stride = elements[start:start+(b.cols-1)*l.n+b.rows], l.n
	return b
}

// perimeter is nothing: blocks are scattered over the pages of their columns.
func (l plain) perimeter([]float64, int, int) (below, right []float64) { return nil, nil }

func (l plain) contended(elements []float64, j int) []float64 {
	return elements[l.n*blockEdge*j:][:l.n*l.extent(j)]
}

// input divides the matrix into blocks of neighbouring columns.
func (l plain) input(elements []float64, thread int) []block {
	lo, hi := kernel.Block(l.n, l.threads, thread)
	return []block{{columns: elements[lo*l.n : hi*l.n], stride: l.n, rows: l.n, cols: hi - lo, col: lo, edge: l.n}}
}

// columnByColumn copies the matrix out of its layout.
func columnByColumn(l layout, elements []float64) kernel.Float64s {
	n := l.edge()
	output := make(kernel.Float64s, n*n)
	for j := range l.blocks() {
		for i := range l.blocks() {
			b := l.block(elements, i, j)
			for c := range b.cols {
				copy(output[(b.col+c)*n+b.row:], b.column(c))
			}
		}
	}
	return output
}
