package fabric

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

// spinsPerLook is how often a condition is tried between two looks at the clock, and at whether somebody else wants the processor. It is
// some tens of microseconds: more than what is waited for takes, and less than a scheduler's time slice.
const spinsPerLook = 1 << 10

var (
	errStopped = errors.New("stopped")
	errTimeout = errors.New("the other end does not answer; is the network up, and does it lose packets?")
)

// spin tries until done. It returns errStopped when stop, which may be nil, is set, and errTimeout after limit.
func spin(stop *atomic.Bool, limit time.Duration, done func() (bool, error)) error {
	var began time.Time
	for n := 1; ; n++ {
		if ok, err := done(); ok || err != nil {
			return err
		}
		if n%spinsPerLook != 0 {
			continue
		}
		if stop != nil && stop.Load() {
			return errStopped
		}
		now := time.Now()
		if began.IsZero() {
			began = now
		} else if now.Sub(began) > limit {
			return errTimeout
		}
		netio.Yield() // The runtime's own yield would park a locked thread, and need another to wake it.
	}
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

// onThread runs f on a thread of its own, on the allowed core of that number, 0 or 1: a scheduler does not part two threads that never
// sleep, and would let them take turns on one core while the other idles. On a machine with one core they have to.
func onThread(core int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its place with it
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

// minProcs is how many goroutines run at once during a measurement: two ends that poll, and those that read the control connections.
const minProcs = 4

// Quiet prepares the process for measurements: no garbage collection, which would stop both ends, and enough processors of the
// runtime that none of them waits for the other. The caller calls restore when it has measured.
func Quiet() (restore func()) {
	percent := debug.SetGCPercent(-1)
	procs := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(max(procs, minProcs))
	return func() {
		runtime.GOMAXPROCS(procs)
		debug.SetGCPercent(percent)
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

// sample takes the time of an operation again and again, after some that don't count. Each is divided by parts.
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
