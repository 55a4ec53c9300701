package fft

import (
	"dsmd/bench/kernel"
	"dsmd/dsm"
)

// A prefetcher fetches what a thread touches in a step.
type prefetcher struct{ *kernel.Thread }

// step fetches what a step touches that transposes from one matrix to another. What it reads is not
// written by anybody before the next barrier, and what it writes is its own, so that the pages stay
// until they are needed.
func (p prefetcher) step(to, from matrix) {
	kernel.Fetch(p.Thread, to.owned(p.Index), dsm.Write)
	for k := range p.Total - 1 {
		kernel.Fetch(p.Thread, from.patch((p.Index+1+k)%p.Total, p.Index).elements, dsm.Read)
	}
}
