package perf

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookEvery is how often a Watcher with the period 1 looks, at most. A fault that takes as long
	// is seen as good as always.
	lookEvery = 200 * time.Microsecond
	// lookShare is which part of the time it looks at most, one of so many: with many threads it
	// looks less often.
	lookShare = 20
	// mostThreads bounds the threads that are looked at, and maxSeen what is kept for Drain.
	mostThreads = 256
	maxSeen     = 1 << 12
)

// Watcher samples where perf_event_open is forbidden. It looks again and again where the threads of
// this process wait, in /proc, where a process may always look at itself. What it sees is the
// instruction, but neither the stack nor the address, and a wait is seen the sooner the longer it
// is.
type Watcher struct {
	every   time.Duration
	mark    []byte
	threads []watched
	stop    chan struct{}
	ended   sync.WaitGroup

	mu   sync.Mutex
	seen []sighting // guarded by mu
	lost uint64     // guarded by mu
}

// watched is a thread, and its file in /proc.
type watched struct {
	id   uint32
	file int
}

// sighting is a thread that waits.
type sighting struct {
	thread uint32
	at     int64
	pc     uint64
}

// Watch begins to look, at each of so many opportunities, at the threads that there are now. A
// thread waits for a page in a fault, or in a signal handler, which says so by its system call
// futex: mark is its last argument, and the one before that the instruction that faulted.
func Watch(period, mark uint64) (w *Watcher, err error) {
	w = &Watcher{every: time.Duration(period) * lookEvery, mark: fmt.Appendf(nil, " %#x ", mark), stop: make(chan struct{})}
	defer func() {
		if err != nil {
			w.closeFiles()
		}
	}()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("perf: %w", err)
	}
	for _, thread := range threads[:min(len(threads), mostThreads)] {
		id, err := strconv.ParseUint(thread.Name(), 10, 32)
		if err != nil {
			continue
		}
		path := "/proc/self/task/" + thread.Name() + "/syscall"
		file, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT && len(w.threads) > 0 {
			continue // it has ended
		}
		if err != nil {
			return nil, &os.PathError{Op: "perf: open", Path: path, Err: err}
		}
		w.threads = append(w.threads, watched{uint32(id), file})
	}
	w.ended.Go(w.run)
	return w, nil
}

// run looks until Close. It sleeps in the kernel: the runtime's timers are as exact as a
// millisecond where nothing else runs.
func (w *Watcher) run() {
	text := make([]byte, 256)
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		began := time.Now()
		for _, t := range w.threads {
			n, err := unix.Pread(t.file, text, 0)
			if err != nil {
				continue // it has ended
			}
			if pc := w.place(text[:n]); pc != 0 {
				w.note(sighting{t.id, time.Now().UnixNano(), pc})
			}
		}
		pause := unix.NsecToTimespec(int64(max(w.every, lookShare*time.Since(began))))
		_ = unix.Nanosleep(&pause, nil) // a signal shortens it
	}
}

// place is the instruction at which a thread waits for a page, by what the kernel says of it; 0: it
// runs, or waits for something else. What there is of a system call is its number and six
// arguments; of a fault the number -1. Stack and instruction follow.
func (w *Watcher) place(text []byte) (pc uint64) {
	at := 2
	switch {
	case bytes.HasPrefix(text, []byte("-1 ")):
	case bytes.Contains(text, w.mark):
		at = 5
	default:
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) <= at {
		return 0
	}
	pc, err := strconv.ParseUint(string(fields[at]), 0, 64)
	if err != nil {
		return 0
	}
	return pc
}

func (w *Watcher) note(s sighting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.seen) == maxSeen {
		w.lost++
		return
	}
	w.seen = append(w.seen, s)
}

// Close ends the watch.
func (w *Watcher) Close() {
	close(w.stop)
	w.ended.Wait()
	w.closeFiles()
}

func (w *Watcher) closeFiles() {
	for _, t := range w.threads {
		unix.Close(t.file)
	}
}

// Lost is how many waits were seen for which there was no room, because nobody has read for too
// long.
func (w *Watcher) Lost() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// Drain calls f with what was seen since the last Drain, in order.
func (w *Watcher) Drain(f func(*Fault)) {
	w.mu.Lock()
	seen := w.seen
	w.seen = nil
	w.mu.Unlock()
	for _, s := range seen {
		f(&Fault{Thread: s.thread, At: s.at, Stack: []uint64{s.pc}})
	}
}
