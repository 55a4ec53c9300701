package collections

import (
	"context"
	"errors"
	"fmt"
	"math"
	wide "math/bits"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"dsmd/dsm"
)

// ErrQueueClosed: Close was called. Of Take: and there is nothing left to take.
var ErrQueueClosed = errors.New("the queue was closed")

// Queue hands items from those who put them to those who take them, on all ranks. Each item is
// taken once at most. Items of one rank are taken in the order in which it has put them; between
// ranks there is no order. All methods are linearizable, and may be called by any number of
// goroutines.
//
// Each rank puts its items into pages of its own, and who takes one has the page come: so items
// travel by the page, as many as there are on it. A process takes first what its own rank has put,
// which is there already, and now and then what others have. When the queue is empty, one of the
// goroutines of a process that want to take looks at it again every millisecond, which sends
// nothing while nobody puts anything, and the others wait for it.
//
// An item is gone with Take. If the program that has taken it dies, nobody else gets it; what was
// to be done with it is done, or not. Items that a dead program had put, and nobody has taken,
// stay.
type Queue[T any] struct {
	c       cluster
	name    string
	control *queueControl[T]
	putting *dsm.Mutex // held from the first Put until Free, if puts
	puts    bool
	memory  []atomic.Uint64

	pageWords, itemWords int
	pages, items         int // of a lane; of a page
	count                counting

	lanes []lane
	turn  chan struct{} // of those that put; guards puts
	looks chan struct{} // has a token while a goroutine looks for items, and others wait
	next  atomic.Int64  // the lane from which this process takes
	freed atomic.Int64  // how often it came upon a page whose items were all taken
}

// lane is the items of a rank, as this process knows it: a ring of pages. The first time around
// they are number 0, 1 and so on, and the numbers go on.
type lane struct {
	head, tail atomic.Int64 // one takes from no page before head, and puts to none before tail
	lost       atomic.Pointer[dsm.PageLostError]
}

type queueControl[T any] struct {
	closed atomic.Bool
	_      T
}

// state is the first word of a page: how many items were put there and taken, how often that has
// happened to all of them (the lap), and whether the queue was closed when this was the page to
// which items are put. Whoever changes anything does so by changing the state: before that it has
// not happened.
type state uint64

const (
	oneTaken  state = 1
	closedBit state = 1 << 63
)

// counting is where a state has its parts, from the lowest bits: taken, put, and the lap. The first
// two have as many bits as there are items on a page, so the lap does not end within 2^50 items of
// a rank.
type counting struct {
	bits           uint8 // of taken, and of put
	onePut, oneLap state
}

func newCounting(items int) counting {
	n := wide.Len(uint(items))
	return counting{uint8(n), 1 << n, 1 << (2 * n)}
}

func (c counting) taken(s state) int { return int(s & (c.onePut - 1)) }
func (c counting) put(s state) int   { return c.taken(s >> (c.bits & 63)) }
func (c counting) lap(s state) int64 { return int64(s &^ closedBit >> (2 * c.bits & 63)) }

// leastPages is how many pages a lane has: while one is filled others can be emptied.
const leastPages = 4

// NewQueue returns the queue of that name, empty if it is new. Each rank may put so many items,
// capacity at least and a third or a few more at most, before it waits for some to be taken. All
// ranks must agree on capacity, and there must be as many in each job that uses the queue. A rank
// puts by one handle at a time, as do all ranks of its number where there are several jobs: the
// first Put of another handle waits until this one was freed. All of them may take and close.
//
// Options are those of dsm.Alloc: with dsm.Replicated an item that was put, or taken, stays so, and
// the rank's pages are committed before NewQueue returns. Errors are those of dsm.Alloc
// (dsm.ErrNoSpace also if capacity is less than 1, or an item does not fit into a page with another
// word) and of dsm.Cluster.Commit.
func NewQueue[T any](ctx context.Context, c *dsm.Cluster, name string, capacity int, opts ...dsm.AllocOption) (*Queue[T], error) {
	var v T
	q := &Queue[T]{c: clusterFor(c, opts), name: name, pageWords: c.PageBytes() / wordBytes, itemWords: wordsFor(len(bytesOf(&v))),
		lanes: make([]lane, c.Size()), turn: make(chan struct{}, 1), looks: make(chan struct{}, 1),
		putting: dsm.NewMutex(c, fmt.Sprintf("%s/lane/%d", name, c.Rank()))}
	err := q.alloc(ctx, capacity, opts)
	if err != nil {
		return nil, fmt.Errorf("collections: NewQueue %q: %w", name, err)
	}
	q.next.Store(int64(c.Rank()))
	return q, nil
}

// alloc makes the memory.
func (q *Queue[T]) alloc(ctx context.Context, capacity int, opts []dsm.AllocOption) (err error) {
	if err := dsm.Shareable[T](); err != nil {
		return err
	}
	most := (q.pageWords - 1) / max(q.itemWords, 1)
	switch {
	case most == 0:
		return fmt.Errorf("%w: an item takes %d bytes, at most %d are allowed; put an index of what is large",
			dsm.ErrNoSpace, q.itemWords*wordBytes, (q.pageWords-1)*wordBytes)
	case capacity < 1 || (capacity-1)/most > math.MaxInt/q.c.PageBytes()/len(q.lanes)-leastPages:
		return fmt.Errorf("%w: it is to be for %d items of %d bytes of each rank; 1 is the least, and all have to fit into memory",
			dsm.ErrNoSpace, capacity, q.itemWords*wordBytes)
	}
	q.pages = max(leastPages, (capacity-1)/most+2)
	q.items = (capacity + q.pages - 2) / (q.pages - 1)
	q.count = newCounting(q.items)
	opts = append(slices.Clip(opts), dsm.StaysLost()) // what went back would be taken twice
	wanted := fmt.Sprintf("a queue of %v for %d items", reflect.TypeFor[T](), capacity)
	if q.control, err = dsm.Isolate[queueControl[T]](ctx, q.c.Cluster, q.name+"/queue", opts...); err != nil {
		return wanting(wanted, err)
	}
	// The length says how many items are on a page, which is less than its words. So Alloc refuses
	// a rank that counts otherwise.
	words := len(q.lanes)*q.pages*q.pageWords + q.items
	if q.memory, err = dsm.Alloc[atomic.Uint64](ctx, q.c.Cluster, q.name, words, opts...); err != nil {
		return errors.Join(wanting(wanted, err), dsm.FreeIsolated(context.WithoutCancel(ctx), q.c.Cluster, q.control))
	}
	if q.c.replicated {
		if err := q.commitLane(ctx); err != nil {
			return errors.Join(err, q.Free(context.WithoutCancel(ctx)))
		}
	}
	return nil
}

// commitLane commits the pages of this rank's lane, and the control page. A page that was never
// committed is lost with the only node that has it, though nobody has done more there than look for
// items.
func (q *Queue[T]) commitLane(ctx context.Context) error {
	if lost := dsm.Guard(func() {
		q.control.closed.CompareAndSwap(false, false) // a store, as is Add, that changes nothing
		for number := range int64(q.pages) {
			p, _ := q.page(q.c.Rank(), number)
			p[0].Add(0)
		}
	}); lost != nil {
		return lost
	}
	return q.c.Commit(ctx)
}

// Free gives the memory back, as dsm.Free does, with its errors. No other method is under way.
func (q *Queue[T]) Free(ctx context.Context) (err error) {
	if q.puts {
		err = q.putting.Unlock()
	}
	return errors.Join(err, dsm.Free(ctx, q.c.Cluster, q.memory), dsm.FreeIsolated(ctx, q.c.Cluster, q.control))
}

// page is a page of a lane, and the lap in which it has that number.
func (q *Queue[T]) page(lane int, number int64) (p page, lap int64) {
	pages := int64(q.pages)
	return q.memory[(lane*q.pages+int(number%pages))*q.pageWords:][:q.pageWords], number / pages
}

// after is a number of a page that is not before the one wanted, when the page of that number has
// gone on to a later lap.
func (q *Queue[T]) after(number int64, s state) int64 {
	pages := int64(q.pages)
	return max(number, (q.count.lap(s)-1)*pages+number%pages) + 1
}

func (p page) state() state { return state(p[0].Load()) }

func (p page) change(from, to state) bool { return p[0].CompareAndSwap(uint64(from), uint64(to)) }

// Put puts an item, when there is room. Errors: ErrQueueClosed; an error that wraps
// dsm.ErrPageLost (a page of this rank's items was lost with a node; it can put no more); those of
// dsm.Mutex.LockRepair, with the first Put; ctx's, dsm.ErrClosed, dsm.ErrLost. With an error the
// item was not put, unless it is one of dsm.Replicated memory, of which nobody knows then whether
// it would survive.
func (q *Queue[T]) Put(ctx context.Context, v T) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.turn }()
	if err := q.beginPutting(ctx); err != nil {
		return fmt.Errorf("collections: Queue %q: %w", q.name, err)
	}
	room := looks{c: q.c.Cluster, what: "for room in queue", name: q.name}
	defer room.end()
	var err error
	lost := dsm.Guard(func() {
		for err == nil {
			p, s, full := q.tail(q.c.Rank())
			switch {
			case q.control.closed.Load() || s&closedBit != 0:
				err = ErrQueueClosed
			case full:
				err = room.pause(ctx)
			default:
				p.pack(1+q.count.put(s)*q.itemWords, bytesOf(&v))
				if p.change(s, s+q.count.onePut) {
					return
				}
			}
		}
	})
	if err := errors.Join(lost, err); err != nil {
		return fmt.Errorf("collections: Queue %q: %w", q.name, err)
	}
	return q.c.Commit(ctx)
}

// beginPutting makes this handle the one by which the rank puts.
func (q *Queue[T]) beginPutting(ctx context.Context) error {
	switch {
	case q.puts:
		return nil
	case q.isClosed(): // by who puts, perhaps, and has not freed its handle
		return ErrQueueClosed
	}
	var closed bool
	var watch sync.WaitGroup
	waiting, end := context.WithCancel(ctx)
	watch.Go(func() {
		for look := 0; !closed && pause(waiting, look) == nil; look++ {
			closed = q.isClosed()
		}
		end()
	})
	// Who had the lock and died has put an item or not.
	err := q.putting.LockRepair(waiting, func(*dsm.OwnerDiedError) error { return nil })
	end()
	watch.Wait() // until it has ended, so that it looks at nothing that is freed
	if q.puts = err == nil; !q.puts && closed {
		return ErrQueueClosed
	}
	return err
}

// tail is the page of a lane to which the next item is put, and whether what is there has to be
// taken first.
func (q *Queue[T]) tail(lane int) (p page, s state, full bool) {
	tail := &q.lanes[lane].tail
	for number := tail.Load(); ; tail.Store(number) {
		p, lap := q.page(lane, number)
		switch s := p.state(); {
		case q.count.lap(s) > lap:
			number = q.after(number, s)
		case q.count.lap(s) == lap && q.count.put(s) == q.items:
			number++
		default:
			return p, s, q.count.lap(s) < lap
		}
	}
}

// Take takes an item, and waits for one. When the queue is closed and empty it returns
// ErrQueueClosed.
//
// When items were lost with a node, it returns an error that wraps dsm.ErrPageLost, once in this
// process for each rank whose items they are: what else that rank has put is not taken any more.
// The next call goes on with those of other ranks, and the last error wraps both ErrQueueClosed
// and dsm.ErrPageLost. Other errors: ctx's, dsm.ErrClosed, dsm.ErrLost. With an error nothing was
// taken, but for the last two, with which an item may have been.
func (q *Queue[T]) Take(ctx context.Context) (v T, err error) {
	if v, err = q.take(ctx); err != nil {
		return v, fmt.Errorf("collections: Queue %q: %w", q.name, err)
	}
	// The item is nobody else's any more, whether the context has ended or not.
	return v, q.c.Commit(context.WithoutCancel(ctx))
}

func (q *Queue[T]) take(ctx context.Context) (v T, err error) {
	items := looks{c: q.c.Cluster, what: "for an item of queue", name: q.name}
	defer items.end()
	has := false // the turn to look
	defer func() {
		if has {
			<-q.looks
		}
	}()
	for {
		if err := ctx.Err(); err != nil {
			return v, err
		}
		over := ErrQueueClosed // or else nil
		first := int(q.next.Load())
		for i := range q.lanes {
			i = (first + i) % len(q.lanes)
			var what found
			switch lost, err := q.guard(i, func() { v, what = q.takeFrom(i) }); {
			case err != nil:
				return v, err
			case lost != nil && over != nil:
				over = errors.Join(over, lost)
			case lost != nil || what == nothingMore:
			case what == nothingYet:
				over = nil
			default:
				return v, nil
			}
		}
		if over != nil {
			return v, over
		}
		if has {
			err = items.pause(ctx)
		} else { // and then it looks at once: who had the turn may have left something
			err = items.turn(ctx, q.looks)
		}
		if err != nil {
			return v, err
		}
		has = true
	}
}

// guard calls f with a lane, if nothing of that is lost. lost is what this process knew already.
func (q *Queue[T]) guard(lane int, f func()) (lost, err error) {
	known := &q.lanes[lane].lost
	if l := known.Load(); l != nil {
		return l, nil
	}
	err = dsm.Guard(f)
	var l *dsm.PageLostError
	if errors.As(err, &l) && !known.CompareAndSwap(nil, l) {
		return l, nil
	}
	return nil, err
}

// free lets items be put to a page from which all were taken. Whoever comes next does it, too, as
// who took the last one may have died. And this process goes on with what its own rank has put,
// which is here; but now and then with the next lane, where others may have waited all the while.
func (q *Queue[T]) free(lane int, p page, s state) {
	p.change(s, s&closedBit+state(q.count.lap(s)+1)*q.count.oneLap)
	next := q.c.Rank()
	if q.freed.Add(1)%othersTurn == 0 {
		next = (lane + 1) % len(q.lanes)
	}
	q.next.Store(int64(next))
}

// othersTurn: after so many pages a process looks for items of others first.
const othersTurn = 8

// found is what there is in a lane.
type found int

const (
	item found = iota
	nothingYet
	nothingMore
)

// takeFrom takes an item from a lane.
func (q *Queue[T]) takeFrom(lane int) (v T, what found) {
	head := &q.lanes[lane].head
	for number := head.Load(); ; {
		p, lap := q.page(lane, number)
		switch s := p.state(); {
		case q.count.lap(s) > lap:
			number = q.after(number, s)
			head.Store(number)
		case q.count.taken(s) == q.items:
			q.free(lane, p, s)
		case q.count.taken(s) < q.count.put(s):
			p.unpack(1+q.count.taken(s)*q.itemWords, bytesOf(&v))
			if !p.change(s, s+oneTaken) {
				continue
			}
			if s += oneTaken; q.count.taken(s) == q.items {
				// If the page is lost the next one finds that.
				_ = dsm.Guard(func() { q.free(lane, p, s) })
			} else {
				q.next.Store(int64(lane))
			}
			return v, item
		case s&closedBit != 0:
			return v, nothingMore
		case q.isClosed(): // by a program that has died, or could not get at this lane
			p.change(s, s|closedBit)
		default:
			return v, nothingYet
		}
	}
}

// isClosed reports whether Close was called. If nobody knows any more it was not.
func (q *Queue[T]) isClosed() (is bool) {
	_ = dsm.Guard(func() { is = q.control.closed.Load() })
	return is
}

// Close ends the queue for all ranks: nobody can put any more, also who waits for room or for
// another handle, and who takes gets what there is. A second Close does nothing. Errors: one that
// wraps dsm.ErrPageLost if pages were lost with a node, though all others are closed; ctx's,
// dsm.ErrClosed, dsm.ErrLost.
func (q *Queue[T]) Close(ctx context.Context) error {
	failed := dsm.Guard(func() { q.control.closed.Store(true) })
	for i := range q.lanes {
		failed = errors.Join(failed, dsm.Guard(func() {
			for {
				if p, s, _ := q.tail(i); s&closedBit != 0 || p.change(s, s|closedBit) {
					return
				}
			}
		}))
	}
	if err := errors.Join(failed, q.c.Commit(ctx)); err != nil {
		return fmt.Errorf("collections: Queue %q: %w", q.name, err)
	}
	return nil
}
