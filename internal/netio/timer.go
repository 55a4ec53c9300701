package netio

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Timer is a timerfd: a descriptor that becomes readable after some time. It belongs to one
// goroutine.
type Timer struct{ fd int }

// NewTimer opens a timer that does not ring.
func NewTimer() (*Timer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("netio: open a timerfd: %w", err)
	}
	return &Timer{fd: fd}, nil
}

// FD is the descriptor.
func (t *Timer) FD() int { return t.fd }

// Ring makes the descriptor readable in some time, once, and until then unreadable.
func (t *Timer) Ring(in time.Duration) {
	t.set(max(in, 1)) // to the kernel, 0 is never
}

// Stop makes the descriptor unreadable until the next Ring.
func (t *Timer) Stop() { t.set(0) }

func (t *Timer) set(in time.Duration) {
	value := unix.ItimerSpec{Value: unix.NsecToTimespec(in.Nanoseconds())}
	if err := unix.TimerfdSettime(t.fd, 0, &value, nil); err != nil {
		panic(fmt.Sprintf("netio: set timerfd %d to %v: %v", t.fd, in, err))
	}
}

// Close closes the descriptor.
func (t *Timer) Close() error { return unix.Close(t.fd) }
