package pagetable

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// readiness is the descriptor of Table.WaitFD: an epoll instance over what programs make readable,
// and over an alarm of the table's own.
type readiness struct {
	epoll int
	alarm int  // timerfd: readable when Poll has something to report of which no program tells
	rung  bool // the alarm is set, or was and is readable
	found [readyPrograms]unix.EpollEvent
}

// noReadiness is one that is not open.
func noReadiness() readiness { return readiness{epoll: -1, alarm: -1} }

// open makes the descriptors. Who gets an error calls close.
func (r *readiness) open() (err error) {
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("pagetable: epoll_create1: %w", err)
	}
	if r.alarm, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("pagetable: timerfd_create: %w", err)
	}
	return r.watch(r.alarm, unix.EPOLLIN, AllProcs)
}

// close closes the descriptors. A second call does nothing.
func (r *readiness) close() (err error) {
	for _, fd := range [...]int{r.alarm, r.epoll} {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	r.alarm, r.epoll = -1, -1
	return err
}

// watch adds a descriptor, under the number of the program for which it reports.
func (r *readiness) watch(fd int, events uint32, id ProcID) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(id)}
	if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("pagetable: watch descriptor %d: %w", fd, err)
	}
	return nil
}

// unwatch removes a descriptor, before it is closed: the program has another one of the same open
// file, so closing ours alone would leave it in the set.
func (r *readiness) unwatch(fd int) {
	// Can only fail if it is not in the set, which is what is wanted.
	_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil)
}

// ring makes WaitFD readable after so many nanoseconds, or not at all for 0. Setting a timerfd also
// clears what made it readable.
func (r *readiness) ring(after int64) {
	if after == 0 && !r.rung {
		return
	}
	r.rung = after != 0
	when := unix.ItimerSpec{Value: unix.Timespec{Nsec: after}}
	if err := unix.TimerfdSettime(r.alarm, 0, &when, nil); err != nil {
		// only our own mistake: bad number or time
		panic(fmt.Sprintf("pagetable: timerfd_settime(%d): %v", r.alarm, err))
	}
}

// look is what is ready, under the numbers of programs. It is valid until the next look. The kernel
// moves what it has reported to the end of its list, so no program starves behind others.
func (r *readiness) look() ([]unix.EpollEvent, error) {
	count, err := unix.EpollWait(r.epoll, r.found[:], 0)
	if err != nil && err != unix.EINTR {
		return nil, fmt.Errorf("pagetable: epoll_wait: %w", err)
	}
	return r.found[:max(count, 0)], nil
}
