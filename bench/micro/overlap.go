package micro

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"dsmd/dsm"
)

// overlap times passes over all pages in random order, in which overlapReaders goroutines take the
// next page each. A sample is the time of a pass divided by its pages. A goroutine that waits for a
// page keeps its P, so at most procs of them wait at a time, unless each calls Prefetch before,
// which waits without a P.
func overlap(procs int, prefetch bool) func(*place) ([]float64, error) {
	return func(p *place) (samples []float64, err error) {
		var failed error
		read := p.at(1, timePasses(passesPerRun, &samples, func(s pages) { failed = errors.Join(failed, p.readTogether(s, prefetch)) }))
		err = p.onPages(pagesPerPass*passesPerRun, p.at(0, storeAll), func(s pages) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			read(s)
		})
		return samples, errors.Join(failed, err)
	}
}

// readTogether loads from each page once.
func (p *place) readTogether(s pages, prefetch bool) error {
	order := p.order(s.count())
	var next atomic.Int64
	var all sync.WaitGroup
	wrong := make([]error, overlapReaders)
	for g := range overlapReaders {
		all.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(order)) && wrong[g] == nil; i = next.Add(1) - 1 {
				wrong[g] = p.readOne(s, order[i], prefetch)
			}
		})
	}
	all.Wait()
	return errors.Join(wrong...)
}

// readOne loads from a page and looks whether it is the right one: what several goroutines wait for
// may be mixed up.
func (p *place) readOne(s pages, page int, prefetch bool) error {
	at := page * s.each
	if prefetch {
		if err := dsm.Prefetch(p.ctx, p.cluster, s.words[at:at+1], dsm.Read); err != nil {
			return err
		}
	}
	if v := s.words[at]; v == 0 || v%pagesPerPass != uint64(page+1)%pagesPerPass {
		return fmt.Errorf("page %d has %d", page, v)
	}
	return nil
}
