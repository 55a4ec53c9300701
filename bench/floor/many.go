package floor

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/uffd"
)

// loadTogether is P of FetchMany. Each pass is over fresh pages in random order, of which each
// thread takes the next one.
func (m mapping) loadTogether(spec Spec) []float64 {
	runtime.GOMAXPROCS(spec.Threads) // a thread that waits for a page keeps its P
	samples := make([]float64, 0, spec.Samples)
	for pass := range spec.Samples {
		order := rand.Perm(spec.Pages)
		var next atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for range spec.Threads {
			all.Go(func() {
				for i := next.Add(1) - 1; i < int64(spec.Pages); i = next.Add(1) - 1 {
					m.load(pass*spec.Pages + order[i])
				}
			})
		}
		all.Wait()
		samples = append(samples, microseconds(time.Since(start))/float64(spec.Pages))
	}
	return samples
}

// fetchMany is D of FetchMany. In each turn it asks with one call for all pages that threads have
// begun to wait for, and takes with one call what has come.
func (t *trapReader) fetchMany(connection int) error {
	requests := make([]byte, uffd.MaxFaults*requestBytes)
	come := make([]byte, 0, uffd.MaxFaults*PageBytes)
	var asked []uintptr // in the order in which they come
	for wait := newWait(t.spin); ; {
		if wait.exhausted() {
			if err := pollIn(t.fd.Sysfd(), connection); err != nil {
				return err
			}
		}
		faults, err := t.read(uffd.MaxFaults)
		if err != nil {
			return err
		}
		for _, f := range faults {
			asked = append(asked, f.Addr)
		}
		if err := send(connection, requests[:len(faults)*requestBytes]); err != nil {
			return err
		}
		n, err := receiveSome(connection, come[len(come):cap(come)], unix.MSG_DONTWAIT)
		if err != nil {
			return err
		}
		come = come[:len(come)+n]
		whole := len(come) / PageBytes
		if whole > len(asked) {
			return fmt.Errorf("%d pages came, %d were asked for", whole, len(asked))
		}
		for i, page := range asked[:whole] {
			if err := t.install(page, come[i*PageBytes:(i+1)*PageBytes], 0); err != nil {
				return err
			}
		}
		asked = asked[:copy(asked, asked[whole:])]
		come = come[:copy(come, come[whole*PageBytes:])]
		if len(faults)+n > 0 {
			wait = newWait(t.spin)
		}
	}
}

// serveMany is S of FetchMany. It answers all requests that have come with one call.
func serveMany(spec Spec) error {
	requests, pages := make([]byte, uffd.MaxFaults*requestBytes), make([]byte, uffd.MaxFaults*PageBytes)
	have := 0
	for wait := newWait(spec.Spin); ; {
		var flags uintptr = unix.MSG_DONTWAIT
		if wait.exhausted() {
			flags = 0
		}
		n, err := receiveSome(inheritedFirst, requests[have:], flags)
		if err != nil {
			return err
		}
		have += n
		if err := send(inheritedFirst, pages[:have/requestBytes*PageBytes]); err != nil {
			return err
		}
		have %= requestBytes // what the rest of a request says does not matter
		if n > 0 {
			wait = newWait(spec.Spin)
		}
	}
}
