package netio

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Priority is how a thread is scheduled that wakes up while others compute. The zero value is
// Normal.
type Priority uint8

const (
	// Normal is as the process was started, with short slices.
	Normal Priority = iota
	// Nice is a nice value of -20: a thread that wakes up runs at once, and whoever computes on its
	// core gets a hundredth of it until the thread sleeps again. It counts only beside threads of
	// the same control group or, where there are automatic groups, the same session.
	Nice
	// RealTime is Nice, and SCHED_FIFO while the thread sleeps, so that it wakes up before every
	// thread of a lower policy, of whatever group. It is never awake under SCHED_FIFO, see
	// Poller.WaitRealTime.
	RealTime
)

func (p Priority) String() string { return [...]string{"normal", "nice", "realtime"}[p] }

// PriorityRemedy says how to get the privilege for Nice and RealTime.
const PriorityRemedy = "run the daemon as root, or with CAP_SYS_NICE, or with limits that allow it: ulimit -e 40 -r 1 " +
	"(LimitNICE=-20 and LimitRTPRIO=1 in a systemd unit, SYS_NICE in a container that runs as root)"

const (
	mostNice = -20
	// leastRealTime is the lowest real-time priority: what else is in real time goes first.
	leastRealTime = 1
)

// Scheduling is the ways in which one thread is scheduled in turns. It belongs to the thread that
// has made it, which must be locked to its goroutine.
type Scheduling struct{ normal, raised, asleep unix.SchedAttr }

// NewScheduling prepares the calling thread for a priority, and leaves it with Normal. It returns
// an error where the thread may not have that priority (unix.EPERM). A process that was started
// under a real-time policy gives it up for this thread.
func NewScheduling(p Priority) (*Scheduling, error) {
	now, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return nil, fmt.Errorf("netio: asking how this thread is scheduled: %w", err)
	}
	s := &Scheduling{normal: unix.SchedAttr{Policy: unix.SCHED_NORMAL, Runtime: uint64(shortestSlice)}}
	switch now.Policy {
	case unix.SCHED_BATCH, unix.SCHED_IDLE:
		s.normal.Policy = now.Policy
		fallthrough
	case unix.SCHED_NORMAL:
		s.normal.Nice = now.Nice
	}
	s.raised, s.asleep = s.normal, s.normal
	s.raised.Policy = unix.SCHED_NORMAL
	for _, a := range []*unix.SchedAttr{&s.normal, &s.raised, &s.asleep} {
		// Once set, only a privileged thread could take the flag back.
		a.Size, a.Flags = unix.SizeofSchedAttr, unix.SCHED_FLAG_RESET_ON_FORK
	}
	if p == Normal {
		return s, set(&s.normal)
	}
	s.raised.Nice = mostNice
	err = set(&s.raised)
	if p == RealTime {
		if err != nil { // real-time policies have a limit of their own
			s.raised = s.normal
		}
		s.asleep.Policy, s.asleep.Priority, s.asleep.Nice, s.asleep.Runtime = unix.SCHED_FIFO, leastRealTime, 0, 0
		err = set(&s.asleep)
	}
	if lowered := set(&s.normal); err == nil {
		err = lowered
	}
	return s, err
}

// Raise has the thread run before others that compute, until Lower.
func (s *Scheduling) Raise() error { return set(&s.raised) }

// Lower has the thread scheduled as it was at first.
func (s *Scheduling) Lower() error { return set(&s.normal) }

// set changes how the calling thread is scheduled.
func set(a *unix.SchedAttr) error {
	if errno := rawSet(a); errno != 0 {
		return fmt.Errorf("netio: having this thread scheduled with policy %d and nice value %d: %w", a.Policy, a.Nice, errno)
	}
	return nil
}

//go:nosplit
//go:norace
func rawSet(a *unix.SchedAttr) unix.Errno {
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETATTR, 0, uintptr(unsafe.Pointer(a)), 0)
	return errno
}

// The parts of a call that may wait, as syscall.Syscall has them; gVisor uses them likewise.
//
//go:linkname enterSyscall runtime.entersyscall
func enterSyscall()

//go:linkname exitSyscall runtime.exitsyscall
func exitSyscall()

// WaitRealTime is Wait by a thread that is under SCHED_FIFO while it sleeps, and raised afterwards.
// s was made for RealTime.
//
// The thread must leave SCHED_FIFO before it comes back to Go. The runtime waits for other threads
// of the process in loops with sched_yield, for instance here, for a collector that looks at this
// goroutine's stack. Under SCHED_FIFO that yields to nobody of a lower policy. If the collector's
// thread is on the same core, both wait until the kernel notices that the core is starved, a second
// later (docs/decisions/0042).
//
//go:norace
func (p *Poller) WaitRealTime(timeout time.Duration, s *Scheduling) (ready int, err error) {
	var t unix.Timespec
	var ts *unix.Timespec
	if timeout >= 0 {
		t = unix.NsecToTimespec(timeout.Nanoseconds())
		ts = &t
	}
	enterSyscall()
	fell := rawSet(&s.asleep)
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), readyBatch, uintptr(unsafe.Pointer(ts)), 0, 0)
	rose := rawSet(&s.raised)
	exitSyscall()
	switch {
	case fell != 0:
		err = fmt.Errorf("netio: sleeping in real time: %w", fell)
	case rose != 0:
		err = fmt.Errorf("netio: waking up from real time: %w", rose)
	}
	switch errno {
	case 0:
		return int(n), err
	case unix.ENOSYS: // before Linux 5.11
		return p.waitMilliseconds(timeout), fmt.Errorf("netio: sleeping in real time: %w", errno)
	default: // EINTR: the caller looks around and comes back
		return 0, err
	}
}
