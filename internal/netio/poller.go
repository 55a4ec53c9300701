package netio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readyBatch bounds how many descriptors one Ready call reports; the others are reported by the
// next.
const readyBatch = 64

// Poller is an epoll instance, level-triggered.
type Poller struct {
	fd     int
	events [readyBatch]unix.EpollEvent
}

// Readiness is one descriptor on which something can be done.
type Readiness struct {
	Token    int32 // as given to Add
	Readable bool  // or ended, or failed: a receive will tell
	Writable bool
}

// NewPoller opens an epoll instance.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("netio: open an epoll instance: %w", err)
	}
	return &Poller{fd: fd}, nil
}

// FD is the descriptor of the instance itself. It is readable while any descriptor in it is ready.
func (p *Poller) FD() int { return p.fd }

// Close closes the instance. The descriptors in it stay open.
func (p *Poller) Close() error { return unix.Close(p.fd) }

// Add watches fd for input. token comes back in Readiness.
func (p *Poller) Add(fd int, token int32) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, token, false)
}

// Watch changes whether fd is watched for room to write as well as for input.
func (p *Poller) Watch(fd int, token int32, writable bool) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, token, writable)
}

// Remove stops watching fd. It must come before fd is closed, if other descriptors share its
// socket.
func (p *Poller) Remove(fd int) error { return p.control(unix.EPOLL_CTL_DEL, fd, 0, false) }

func (p *Poller) control(op, fd int, token int32, writable bool) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: token}
	if writable {
		event.Events |= unix.EPOLLOUT
	}
	if err := unix.EpollCtl(p.fd, op, fd, &event); err != nil {
		return fmt.Errorf("netio: change what epoll watches of descriptor %d: %w", fd, err)
	}
	return nil
}

// Check asks, without waiting, which descriptors are ready, and returns how many; At names them.
func (p *Poller) Check() int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.events[0])), readyBatch, 0, 0, 0)
	if errno != 0 {
		// Only EINTR can happen here, and then the next check reports the same.
		return 0
	}
	return int(n)
}

// At is the i-th ready descriptor that the last Check found.
func (p *Poller) At(i int) Readiness {
	e := &p.events[i]
	return Readiness{
		Token:    e.Fd,
		Readable: e.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0,
		Writable: e.Events&unix.EPOLLOUT != 0,
	}
}

// Event is an eventfd: a descriptor that one side makes readable and the other waits for.
type Event struct{ fd int }

// NewEvent opens an eventfd that is not readable yet.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("netio: open an eventfd: %w", err)
	}
	return &Event{fd: fd}, nil
}

// FD is the descriptor.
func (e *Event) FD() int { return e.fd }

// Signal makes the descriptor readable. It may be called from any goroutine.
func (e *Event) Signal() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// EAGAIN means that the counter is at its maximum, so the descriptor is readable anyway.
	if _, err := unix.Write(e.fd, one[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic(fmt.Sprintf("netio: signal eventfd %d: %v", e.fd, err))
	}
}

// Clear makes the descriptor unreadable until the next Signal.
func (e *Event) Clear() {
	var count [8]byte
	if _, err := unix.Read(e.fd, count[:]); err != nil && !errors.Is(err, unix.EAGAIN) {
		panic(fmt.Sprintf("netio: clear eventfd %d: %v", e.fd, err))
	}
}

// Close closes the descriptor.
func (e *Event) Close() error { return unix.Close(e.fd) }
