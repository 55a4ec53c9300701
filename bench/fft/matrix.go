package fft

import "dsmd/bench/kernel"

const (
	elementBytes = 16
	// padding lengthens each row by a cache line, so that the elements of a column do not all compete for the same
	// lines of a cache: without it they are a power of two apart.
	padding = 64 / elementBytes
)

// A layout says where in a slice the rows of a square matrix are. The rows of a thread are contiguous and
// begin at an aligned place, so that no page has two writers.
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
			l.length += edge + padding
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

// tile is the edge of the squares in which transpose works: the lines of a cache that a tile needs from
// both matrices, 32 KiB, stay in it.
const tile = 32

// transpose writes the given thread's rows of to, which are the columns of from. It visits the other threads' rows
// starting after its own, so that not all threads read from the same one at the same time.
func transpose(to, from matrix, thread int) {
	lo, hi := kernel.Block(to.edge, to.threads, thread)
	for k := range to.threads {
		first, last := kernel.Block(to.edge, to.threads, (thread+1+k)%to.threads)
		for v := first; v < last; v += tile {
			for h := lo; h < hi; h += tile {
				transposeTile(to, from, v, min(v+tile, last), h, min(h+tile, hi))
			}
		}
	}
}

func transposeTile(to, from matrix, v, vEnd, h, hEnd int) {
	for ; v < vEnd; v++ {
		for j, z := range from.row(v)[h:hEnd] {
			to.elements[to.offsets[h+j]+v] = z
		}
	}
}
