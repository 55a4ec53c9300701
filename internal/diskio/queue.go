package diskio

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// mostAtOnce is how many transfers are made by one system call, at most.
	mostAtOnce = 64
	// slabBuffers is how many buffers are made at a time.
	slabBuffers = 64
)

// Queue has the system make transfers between memory and any number of files, while its owner does
// something else: reads by io_uring, writes by threads, and reads by them, too, where io_uring is
// forbidden. Those of a file begin in the order in which they are submitted, reads and writes
// apart, and transfers may end in any. A file or disk that does not answer does not hold up others
// (see Shares). Who submits bounds how many there are.
//
// Its methods belong to one goroutine, except FD, until Abandon.
type Queue struct {
	bufBytes int
	slabs    [][]byte // memory of the buffers
	spare    [][]byte // buffers that are not in use
	engine   engine
}

// engine makes transfers.
type engine interface {
	// submit begins transfers.
	submit(list []*Transfer)
	// reap returns those that are over. It makes no system call if there are none.
	reap() []*Transfer
	// readable is a descriptor that is so when reap has something to return, and after tell until
	// the next reap.
	readable() int
	tell()
	// close waits for what has begun, and forgets the rest.
	close() error
}

// New makes a queue whose buffers have so many bytes, a multiple of the system's page size. Errors:
// the process has no descriptors left.
func New(bufBytes int) (*Queue, error) {
	if d, err := newDivided(); err == nil {
		return newQueue(bufBytes, d), nil
	}
	t, err := newThreads()
	if err != nil {
		return nil, err
	}
	return newQueue(bufBytes, t), nil
}

func newQueue(bufBytes int, e engine) *Queue {
	if bufBytes <= 0 || bufBytes%os.Getpagesize() != 0 {
		panic(fmt.Sprintf("diskio: buffers of %d bytes; the system's pages have %d", bufBytes, os.Getpagesize()))
	}
	return &Queue{bufBytes: bufBytes, engine: e}
}

// Available reports whether this process may use io_uring, or why not.
func Available() error {
	r, err := newRing()
	if err != nil {
		return err
	}
	return r.close()
}

// FD is a descriptor that is readable (level-triggered) when Take has something to return, and
// after Tell.
func (q *Queue) FD() int { return q.engine.readable() }

// Buffer returns memory that begins at a page of the system's, as direct input and output
// (O_DIRECT) wants it. What is in it is left over from its last use. It is valid until Recycle or
// Close. Errors: out of memory.
func (q *Queue) Buffer() ([]byte, error) {
	if len(q.spare) == 0 {
		slab, err := unix.Mmap(-1, 0, slabBuffers*q.bufBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, fmt.Errorf("diskio: memory for what is on its way between memory and disk: %w", err)
		}
		q.slabs = append(q.slabs, slab)
		q.spare = slices.AppendSeq(q.spare, slices.Chunk(slab, q.bufBytes))
	}
	b := q.spare[len(q.spare)-1]
	q.spare = q.spare[:len(q.spare)-1]
	return b, nil
}

// Recycle takes a buffer back that no transfer uses.
func (q *Queue) Recycle(b []byte) { q.spare = append(q.spare, b[:q.bufBytes]) }

// Lent is how many buffers were not recycled.
func (q *Queue) Lent() int { return len(q.slabs)*slabBuffers - len(q.spare) }

// Submit begins transfers. The caller leaves them and their memory alone until Take returns them,
// and keeps their files open. Neighbours that follow each other are made by one system call.
func (q *Queue) Submit(list ...*Transfer) {
	if len(list) > 0 {
		q.engine.submit(list)
	}
}

// Take returns the transfers that are over, and has FD wait for the next ones. It makes no system
// call if there are none.
func (q *Queue) Take() []*Transfer { return q.engine.reap() }

// Tell makes FD readable until the next Take. It is for a caller who reports more by that
// descriptor than transfers.
func (q *Queue) Tell() { q.engine.tell() }

// Close waits for the transfers that have begun, and forgets the others. All buffers are gone then.
// The files stay open.
func (q *Queue) Close() error {
	err := q.engine.close()
	for _, slab := range q.slabs {
		err = errors.Join(err, unix.Munmap(slab))
	}
	q.slabs, q.spare = nil, nil
	return err
}

// Abandon is Close for who cannot wait, because the disk may never answer: it returns at once. What
// the transfers use that have begun stays until they are over, which may be never. Then over is
// called, with Close's error, on another goroutine; not before that may the caller close their
// files. Nothing else is done with the queue, nor with its buffers, and FD is not polled any more.
func (q *Queue) Abandon(over func(error)) { go func() { over(q.Close()) }() }
