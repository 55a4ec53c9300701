// Package perf samples the page faults of this process: on what thread, at which address, and by
// which stack. It is a thin binding to perf_event_open(2), which needs no privilege where
// kernel.perf_event_paranoid is at most 2 and no filter of system calls forbids it. Where it is
// forbidden, a Watcher finds out less.
package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fault is a sample.
type Fault struct {
	Thread  uint32
	Address uint64 // 0: not known, only that it waited
	At      int64  // when it waited, in nanoseconds since 1970; 0: not known
	// Stack has addresses of instructions, the one that faulted first. It is valid until f returns.
	Stack []uint64
}

// The size of one processor's ring in pages, a power of two: as much as the kernel lets this user
// lock (kernel.perf_event_mlock_kb), within these bounds.
const (
	mostRingPages  = 64
	leastRingPages = 4
)

// Sampler takes samples of all threads of this process, also of those that begin later.
type Sampler struct {
	fds   []int
	rings []*ring // by processor
	lost  uint64
}

// ring is what the kernel writes the samples of one processor to.
type ring struct {
	memory []byte
	page   int
	chain  []uint64
	record []byte
}

// Open begins to sample one of period faults of each thread on each processor. A later thread
// inherits that from the one that begins it. One that begins while Open is at it may inherit
// nothing, or only some processors: then Open begins again, up to mostTries times.
func Open(period uint64) (*Sampler, error) {
	for try := 1; ; try++ {
		threads, err := threadsNow()
		if err != nil {
			return nil, fmt.Errorf("perf: %w", err)
		}
		opening(threads)
		s := &Sampler{}
		err = s.open(threads, period)
		now, failed := threadsNow()
		if err = errors.Join(err, failed); err != nil {
			s.Close()
			return nil, fmt.Errorf("perf: %w", err)
		}
		begun := slices.ContainsFunc(now, func(tid int) bool { return !slices.Contains(threads, tid) })
		if !begun || try == mostTries {
			return s, nil
		}
		s.Close()
	}
}

// mostTries bounds how often Open begins: a program may begin threads all the time. The last time
// some may be left out.
const mostTries = 10

// opening is called with the threads of which Open knows.
var opening = func(threads []int) {}

// threadsNow is the threads of this process.
func threadsNow() (tids []int, err error) {
	threads, err := os.ReadDir("/proc/self/task")
	for _, thread := range threads {
		if tid, err := strconv.Atoi(thread.Name()); err == nil {
			tids = append(tids, tid)
		}
	}
	return tids, err
}

// processorsOf are the numbers of the processors on which any of these threads may run.
func processorsOf(threads []int) (numbers []int, err error) {
	var all unix.CPUSet
	for _, tid := range threads {
		var its unix.CPUSet
		err := unix.SchedGetaffinity(tid, &its)
		if errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, os.NewSyscallError("sched_getaffinity", err)
		}
		for i := range all {
			all[i] |= its[i]
		}
	}
	for n := range 8 * int(unsafe.Sizeof(all)) {
		if all.IsSet(n) {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// open begins to sample these threads.
func (s *Sampler) open(threads []int, period uint64) error {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_PAGE_FAULTS, Sample: period,
		Sample_type: unix.PERF_SAMPLE_TID | unix.PERF_SAMPLE_ADDR | unix.PERF_SAMPLE_CALLCHAIN,
		Bits:        unix.PerfBitInherit | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv | unix.PerfBitExcludeCallchainKernel,
		Wakeup:      1,
	}
	attr.Size = uint32(unsafe.Sizeof(attr))
	processors, err := processorsOf(threads)
	if err != nil {
		return err
	}
	for _, cpu := range processors {
		first := -1
		for _, tid := range threads {
			fd, err := unix.PerfEventOpen(&attr, tid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if errors.Is(err, unix.ESRCH) {
				continue // it has ended
			}
			if err != nil {
				return fmt.Errorf("perf_event_open: %w", err)
			}
			s.fds = append(s.fds, fd)
			if first >= 0 {
				if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_OUTPUT, first); err != nil {
					return fmt.Errorf("share the ring of processor %d: %w", cpu, err)
				}
				continue
			}
			first = fd
			r, err := newRing(fd)
			if err != nil {
				return fmt.Errorf("map the ring of processor %d: %w", cpu, err)
			}
			s.rings = append(s.rings, r)
		}
	}
	return nil
}

// newRing maps the ring of an event.
func newRing(fd int) (*ring, error) {
	r := &ring{page: os.Getpagesize()}
	for pages := mostRingPages; ; pages /= 2 {
		var err error
		r.memory, err = unix.Mmap(fd, 0, (1+pages)*r.page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil || !errors.Is(err, unix.EPERM) || pages == leastRingPages {
			return r, err
		}
	}
}

// Close ends the samples.
func (s *Sampler) Close() {
	for _, r := range s.rings {
		unix.Munmap(r.memory)
	}
	for _, fd := range s.fds {
		unix.Close(fd)
	}
	s.rings, s.fds = nil, nil
}

// Lost is how many samples were lost, because nobody has read for too long.
func (s *Sampler) Lost() uint64 { return s.lost }

// Drain calls f with all samples since the last Drain.
func (s *Sampler) Drain(f func(*Fault)) {
	for _, r := range s.rings {
		s.lost += r.read(f)
	}
}

// read reads all records of a ring.
func (r *ring) read(f func(*Fault)) (lost uint64) {
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.memory[0]))
	data := r.memory[r.page:]
	head, tail := atomic.LoadUint64(&page.Data_head), page.Data_tail
	for tail < head {
		at := tail % uint64(len(data))
		size := uint64(binary.NativeEndian.Uint16(data[at+6:])) // records are aligned to 8 bytes
		record := data[at:]
		if at+size > uint64(len(data)) {
			r.record = append(append(r.record[:0], data[at:]...), data[:at+size-uint64(len(data))]...)
			record = r.record
		}
		switch kind := binary.NativeEndian.Uint32(record); kind {
		case unix.PERF_RECORD_SAMPLE:
			r.sample(record[8:size], f)
		case unix.PERF_RECORD_LOST:
			lost += binary.NativeEndian.Uint64(record[16:])
		}
		tail += size
	}
	atomic.StoreUint64(&page.Data_tail, tail)
	return lost
}

// sample reads a sample: PID and TID, address, and the chain of calls.
func (r *ring) sample(b []byte, f func(*Fault)) {
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
	x := Fault{Thread: binary.NativeEndian.Uint32(b[4:]), Address: word(1), Stack: r.chain[:0]}
	for i := range int(word(2)) {
		if pc := word(3 + i); pc < contextMarks {
			x.Stack = append(x.Stack, pc)
		}
	}
	r.chain = x.Stack
	f(&x)
}

// contextMarks are no addresses: they say whether those behind them are the kernel's or the user's.
const contextMarks = ^uint64(4095)
