package fabric

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

// spinsPerLook is how often a condition is tried between two looks at the clock, and at whether
// somebody else wants the processor. It is some tens of microseconds: more than what is waited for
// takes, and less than a scheduler's time slice.
const spinsPerLook = 1 << 10

var (
	errStopped = errors.New("stopped")
	errTimeout = errors.New("the other end does not answer; is the network up, and does it lose packets?")
)

// spin tries until done. It returns errStopped when stop, which may be nil, is set, and errTimeout
// after limit.
func spin(stop *atomic.Bool, limit time.Duration, done func() (bool, error)) error {
	for s := (spinner{stop: stop, limit: limit}); ; {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if err := s.again(); err != nil {
			return err
		}
	}
}

// A spinner counts vain tries.
type spinner struct {
	stop  *atomic.Bool // may be nil
	limit time.Duration
	tries int
	began time.Time // the first look at the clock
}

// again says why not to try again, as spin does.
func (s *spinner) again() error {
	if s.tries++; s.tries%spinsPerLook != 0 {
		return nil
	}
	return s.look()
}

func (s *spinner) look() error {
	if s.stop != nil && s.stop.Load() {
		return errStopped
	}
	now := time.Now()
	if s.began.IsZero() {
		s.began = now
	} else if now.Sub(s.began) > s.limit {
		return errTimeout
	}
	// The runtime's own yield would park a locked thread, and need another to wake it.
	netio.Yield()
	return nil
}

// The parts of a measurement that poll, each on a core of its own.
const (
	driving = iota
	serving
)

// coreOf is which core a part has.
func coreOf(part int, exchanged bool) int {
	if exchanged {
		return serving - part
	}
	return part
}

// onThread runs f on a thread of its own, on the allowed core of that number, 0 or 1: a scheduler
// does not part two threads that never sleep, and would let them take turns on one core while the
// other idles. On a machine with one core they have to.
func onThread(core int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// and never unlocked: the thread ends with the goroutine, and its place with it
		runtime.LockOSThread()
		if err := takeCore(core); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

func takeCore(number int) error {
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return fmt.Errorf("asking which cores this process may use: %w", err)
	}
	if allowed.Count() <= number {
		return nil
	}
	for core := 0; ; core++ {
		if !allowed.IsSet(core) {
			continue
		}
		if number == 0 {
			one.Set(core)
			break
		}
		number--
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("taking a core for a measurement: %w", err)
	}
	return nil
}

// minProcs is how many goroutines run at once during a measurement: two ends that poll, and those
// that read the control connections.
const minProcs = 4

// Quiet prepares the process for measurements: no garbage collection, which would stop both ends;
// enough processors of the runtime that none of them waits for the other; and the runtime's monitor
// interrupts nobody. It wakes up to thousands of times a second while threads poll, because they
// are in C so often, and on a machine with no core to spare it takes the place of one of them: in
// the test bed 100 µs each time, 13 % of a core. The caller calls restore when it has measured. Who
// lacks the privilege keeps a monitor that interrupts nobody.
func Quiet() (restore func()) {
	percent := debug.SetGCPercent(-1)
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(procs, minProcs))
	monitor := monitorThread()
	schedule(monitor, unix.SCHED_IDLE)
	return func() {
		schedule(monitor, unix.SCHED_NORMAL)
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
	}
}

// monitorThread is the thread of the runtime's monitor, which is the first that the runtime makes
// besides the one that the process begins with; 0 if it can't be found. Linux lists threads in the
// order of their making.
func monitorThread() int {
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return 0
	}
	defer dir.Close()
	names, err := dir.Readdirnames(2)
	if err != nil || len(names) < 2 {
		return 0
	}
	id, _ := strconv.Atoi(names[1])
	return id
}

// schedule changes how a thread is scheduled, if that is possible; to do without is to measure less
// well.
func schedule(thread int, policy uint32) {
	if thread != 0 {
		_ = unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy}, 0)
	}
}

// A stopwatch decides when a measurement has lasted long enough.
type stopwatch struct {
	began time.Time
	limit time.Duration
}

const (
	// warmUps are operations before those that count.
	warmUps = 16
	// minSamples are taken however long they take.
	minSamples = 16
	// maxSamples bounds the memory of a measurement.
	maxSamples = 1 << 18
)

func (s stopwatch) enough(samples int) bool {
	return samples >= maxSamples || samples >= minSamples && time.Since(s.began) >= s.limit
}

// sample takes the time of an operation again and again, after some that don't count. Each is
// divided by parts.
func sample(spec Spec, parts int, operation func() error) (Point, error) {
	for range warmUps {
		if err := operation(); err != nil {
			return Point{}, err
		}
	}
	var samples []time.Duration
	for watch := (stopwatch{time.Now(), spec.Time}); !watch.enough(len(samples)); {
		began := time.Now()
		if err := operation(); err != nil {
			return Point{}, err
		}
		samples = append(samples, time.Since(began)/time.Duration(parts))
	}
	return newLatency(spec, samples), nil
}
