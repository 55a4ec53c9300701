package diskio

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// ringGroups is how many system calls' worth of transfers a ring makes at a time: those of a
	// file that is the only one in use (see Shares) are enough for a fast disk that is read a page
	// at a time. ringBytes bounds those of a file, so that one which is urgent need not wait long
	// behind them.
	ringGroups = 3 * 64
	ringBytes  = 4 << 20
	// ringEntries has room for all groups and one told. It is a power of two.
	ringEntries = 256
	// ringWorkers is how many threads the kernel has for the rings of a thread, at most: one for
	// each read that a few rings make at a time. Where a file system can't begin a read and leave
	// it (NFS and FUSE, mostly), a thread of the kernel waits for it. It would have four for each
	// processor, and when those hang no ring reads anything that needs one.
	ringWorkers = 4 * ringGroups
)

// Of the kernel's interface (include/uapi/linux/io_uring.h).
const (
	setupCQSize      = 1 << 3
	setupCoopTaskrun = 1 << 8
	featSingleMmap   = 1 << 0
	featNodrop       = 1 << 1
	featSubmitStable = 1 << 2
	enterGetEvents   = 1 << 0
	submitAsync      = 1 << 4

	opNop   = 0
	opReadv = 1

	registerMaxWorkers = 19

	offsetRings   = 0
	offsetEntries = 0x10000000
)

type ringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wq uint32
	_                                                                [3]uint32
	sq                                                               struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type submission struct {
	op, flags uint8
	_         uint16
	fd        int32
	offset    uint64
	addr      uint64
	count     uint32
	_         uint32
	group     uint64 // which group it is of
	_         [3]uint64
}

type completion struct {
	group uint64
	res   int32
	_     uint32
}

// ring makes reads by io_uring: the kernel is asked for many by one system call, and says in
// shared memory what is over. So no thread has to be woken for a transfer, and none wakes the
// owner.
type ring struct {
	fd             int
	rings, entries []byte // mapped
	params         ringParams

	waiting  line
	groups   []group // by number
	free     []int   // groups that are not in use
	unsent   uint32  // submissions that the kernel has not taken
	telling  bool    // one of them is told, or its end was not reaped
	finished []*Transfer
}

// group are neighbouring transfers that the kernel makes at once. The kernel has the addresses of
// what is in it.
type group struct {
	list []*Transfer
	bufs []unix.Iovec
}

// told is the group of a submission that only makes the ring readable.
const told = ^uint64(0)

// newRing makes a ring, if the system lets this process have one.
func newRing() (*ring, error) {
	r := &ring{fd: -1, waiting: newLine(ringGroups, ringBytes)}
	r.waiting.waits = waits
	r.params.flags, r.params.cqEntries = setupCQSize|setupCoopTaskrun, ringEntries
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, ringEntries, uintptr(unsafe.Pointer(&r.params)), 0)
	if errno != 0 {
		return nil, os.NewSyscallError("io_uring_setup", errno)
	}
	r.fd = int(fd)
	if err := r.open(); err != nil {
		return nil, errors.Join(err, r.unmap())
	}
	for i := range ringGroups {
		r.groups, r.free = append(r.groups, group{}), append(r.free, i)
	}
	return r, nil
}

func (r *ring) open() (err error) {
	p := &r.params
	if want := uint32(featSingleMmap | featNodrop | featSubmitStable); p.features&want != want {
		return fmt.Errorf("io_uring: the system's has the features %#x, %#x are wanted", p.features, want)
	}
	size := max(p.sq.array+4*p.sqEntries, p.cq.cqes+uint32(unsafe.Sizeof(completion{}))*p.cqEntries)
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offsetRings, int(size), prot, flags); err == nil {
		r.entries, err = unix.Mmap(r.fd, offsetEntries, int(unsafe.Sizeof(submission{})*uintptr(p.sqEntries)), prot, flags)
	}
	if err != nil {
		return os.NewSyscallError("mmap of io_uring", err)
	}
	most := [2]uint32{ringWorkers, 0} // of the second kind as many as there may be
	// Before Linux 5.15 there is no such call, and the ring does without.
	unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerMaxWorkers, uintptr(unsafe.Pointer(&most)), 2, 0, 0)
	return nil
}

func (r *ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[offset])) }

// put adds a submission, for which there is room.
func (r *ring) put(s submission) {
	tail := r.word(r.params.sq.tail)
	i := atomic.LoadUint32(tail) & *r.word(r.params.sq.mask)
	*(*submission)(unsafe.Pointer(&r.entries[uintptr(i)*unsafe.Sizeof(s)])) = s
	*r.word(r.params.sq.array + 4*i) = i
	atomic.AddUint32(tail, 1) // the kernel sees what was stored before
	r.unsent++
}

// submit implements engine. Precondition: all are reads.
func (r *ring) submit(list []*Transfer) {
	r.waiting.add(list)
	r.begin()
}

// begin begins transfers, as many as there may be at a time.
func (r *ring) begin() {
	for r.waiting.may() {
		i := r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
		g := &r.groups[i]
		g.list = r.waiting.next(g.list)
		for _, t := range g.list {
			g.bufs = append(g.bufs, unix.Iovec{Base: unsafe.SliceData(t.Buf)})
			g.bufs[len(g.bufs)-1].SetLen(len(t.Buf))
		}
		first := g.list[0]
		flags := uint8(0)
		if r.waiting.files[first.FD].waits {
			flags = submitAsync
		}
		r.put(submission{op: opReadv, flags: flags, fd: int32(first.FD), offset: uint64(first.Offset), addr: uint64(uintptr(unsafe.Pointer(&g.bufs[0]))), count: uint32(len(g.list)), group: uint64(i)})
	}
	r.enter(0)
}

// waits is whether who has the kernel begin a read of a file may have to wait, as the file system
// can't begin it and leave it. The kernel would ask such a file whether it is readable, or read it
// at once if it is non-blocking, and where the file system is another process (FUSE), that may
// never answer. With submitAsync a thread of the kernel's own begins the read.
func waits(t *Transfer) bool {
	// A byte of what is read anyhow: the kernel reads ahead of where a file was read last.
	_, err := unix.Preadv2(t.FD, [][]byte{{0}}, t.Offset, unix.RWF_NOWAIT)
	return err != nil && err != unix.EAGAIN && err != unix.EINVAL // a byte is no block for O_DIRECT
}

// enter has the kernel take what was put, and waits until so many transfers are over. The kernel
// refuses for a while when it has no memory. Any other refusal is a bug, as when somebody else has
// closed the descriptor, and would come again at each try.
func (r *ring) enter(wait uint32) {
	flags := uintptr(0)
	if wait > 0 {
		flags = enterGetEvents
	}
	for r.unsent > 0 || wait > 0 {
		n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.unsent), uintptr(wait), flags, 0, 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0 && errno != unix.EAGAIN && errno != unix.EBUSY && errno != unix.ENOMEM:
			panic(fmt.Sprintf("diskio: io_uring_enter of descriptor %d: %v", r.fd, errno))
		case errno != 0 || n == 0 && wait == 0:
			time.Sleep(100 * time.Microsecond)
		default:
			r.unsent -= uint32(n)
			wait = 0
		}
	}
}

// tell implements engine. One submission at a time does: a ring that is full of ends would keep
// those of transfers back.
func (r *ring) tell() {
	if !r.telling {
		r.telling = true
		r.put(submission{op: opNop, group: told})
		r.enter(0)
	}
}

// reap implements engine.
func (r *ring) reap() []*Transfer {
	head, tail := r.word(r.params.cq.head), r.word(r.params.cq.tail)
	if *head == atomic.LoadUint32(tail) {
		return nil
	}
	for *head != atomic.LoadUint32(tail) {
		at := r.params.cq.cqes + (*head&*r.word(r.params.cq.mask))*uint32(unsafe.Sizeof(completion{}))
		c := *(*completion)(unsafe.Pointer(&r.rings[at]))
		atomic.AddUint32(head, 1)
		if c.group == told {
			r.telling = false
		} else {
			r.over(int(c.group), c.res)
		}
	}
	r.begin()
	list := r.finished
	r.finished = nil
	return list
}

// over deals with the end of a group.
func (r *ring) over(i int, res int32) {
	g := &r.groups[i]
	n, err := int(res), error(nil)
	if res < 0 {
		n, err = 0, unix.Errno(-res)
	}
	rest := g.list
	switch err {
	case unix.EINTR, unix.EAGAIN, unix.ECANCELED: // who had asked for it was interrupted
	default:
		done := settle(g.list, n, err)
		r.finished = append(r.finished, g.list[:done]...)
		rest = g.list[done:]
	}
	r.waiting.over(g.list[0].FD, bytesOf(g.list), rest)
	clear(g.list)
	clear(g.bufs)
	*g = group{list: g.list[:0], bufs: g.bufs[:0]}
	r.free = append(r.free, i)
}

// readable implements engine: it is the ring's own descriptor.
func (r *ring) readable() int { return r.fd }

// close implements engine.
func (r *ring) close() error {
	for r.waiting.forget(); len(r.free) < len(r.groups); r.waiting.forget() {
		r.enter(1)
		r.reap()
	}
	return r.unmap()
}

func (r *ring) unmap() (err error) {
	for _, m := range [][]byte{r.rings, r.entries} {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	return errors.Join(err, unix.Close(r.fd))
}
