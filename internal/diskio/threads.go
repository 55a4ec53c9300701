package diskio

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"dsmd/internal/netio"
)

// workers make transfers at a time: enough to keep a disk busy.
const workers = 8

// threads make transfers by system calls that wait: writes, and reads where there is no io_uring.
// They start with the first transfer.
type threads struct {
	event *netio.Event
	news  atomic.Bool // the event was signalled; changed under mu

	mu       sync.Mutex
	more     sync.Cond   // for workers: waiting is not empty, or closed is set
	waiting  []*Transfer // first come, first served
	finished []*Transfer
	started  bool // the workers run
	closed   bool
	running  sync.WaitGroup
}

func newThreads() (*threads, error) {
	event, err := netio.NewEvent()
	if err != nil {
		return nil, fmt.Errorf("diskio: %w", err)
	}
	q := &threads{event: event}
	q.more.L = &q.mu
	return q, nil
}

// submit implements engine.
func (q *threads) submit(list []*Transfer) {
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
func (q *threads) work() {
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

// reap implements engine.
func (q *threads) reap() []*Transfer {
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

// tell implements engine.
func (q *threads) tell() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tellLocked()
}

func (q *threads) tellLocked() {
	q.news.Store(true)
	q.event.Signal()
}

// readable implements engine.
func (q *threads) readable() int { return q.event.FD() }

// close implements engine.
func (q *threads) close() error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.more.Broadcast()
	q.running.Wait()
	return q.event.Close()
}
