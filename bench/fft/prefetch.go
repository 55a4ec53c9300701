package fft

import (
	"context"

	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// A prefetcher is the fetcher for shared memory.
type prefetcher struct{ cluster *dsm.Cluster }

// transposition fetches what transpose touches. What it reads is not written by anybody before the next barrier, and what it writes
// is its own, so that the pages stay until they are needed.
func (p prefetcher) transposition(ctx context.Context, to, from matrix, thread int) error {
	lo, hi := kernel.Block(to.edge, to.threads, thread)
	if lo == hi {
		return nil
	}
	if err := dsm.Prefetch(ctx, p.cluster, to.rows(lo, hi), dsm.Write); err != nil {
		return err
	}
	for k := range to.threads - 1 {
		first, last := kernel.Block(to.edge, to.threads, (thread+1+k)%to.threads)
		if err := p.columns(ctx, from, first, last, lo, hi); err != nil {
			return err
		}
	}
	return nil
}

// columns fetches columns lo to hi-1 of rows first to last-1, which are one other thread's. Where rows are no longer than pages, that
// is about all pages of these rows, so they are asked for at once.
func (p prefetcher) columns(ctx context.Context, from matrix, first, last, lo, hi int) error {
	if first == last {
		return nil
	}
	if from.edge*elementBytes <= p.cluster.PageBytes() {
		return dsm.Prefetch(ctx, p.cluster, from.rows(first, last), dsm.Read)
	}
	for v := first; v < last; v++ {
		if err := dsm.Prefetch(ctx, p.cluster, from.row(v)[lo:hi], dsm.Read); err != nil {
			return err
		}
	}
	return nil
}
