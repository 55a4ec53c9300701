package fft

import "dsmd/bench/kernel"

const elementBytes = 16

// A layout says where in a slice the rows of a square matrix are. The rows of a thread are
// contiguous and begin at an aligned place, so that no page has two writers. Rows are not padded:
// their lengths are powers of two, so that with as many threads what each needs of a row begins and
// ends with a page, if it is that long.
type layout struct {
	edge    int
	threads int
	offsets []int // by row
	length  int   // of the slice
}

func newLayout(edge, threads, alignBytes int) layout {
	l := layout{edge: edge, threads: threads, offsets: make([]int, edge)}
	align := max(1, alignBytes/elementBytes)
	for thread := range threads {
		l.length = (l.length + align - 1) / align * align
		for lo, hi := kernel.Block(edge, threads, thread); lo < hi; lo++ {
			l.offsets[lo] = l.length
			l.length += edge
		}
	}
	return l
}

type matrix struct {
	layout
	elements []complex128
}

func (m matrix) row(i int) []complex128 {
	at := m.offsets[i]
	return m.elements[at : at+m.edge : at+m.edge]
}

// rows is the memory of rows lo to hi-1, which are one thread's, and more than none.
func (m matrix) rows(lo, hi int) []complex128 {
	return m.elements[m.offsets[lo] : m.offsets[hi-1]+m.edge]
}

// tile is the edge of the squares in which transpose works: a line of the cache for each of its
// rows and the buffer, 16 KiB, stay in it.
const tile = 32

// buffer holds a tile on its way. The elements of a column are a power of two apart, and would
// compete for the same lines of a cache: in the buffer they don't, and between it and the matrices
// rows are copied.
type buffer [tile][tile]complex128

// transpose writes the given thread's rows of to, which are the columns of from. It visits the
// other threads' rows starting after its own, so that not all threads read from the same one at the
// same time. What it reads of another thread's, it reads column of tiles by column of tiles, and so
// page for page at equal distances.
func transpose(to, from matrix, thread int) {
	var b buffer
	lo, hi := kernel.Block(to.edge, to.threads, thread)
	for k := range to.threads {
		first, last := kernel.Block(to.edge, to.threads, (thread+1+k)%to.threads)
		for h := lo; h < hi; h += tile {
			for v := first; v < last; v += tile {
				b.transpose(to, from, part{v, min(v+tile, last), h, min(h+tile, hi)})
			}
		}
	}
}

// A part of a matrix is rows v to vEnd-1 of columns h to hEnd-1.
type part struct{ v, vEnd, h, hEnd int }

// transpose does so with a part of from.
func (b *buffer) transpose(to, from matrix, p part) {
	for i := p.v; i < p.vEnd; i++ {
		for j, z := range from.row(i)[p.h:p.hEnd] {
			b[j][i-p.v] = z
		}
	}
	for j := p.h; j < p.hEnd; j++ {
		copy(to.row(j)[p.v:p.vEnd], b[j-p.h][:])
	}
}
