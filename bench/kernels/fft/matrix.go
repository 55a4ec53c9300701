package fft

import "dsmd/bench/kernel"

const elementBytes = 16

// A layout says where in a slice the elements of a square matrix are. The rows of a thread are
// together, and begin at an aligned place, so that no page has two writers. In them, patch by
// patch, the columns that one thread reads to transpose are together, so that it reads no page for
// a part of it. Patches are not padded: their edges are powers of two, so that with as many threads
// each begins and ends with a page, if it is that long.
type layout struct {
	edge    int
	threads int
	starts  []int // of what a reader reads of a thread's rows, at thread*threads+reader
	length  int   // of the slice
}

func newLayout(edge, threads, alignBytes int) layout {
	l := layout{edge: edge, threads: threads}
	align := max(1, alignBytes/elementBytes)
	for thread := range threads {
		l.length = (l.length + align - 1) / align * align
		for reader := range threads {
			l.starts = append(l.starts, l.length)
			l.length += l.rows(thread) * l.rows(reader)
		}
	}
	return l
}

// block is the range of a thread's rows, and of the columns that it reads.
func (l layout) block(thread int) (lo, hi int) { return kernel.Block(l.edge, l.threads, thread) }

func (l layout) rows(thread int) int {
	lo, hi := l.block(thread)
	return hi - lo
}

type matrix struct {
	layout
	elements []complex128
}

// A patch is a rectangle of a matrix, row by row.
type patch struct {
	width    int
	elements []complex128
}

func (p patch) row(i int) []complex128 { return p.elements[i*p.width:][:p.width] }

// patch is what a reader reads of a thread's rows.
func (m matrix) patch(thread, reader int) patch {
	width := m.rows(reader)
	return patch{width, m.elements[m.starts[thread*m.threads+reader]:][:m.rows(thread)*width]}
}

// owned is the memory of a thread's rows.
func (m matrix) owned(thread int) []complex128 {
	return m.elements[m.starts[thread*m.threads]:][:m.rows(thread)*m.edge]
}

// set stores neighbouring rows of a thread, from row i on. It does so patch by patch, and so page
// after page.
func (m matrix) set(thread, i int, rows [][]complex128) {
	lo, _ := m.block(thread)
	for reader := range m.threads {
		first, last := m.block(reader)
		p := m.patch(thread, reader)
		for j, row := range rows {
			copy(p.row(i-lo+j), row[first:last])
		}
	}
}

// rowByRow copies the matrix out of its layout.
func (m matrix) rowByRow() []complex128 {
	out := make([]complex128, m.edge*m.edge)
	for thread := range m.threads {
		lo, hi := m.block(thread)
		for reader := range m.threads {
			first, _ := m.block(reader)
			p := m.patch(thread, reader)
			for i := lo; i < hi; i++ {
				copy(out[i*m.edge+first:], p.row(i-lo))
			}
		}
	}
	return out
}

const (
	// bandRows is the number of rows that a thread has in work. A line of the cache for each stays
	// in it, and with 2^16 numbers all rows together in the next larger one. With fewer rows, less
	// of a patch would be written at a time, in shorter runs of pages.
	bandRows = 64
	// lineElements is the number of elements in a line of the cache.
	lineElements = 4
)

// A band is some rows that a thread has in work, in memory of its own. Rows that are a power of two
// apart would compete for the same lines of the cache, so they are a line further apart.
type band [][]complex128

func newBand(edge int) band {
	b, stride := make(band, bandRows), edge+lineElements
	memory := make([]complex128, bandRows*stride)
	for i := range b {
		b[i] = memory[i*stride:][:edge]
	}
	return b
}

// transpose fills the band with columns of a matrix: of those that the thread reads, from the given
// one on. It visits the other threads' rows starting after its own, so that not all threads read
// from the same one at the same time.
func (b band) transpose(from matrix, thread, column int) {
	for k := range from.threads {
		other := (thread + 1 + k) % from.threads
		first, last := from.block(other)
		p := from.patch(other, thread)
		for i := first; i < last; i++ {
			for j, z := range p.row(i - first)[column:][:len(b)] {
				b[j][i] = z
			}
		}
	}
}
