package diskio

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"dsmd/internal/netio"
)

// workers make transfers at a time: those of a file that is the only one in use (see Shares) keep a
// disk busy.
const workers = 3 * 8

// threads make transfers by system calls that wait: writes, and reads where there is no io_uring.
// They start with the first transfer.
type threads struct {
	event *netio.Event
	news  atomic.Bool // the event was signalled; changed under mu

	mu       sync.Mutex
	more     sync.Cond // for workers: a transfer can begin, or closed is set
	waiting  line
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
	q := &threads{event: event, waiting: newLine(workers, math.MaxInt)}
	q.more.L = &q.mu
	return q, nil
}

// submit implements engine.
func (q *threads) submit(list []*Transfer) {
	q.mu.Lock()
	q.waiting.add(list)
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
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for !q.waiting.may() && !q.closed {
			q.more.Wait()
		}
		if q.closed {
			return
		}
		list := q.waiting.next(nil)
		if q.waiting.may() {
			q.more.Signal()
		}
		q.mu.Unlock()
		move(list)
		q.mu.Lock()
		q.waiting.over(list[0].FD, bytesOf(list), nil)
		q.finished = append(q.finished, list...)
		q.tellLocked()
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
