package diskio

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// divided has a ring make reads, and threads make writes. A read from a disk ends without any
// thread. A write mostly has to wait in the file system, so that io_uring hands it to a thread of
// the kernel's own, which is slower to stop and has been seen not to end (docs/decisions/0036).
type divided struct {
	reads  *ring
	writes *threads
	ends   int // an epoll instance that has the descriptors of both
}

func newDivided() (_ *divided, err error) {
	d := &divided{ends: -1}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.reads, err = newRing(); err != nil {
		return nil, err
	}
	if d.writes, err = newThreads(); err != nil {
		return nil, err
	}
	if d.ends, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	for _, e := range []engine{d.reads, d.writes} {
		if err := unix.EpollCtl(d.ends, unix.EPOLL_CTL_ADD, e.readable(), &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
	}
	return d, nil
}

// submit implements engine.
func (d *divided) submit(list []*Transfer) {
	var reads, writes []*Transfer
	for _, t := range list {
		if t.Write {
			writes = append(writes, t)
		} else {
			reads = append(reads, t)
		}
	}
	if len(writes) > 0 {
		d.writes.submit(writes)
	}
	if len(reads) > 0 {
		d.reads.submit(reads)
	}
}

// reap implements engine.
func (d *divided) reap() []*Transfer { return append(d.reads.reap(), d.writes.reap()...) }

// readable implements engine.
func (d *divided) readable() int { return d.ends }

// tell implements engine.
func (d *divided) tell() { d.writes.tell() }

// close implements engine.
func (d *divided) close() (err error) {
	if d.reads != nil {
		err = d.reads.close()
	}
	if d.writes != nil {
		err = errors.Join(err, d.writes.close())
	}
	if d.ends >= 0 {
		err = errors.Join(err, unix.Close(d.ends))
	}
	return err
}
