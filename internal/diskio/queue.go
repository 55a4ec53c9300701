package diskio

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"dsmd/internal/netio"
)

const (
	// workers make transfers at a time: enough to keep a disk busy.
	workers = 8
	// mostAtOnce is how many transfers one of them makes by one system call, at most.
	mostAtOnce = 64
	// slabBuffers is how many buffers are made at a time.
	slabBuffers = 64
)

// Queue has threads make transfers, between memory and any number of files. Transfers begin in the
// order in which they are submitted, and may end in any. Who submits bounds how many there are.
//
// Its methods belong to one goroutine, except FD. The threads start with the first Submit.
type Queue struct {
	bufBytes int
	slabs    [][]byte // memory of the buffers
	spare    [][]byte // buffers that are not in use
	event    *netio.Event
	news     atomic.Bool // the event was signalled; changed under mu

	mu       sync.Mutex
	more     sync.Cond   // for workers: waiting is not empty, or closed is set
	waiting  []*Transfer // first come, first served
	finished []*Transfer
	started  bool // the workers run
	closed   bool
	running  sync.WaitGroup
}

// New makes a queue whose buffers have so many bytes, a multiple of the system's page size. Errors:
// the process has no descriptors left.
func New(bufBytes int) (*Queue, error) {
	if bufBytes <= 0 || bufBytes%os.Getpagesize() != 0 {
		panic(fmt.Sprintf("diskio: buffers of %d bytes; the system's pages have %d", bufBytes, os.Getpagesize()))
	}
	event, err := netio.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("diskio: %w", err)
	}
	q := &Queue{bufBytes: bufBytes, event: event}
	q.more.L = &q.mu
	return q, nil
}

// FD is a descriptor that is readable (level-triggered) when Take has something to return, and
// after Tell.
func (q *Queue) FD() int { return q.event.FD() }

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

// Submit begins transfers. The caller leaves them and their memory alone until Take returns them,
// and keeps their files open. Neighbours that follow each other are made by one system call.
func (q *Queue) Submit(list ...*Transfer) {
	if len(list) == 0 {
		return
	}
	q.mu.Lock()
	q.waiting = append(q.waiting, list...)
	if !q.started && !q.closed {
		q.started = true
		for range workers {
			q.running.Go(q.work)
		}
	}
	q.mu.Unlock()
	q.more.Signal()
}

// work is a worker.
func (q *Queue) work() {
	for {
		q.mu.Lock()
		for len(q.waiting) == 0 && !q.closed {
			q.more.Wait()
		}
		if q.closed {
			q.mu.Unlock()
			return
		}
		n := neighbours(q.waiting)
		list := slices.Clone(q.waiting[:n])
		q.waiting = q.waiting[n:]
		rest := len(q.waiting) > 0
		q.mu.Unlock()
		if rest {
			q.more.Signal()
		}
		move(list)
		q.mu.Lock()
		q.finished = append(q.finished, list...)
		q.tellLocked()
		q.mu.Unlock()
	}
}

// Take returns the transfers that are over, and has FD wait for the next ones. It makes no system
// call if there are none.
func (q *Queue) Take() []*Transfer {
	if !q.news.Load() {
		return nil
	}
	q.mu.Lock() // who has told has also signalled then
	defer q.mu.Unlock()
	q.news.Store(false)
	q.event.Clear()
	list := q.finished
	q.finished = nil
	return list
}

// Tell makes FD readable until the next Take. It is for a caller who reports more by that
// descriptor than transfers.
func (q *Queue) Tell() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tellLocked()
}

func (q *Queue) tellLocked() {
	q.news.Store(true)
	q.event.Signal()
}

// Close waits for the transfers that have begun, and forgets the others. All buffers are gone then.
// The files stay open.
func (q *Queue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Broadcast()
	q.running.Wait()
	err := q.event.Close()
	for _, slab := range q.slabs {
		err = errors.Join(err, unix.Munmap(slab))
	}
	q.slabs, q.spare = nil, nil
	return err
}
