package e2e

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"dsmd/dsm"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/internal/uffd/uffdtest"
)

// TestFirstWriteOfAnotherProgram has two programs of one node read a page that other nodes read
// too. The first write of either must be noticed, though the page is present in both, and take the
// copies from the other nodes. There are two of these, because a page that only two nodes have is
// soon taken for one that migrates, and then no longer shared.
func TestFirstWriteOfAnotherProgram(t *testing.T) {
	c := serve(t, 3, 4)
	one, far, other, third := join(t, c, 0, 0, 4), join(t, c, 1, 1, 4), join(t, c, 0, 2, 4), join(t, c, 2, 3, 4)
	all := []*testcluster.Process{one, far, other, third}
	invalidations := func() uint64 {
		return counter(t, one, "invalidations") + counter(t, far, "invalidations") + counter(t, third, "invalidations")
	}
	for _, p := range all {
		p.Do(t, "ok", "alloc data 3")
	}
	value := 1
	for _, writer := range []*testcluster.Process{far, other, one, other, far, one} {
		for _, p := range all {
			p.Ask(t, "get data 600") // a read copy everywhere, in every program
		}
		before := invalidations()
		writer.Do(t, "ok", "put data 600 %d", value)
		if after := invalidations(); value > 1 && after != before+2 {
			t.Errorf("write %d: %d copies were given up, want 2", value, after-before)
		}
		for _, p := range all {
			p.Do(t, strconv.Itoa(value), "get data 600")
		}
		value++
	}
	for _, p := range all {
		p.Succeed(t)
	}
}

// adder counts with atomic additions and with compare-and-swap loops, from several goroutines, and
// checks the sums.
var adder = testcluster.Define("adder", func(s *testcluster.Self) error {
	const goroutines, rounds = 3, 200
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	sums, err := dsm.Alloc[uint64](s.Ctx, c, "sums", 2*c.PageBytes()/8)
	if err != nil {
		return err
	}
	small, err := dsm.Isolate[uint32](s.Ctx, c, "small sum")
	if err != nil {
		return err
	}
	// two in one cache line, one on another page
	added, swapped, far := &sums[0], &sums[1], &sums[len(sums)-1]
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range rounds {
				atomic.AddUint64(added, 1)
				atomic.AddUint32(small, 3)
				for old := atomic.LoadUint64(swapped); !atomic.CompareAndSwapUint64(swapped, old, old+2); {
					old = atomic.LoadUint64(swapped)
				}
				atomic.AddUint64(far, ^uint64(0))
			}
		})
	}
	all.Wait()
	if err := c.Barrier(s.Ctx); err != nil {
		return err
	}
	total := uint64(goroutines * rounds * c.Size())
	for _, sum := range []struct{ got, want uint64 }{{*added, total}, {*swapped, 2 * total}, {*far, -total}, {uint64(*small), 3 * total}} {
		if sum.got != sum.want {
			return fmt.Errorf("rank %d sees a sum of %d, want %d", c.Rank(), sum.got, sum.want)
		}
	}
	return c.Close()
})

// TestAtomics counts with sync/atomic, on some nodes with one program each, and with two programs
// on each node.
func TestAtomics(t *testing.T) {
	uffdtest.Require(t)
	t.Run("3 nodes", func(t *testing.T) {
		testcluster.Job{Nodes: 3, Program: adder}.Succeed(t)
	})
	t.Run("2 nodes of 2 programs", func(t *testing.T) {
		c := serve(t, 2, 4)
		var all []*testcluster.Process
		for rank := range 4 {
			all = append(all, c.Program(t, adder, rank%2, rank))
		}
		for _, p := range all {
			p.Succeed(t)
		}
	})
}

// churner moves pages while the collector runs all the time: it copies pages that are missing,
// faults from functions whose stacks grow, and allocates beside that. Each rank writes its own
// part, and checks all parts.
var churner = testcluster.Define("churner", func(s *testcluster.Self) error {
	const pages, rounds = 4, 12
	c, err := dsm.Join(s.Ctx)
	if err != nil {
		return err
	}
	words := pages * c.PageBytes() / 8
	all, err := dsm.Alloc[uint64](s.Ctx, c, "parts", words*c.Size())
	if err != nil {
		return err
	}
	part := func(rank int) []uint64 { return all[rank*words:][:words] }
	stop := litter()
	defer stop()
	private := make([]uint64, words)
	for round := range uint64(rounds) {
		for i := range private {
			private[i] = round<<32 | uint64(c.Rank()*words+i)
		}
		copy(part(c.Rank()), private)
		if err := c.Barrier(s.Ctx); err != nil {
			return err
		}
		for rank := range c.Size() {
			if rank%2 == 0 {
				copy(private, part(rank))
			} else {
				deep(private, part(rank), 0)
			}
			for i, v := range private {
				if want := round<<32 | uint64(rank*words+i); v != want {
					return fmt.Errorf("round %d: word %d of rank %d is %#x, want %#x", round, i, rank, v, want)
				}
			}
		}
		if err := c.Barrier(s.Ctx); err != nil {
			return err
		}
	}
	return c.Close()
})

// litter keeps the collector busy until stop is called.
func litter() (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	all.Go(func() {
		for !over.Load() {
			runtime.GC()
			runtime.Gosched()
		}
	})
	for range 2 {
		all.Go(func() {
			for keep := [64][]byte{}; !over.Load(); {
				for i := range keep {
					keep[i] = make([]byte, 1<<(i%14))
				}
				runtime.Gosched()
			}
		})
	}
	return func() { over.Store(true); all.Wait() }
}

// deep copies from the back in a goroutine whose stack grows with every word: each call has a frame
// that is larger than what a goroutine begins with.
func deep(to, from []uint64, depth int) {
	if depth > 0 {
		var frame [512]uint64
		if len(from) == 0 {
			return
		}
		last := min(len(from), len(frame))
		n := copy(frame[:last], from[len(from)-last:])
		deep(to[:len(to)-n], from[:len(from)-n], depth+1)
		copy(to[len(to)-n:], frame[:n])
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		deep(to, from, 1)
	}()
	<-done
}

// TestCollectorAndFaults moves pages under a collector that runs as often as it can, with one
// processor and with several. A fault that the program had to serve itself would hang here.
func TestCollectorAndFaults(t *testing.T) {
	t.Parallel()
	uffdtest.Require(t)
	for _, env := range [][]string{{"GOMAXPROCS=1", "GOGC=5"}, {"GOMAXPROCS=4", "GOGC=5"}} {
		t.Run(fmt.Sprint(env), func(t *testing.T) {
			testcluster.Job{Nodes: 2, Program: churner, Env: env}.Succeed(t)
		})
	}
}

// TestSystemCalls has the kernel itself touch shared memory, in write(2). A page that is here,
// after a prefetch, can always be written; a page that is missing only by who may trap the kernel's
// own faults.
func TestSystemCalls(t *testing.T) {
	mode := uffdtest.Require(t)
	c := serve(t, 2, 2)
	writer, reader := join(t, c, 0, 0, 2), join(t, c, 1, 1, 2)
	for _, name := range []string{"fetched", "missing"} {
		writer.Do(t, "ok", "alloc %s 4", name)
		reader.Do(t, "ok", "alloc %s 4", name)
		writer.Do(t, "ok", "fill %s 7", name)
	}
	reader.Do(t, "ok", "prefetch fetched %d", dsm.Read)
	reader.Do(t, "ok", "pipe fetched 7")
	want := "ok"
	if !mode.KernelFaults() || strings.Contains(os.Getenv(testcluster.FlagsEnv), "sigsegv") {
		want = "error: write |1: bad address"
	}
	reader.Do(t, want, "pipe missing 7")
	writer.Succeed(t)
	reader.Succeed(t)
}
