package fft

import (
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// A prefetcher fetches what a thread touches in transpose.
type prefetcher struct{ *kernel.Thread }

// transposition fetches what transpose touches. What it reads is not written by anybody before the
// next barrier, and what it writes is its own, so that the pages stay until they are needed.
func (p prefetcher) transposition(to, from matrix) {
	lo, hi := p.Mine(to.edge)
	if lo == hi {
		return
	}
	kernel.Fetch(p.Thread, to.rows(lo, hi), dsm.Write)
	for k := range p.Total - 1 {
		first, last := p.Block(to.edge, (p.Index+1+k)%p.Total)
		p.columns(from, first, last, lo, hi)
	}
}

// columns fetches columns lo to hi-1 of rows first to last-1, which are one other thread's. Where
// rows are no longer than pages, that is about all pages of these rows, so they are asked for at
// once.
func (p prefetcher) columns(from matrix, first, last, lo, hi int) {
	if first < last && from.edge*elementBytes <= p.PageBytes() {
		kernel.Fetch(p.Thread, from.rows(first, last), dsm.Read)
		return
	}
	for v := first; v < last; v++ {
		kernel.Fetch(p.Thread, from.row(v)[lo:hi], dsm.Read)
	}
}
