package perf

import (
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/internal/require"
)

// open begins to sample.
func open(t *testing.T, period uint64) *Sampler {
	t.Helper()
	s, err := Open(period)
	if err != nil {
		require.Missing(t, "perf", "%v (kernel.perf_event_paranoid is to be 2 or less)", err)
	}
	t.Cleanup(s.Close)
	return s
}

//go:noinline
func touch(pages []byte) {
	for i := 0; i < len(pages); i += 4096 {
		pages[i] = 1
	}
}

// fresh is memory that faults once on each page.
func fresh(t *testing.T, pages int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096*pages, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		err = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// sampled is what was sampled of faults on some memory.
type sampled struct {
	samples int
	threads map[uint32]bool
}

// look takes the samples, and checks those of the memory.
func look(t *testing.T, s *Sampler, of []byte) sampled {
	t.Helper()
	x := sampled{threads: map[uint32]bool{}}
	s.Drain(func(f *Fault) {
		if f.Address-uint64(uintptr(unsafe.Pointer(&of[0]))) >= uint64(len(of)) {
			return
		}
		x.samples++
		x.threads[f.Thread] = true
		if len(f.Stack) == 0 {
			t.Fatalf("%+v has no stack", f)
		}
		frame, _ := runtime.CallersFrames([]uintptr{uintptr(f.Stack[0]) + 1}).Next()
		if !strings.HasSuffix(frame.Function, "perf.touch") || !strings.HasSuffix(frame.File, "perf_test.go") {
			t.Fatalf("%+v is in %s of %s", f, frame.Function, frame.File)
		}
	})
	return x
}

// TestSamples: each fault is sampled, or one of some, with its address and the line that made it,
// also on threads that have begun later.
func TestSamples(t *testing.T) {
	const pages, threads = 500, 4
	for _, period := range []uint64{1, 7} {
		s := open(t, period)
		b := fresh(t, threads*pages)
		done := make(chan struct{}, threads)
		for i := range threads {
			go func() {
				runtime.LockOSThread() // the thread ends with the goroutine
				touch(b[4096*pages*i:][:4096*pages])
				done <- struct{}{}
			}()
		}
		for range threads {
			select {
			case <-done:
			case <-time.After(patience.Or(10 * time.Second)):
				t.Fatal("a thread does not end")
			}
		}
		// What a thread had counted on one processor when it went to another one is not sampled.
		x, all := look(t, s, b), threads*pages/int(period)
		if x.samples < all*3/4 || x.samples > all*5/4 || len(x.threads) != threads || s.Lost() > 0 {
			t.Errorf("one of %d of %d faults on %d threads: %+v, %d lost", period, threads*pages, threads, x, s.Lost())
		}
	}
}

// TestThreadThatBeginsMeanwhile: a thread that began when Open knew which threads there are, and
// had not begun to sample them, is sampled, too.
func TestThreadThatBeginsMeanwhile(t *testing.T) {
	const pages = 200
	b := fresh(t, pages)
	var ends sync.WaitGroup
	var goOn []chan bool // of threads that wait
	begin := func() (tid int) {
		began, own := make(chan int), make(chan bool)
		goOn = append(goOn, own)
		ends.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			if began <- unix.Gettid(); <-own {
				touch(b)
			}
		})
		return <-began
	}
	opening = func(known []int) {
		for begun := len(goOn) > 0; !begun; { // others are threads that had nothing to do
			begun = !slices.Contains(known, begin())
		}
	}
	defer func() { opening = func([]int) {} }()
	s := open(t, 1)
	for i, c := range goOn {
		c <- i == len(goOn)-1
	}
	ends.Wait()
	if x := look(t, s, b); x.samples < pages*3/4 {
		t.Errorf("%+v of %d faults", x, pages)
	}
}

// TestLost: what nobody reads is counted, and does no harm.
func TestLost(t *testing.T) {
	const pages, rounds = 1000, 30
	s := open(t, 1)
	var b []byte
	for range rounds {
		b = fresh(t, pages)
		touch(b)
	}
	s.Drain(func(*Fault) {})
	// Only with the next ones of that processor the kernel says how many it has lost.
	for deadline := time.Now().Add(patience.Or(10 * time.Second)); s.Lost() == 0; {
		b = fresh(t, pages)
		touch(b)
		if x := look(t, s, b); x.samples < pages*3/4 {
			t.Errorf("%+v", x)
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was lost")
		}
	}
}
