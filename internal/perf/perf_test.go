package perf

import (
	"runtime"
	"strings"
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
		pages[i]++
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

// TestSamples: each fault of each thread is there, with its address and the line that made it, also
// of threads that have begun later, and when the ring is filled many times.
func TestSamples(t *testing.T) {
	const pages, threads, rounds = 300, 4, 10
	s := open(t, 1)
	seen := map[uint64]int{}
	tids := map[uint32]bool{}
	var began []byte
	read := func() {
		s.Drain(func(f *Fault) {
			at := f.Address - uint64(uintptr(unsafe.Pointer(&began[0])))
			if at >= uint64(len(began)) {
				return
			}
			seen[f.Address>>12]++
			tids[f.Thread] = true
			if len(f.Stack) == 0 {
				t.Fatalf("%+v has no stack", f)
			}
			frame, _ := runtime.CallersFrames([]uintptr{uintptr(f.Stack[0]) + 1}).Next()
			if !strings.HasSuffix(frame.Function, "perf.touch") || !strings.HasSuffix(frame.File, "perf_test.go") {
				t.Fatalf("%+v is in %s of %s", f, frame.Function, frame.File)
			}
		})
	}
	for range rounds {
		began = fresh(t, threads*pages)
		done := make(chan struct{}, threads)
		for i := range threads {
			go func() {
				runtime.LockOSThread() // and the thread ends with it: the next round has others
				touch(began[4096*pages*i:][:4096*pages])
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
		read()
	}
	if s.Lost() == 0 && len(seen) < rounds*threads*pages*99/100 {
		t.Errorf("%d pages of %d were sampled", len(seen), rounds*threads*pages)
	}
	if len(tids) < threads {
		t.Errorf("%d threads", len(tids))
	}
}

// TestPeriod: one of some faults is sampled.
func TestPeriod(t *testing.T) {
	s := open(t, 10)
	b := fresh(t, 1000)
	touch(b)
	n := 0
	s.Drain(func(f *Fault) { n++ })
	if n < 90 || n > 200 {
		t.Errorf("%d samples of some 1000 faults, one of 10", n)
	}
}

// TestLost: what nobody reads is counted, and does no harm.
func TestLost(t *testing.T) {
	s := open(t, 1)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range 20 {
		touch(fresh(t, 1000))
	}
	n := 0
	for range 2 {
		s.Drain(func(f *Fault) { n++ })
		touch(fresh(t, 10)) // only then the kernel says how many it has lost
	}
	s.Drain(func(*Fault) {})
	if s.Lost() == 0 || n < 1000 {
		t.Errorf("%d samples, %d lost", n, s.Lost())
	}
}
