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
	// below is the memory of those blocks below diagonal block k that are in rows of a thread's
	// blocks, if they are another's and lie together.
	below(elements []float64, k, thread int) []float64
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

// newContiguous lays the blocks of each thread out together, from an aligned place on.
func newContiguous(n, threads, alignBytes int) layout {
	s, shorter, longer := newSquare(n, threads)
	s.acrossRows, s.acrossColumns = shorter, longer
	l := contiguous{square: s, starts: make([]int, s.blocks()*s.blocks())}
	align := max(1, alignBytes/8)
	for thread := range threads {
		l.size = (l.size + align - 1) / align * align
		l.owned(thread, func(i, j int) {
			l.starts[i+j*s.blocks()] = l.size
			l.size += s.extent(i) * s.extent(j)
		})
	}
	return l
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

func (l contiguous) below(elements []float64, k, thread int) []float64 {
	first := k + 1 // in the thread's rows
	for first%l.acrossRows != thread/l.acrossColumns {
		first++
	}
	if first >= l.blocks() || l.owner(first, k) == thread {
		return nil
	}
	last := l.blocks() - 1 - (l.blocks()-1-first)%l.acrossRows
	end := l.starts[last+k*l.blocks()] + l.extent(last)*l.extent(k)
	return elements[l.starts[first+k*l.blocks()]:end]
}

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

// below is nothing: blocks are scattered over the pages of their columns.
func (l plain) below([]float64, int, int) []float64 { return nil }

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
