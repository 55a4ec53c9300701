package netio

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Yield lets other threads that are ready to run on this core run first. It costs a third of a
// microsecond when there are none.
func Yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Displaced counts how often another thread ran on the calling thread's core although the caller
// could have gone on. Yields that somebody used count, too. Asking costs a quarter of a
// microsecond.
func Displaced() int64 {
	var usage unix.Rusage
	unix.RawSyscall(unix.SYS_GETRUSAGE, unix.RUSAGE_THREAD, uintptr(unsafe.Pointer(&usage)), 0)
	return int64(usage.Nivcsw)
}

// ChangeCore moves the calling thread, which must be locked to its goroutine, to the next core that
// it may run on, and leaves it to the scheduler from there. It returns false if there is no other
// core. It costs some 10 µs.
//
// The scheduler looks for an idle core when it wakes a thread, but on a machine of few cores only
// while these have little to do, and threads that poll look like much. Two that poll in turns on
// one core would then stay there while another core idles.
func ChangeCore() (bool, error) {
	var allowed, next unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return false, fmt.Errorf("netio: asking which cores this thread may use: %w", err)
	}
	if allowed.Count() < 2 {
		return false, nil
	}
	next.Set(coreAfter(currentCore(), &allowed))
	if err := unix.SchedSetaffinity(0, &next); err != nil {
		return false, fmt.Errorf("netio: moving this thread to another core: %w", err)
	}
	if err := unix.SchedSetaffinity(0, &allowed); err != nil {
		return true, fmt.Errorf("netio: letting this thread use all its cores again: %w", err)
	}
	return true, nil
}

// shortestSlice is the shortest slice that Linux grants.
const shortestSlice = 100 * time.Microsecond

// ShortSlice asks for the shortest slices of processor time for the calling thread, which must be
// locked to its goroutine, and returns the length of those that it had, for SetSlice. Since Linux
// 6.12 a thread that wakes up with a shorter slice than that of the thread on its core, by default
// some milliseconds, runs at once, if it had less than its share of late. Earlier kernels take no
// notice. It needs no privilege.
//
// A Yield forfeits a slice. So of two threads that offer each other their core in turns, one with
// short slices and one with long ones, the latter hardly runs.
func ShortSlice() (before time.Duration, err error) { return SetSlice(shortestSlice) }

// SetSlice asks for slices of that length, as ShortSlice does for the shortest.
func SetSlice(length time.Duration) (before time.Duration, err error) {
	now, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return 0, fmt.Errorf("netio: asking how this thread is scheduled: %w", err)
	}
	if now.Policy != unix.SCHED_NORMAL {
		return 0, nil // somebody has chosen: a real-time or batch policy has slices of its own
	}
	wanted := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: now.Policy, Nice: now.Nice, Runtime: uint64(length)}
	if err := unix.SchedSetAttr(0, &wanted, 0); err != nil {
		return 0, fmt.Errorf("netio: asking for slices of %v of processor time: %w", length, err)
	}
	return time.Duration(now.Runtime), nil
}

// coreAfter is the next allowed core after core, going round.
func coreAfter(core int, allowed *unix.CPUSet) int {
	cores := 8 * int(unsafe.Sizeof(*allowed))
	for i := 1; i < cores; i++ {
		if c := (core + i) % cores; allowed.IsSet(c) {
			return c
		}
	}
	return core
}

func currentCore() int {
	var core uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0)
	return int(core)
}
