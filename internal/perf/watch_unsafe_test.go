package perf

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
)

// mark and instruction are what a waiting thread says of itself in these tests.
const mark, instruction = 0x1234567, 0xabcdef

// futex waits until somebody wakes the word, or wakes those who do.
func futex(word *uint32, op, n, fifth, sixth uintptr) {
	unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), op, n, 0, fifth, sixth)
}

const futexWait, futexWake = 0, 1

// TestWatch: it is seen which thread waits for a page, where and when; and not one that waits for
// something else.
func TestWatch(t *testing.T) {
	var word uint32
	var waiting sync.WaitGroup
	begin := func(fifth, sixth uintptr) uint32 {
		id := make(chan int)
		waiting.Go(func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			id <- unix.Gettid()
			futex(&word, futexWait, 0, fifth, sixth)
		})
		return uint32(<-id)
	}
	began := time.Now()
	handler, _ := begin(instruction, mark), begin(0, 0)
	w, err := Watch(1, mark)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	seen := map[uint32]int{}
	for deadline := began.Add(patience.Or(10 * time.Second)); seen[handler] < 3; time.Sleep(time.Millisecond) {
		w.Drain(func(f *Fault) {
			seen[f.Thread]++
			if at := time.Unix(0, f.At); len(f.Stack) != 1 || f.Stack[0] != instruction || f.Address != 0 || at.Before(began) || at.After(time.Now()) {
				t.Fatalf("seen at %v: %+v", at, f)
			}
		})
		if time.Now().After(deadline) {
			t.Fatal("nothing is seen")
		}
	}
	if len(seen) != 1 || w.Lost() > 0 {
		t.Errorf("threads %v were seen, and want only %d; %d were lost", seen, handler, w.Lost())
	}
	atomic.StoreUint32(&word, 1) // who comes late does not wait
	futex(&word, futexWake, 2, 0, 0)
	waiting.Wait()
}

// TestPlace: what the kernel says of a thread has an instruction if it waits for a page.
func TestPlace(t *testing.T) {
	w := Watcher{mark: fmt.Appendf(nil, " %#x ", mark)}
	for text, want := range map[string]uint64{
		"running\n":                 0,
		"-1 0x7ffc10 0x401000\n":    0x401000,
		"-1 0x7ffc10\n":             0,
		"-1 0x7ffc10 nonsense\n":    0,
		"":                          0,
		"202 0x1234567 0x5 0x401\n": 0,
		"202 0x10 0x0 0x5 0x20 0x401000 0x1234567 0x7ffc10 0x7f0000\n": 0x401000,
		"202 0x10 0x80 0x0 0x0 0x0 0x0 0x16a20dc07e38 0x481583\n":      0,
	} {
		if got := w.place([]byte(text)); got != want {
			t.Errorf("%q is at %#x, want %#x", text, got, want)
		}
	}
}

// TestUnread: what nobody reads is counted, and what fits is kept.
func TestUnread(t *testing.T) {
	var w Watcher
	for i := range maxSeen + 5 {
		w.note(sighting{at: int64(i), pc: 1})
	}
	n := 0
	w.Drain(func(*Fault) { n++ })
	if n != maxSeen || w.Lost() != 5 {
		t.Errorf("%d are kept, and %d lost", n, w.Lost())
	}
}
