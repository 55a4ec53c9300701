package storage

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/bench/micro"
)

// storeTo measures stores to pages that are being saved.
func (s *Saved) storeTo(rank int, mine []uint64) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	daemon, err := Daemon(rank)
	if err != nil {
		return err
	}
	thread, err := openThread(os.Getpid(), unix.Gettid())
	if err != nil {
		return err
	}
	defer thread.file.Close()
	reactor, err := openBusiest(daemon)
	if err != nil {
		return err
	}
	defer reactor.file.Close()
	var took []float64
	for i := len(mine) - words; i >= 0; i -= changedPage * words { // against the order of saving
		before, err := waitsOf(thread, reactor)
		if err != nil {
			return err
		}
		start := time.Now()
		mine[i]++
		t := time.Since(start).Seconds()
		after, err := waitsOf(thread, reactor)
		if err != nil {
			return err
		}
		took = append(took, t)
		s.Own = max(s.Own, t-(after-before).Seconds())
	}
	s.Store, s.Stores = slices.Max(took), micro.Percentile(took, 50)
	return nil
}

// A thread's times, as the scheduler counts them.
type thread struct{ file *os.File }

// openThread has the times of a thread read.
func openThread(pid, tid int) (thread, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, tid))
	return thread{f}, err
}

// openBusiest is openThread of that thread of a process that has run for the longest time: of a
// daemon, the reactor's.
func openBusiest(pid int) (thread, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return thread{}, err
	}
	var busiest thread
	most := time.Duration(-1)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue // it has ended
		}
		if ran, _, err := (thread{f}).times(); err != nil || ran <= most {
			f.Close()
		} else {
			busiest.file.Close() // which does nothing to none
			busiest.file, most = f, ran
		}
	}
	if busiest.file == nil {
		return thread{}, fmt.Errorf("process %d has ended", pid)
	}
	return busiest, nil
}

// times are for how long it has run, and for how long it has waited for a processor
// (Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat").
func (t thread) times() (ran, waited time.Duration, err error) {
	var text [64]byte
	n, err := t.file.ReadAt(text[:], 0)
	if n == 0 {
		return 0, 0, err
	}
	if _, err := fmt.Sscan(string(text[:n]), &ran, &waited); err != nil {
		return 0, 0, fmt.Errorf("%s: %q: %w", t.file.Name(), text[:n], err)
	}
	return ran, waited, nil
}

// waitsOf is for how long threads have waited for a processor.
func waitsOf(threads ...thread) (sum time.Duration, err error) {
	for _, t := range threads {
		_, waited, err := t.times()
		if err != nil {
			return 0, err
		}
		sum += waited
	}
	return sum, nil
}
