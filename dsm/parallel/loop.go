package parallel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/dsm"
)

const (
	// MaxItems bounds the items of a loop.
	MaxItems = math.MaxUint32
	// MaxReduceBytes is the size of the largest value of Reduce; see dsm.MaxReduceTotal, too.
	MaxReduceBytes = dsm.MaxReduceBytes - 24
	// chunk is about how long a goroutine runs items before it takes others. It is a multiple of
	// what taking costs, and not longer than it takes to get a page.
	chunk = 100 * time.Microsecond
	// chunkPart bounds a chunk, as the items of this one may take longer than those before: it is
	// at most this part of what a goroutine would get if the rank's goroutines divided the rest.
	chunkPart = 4
	// worthwhile is how long what a rank has left must take it, at its pace, for another to take
	// half of it, or how long it must not have got on. It is many times what it takes to fetch a
	// few pages: those of the items go to who takes them, and come back in the next loop. And a
	// rank that shares its processor with others may stand still for almost as long.
	worthwhile = 4 * time.Millisecond
	// A rank waits for the others for a part of the time that its own items have taken before it
	// takes from them, within bounds. So ranks that are not quite even keep their items, and the
	// pages of these. It waits longer after each loop in which it has looked in vain, as they pay
	// for its looks with faults; see crew.patience.
	patienceShare = 8
	minPatience   = time.Millisecond
	maxPatience   = 10 * time.Millisecond
	// maxWait bounds the time between two looks at what the others have left.
	maxWait = 100 * time.Millisecond
	// unknown is the pace before an item was run.
	unknown = 0
)

// For calls body for each i from 0 to n-1, on all ranks; see the package comment. Every rank calls
// it, with the same n. body is called by several goroutines at the same time.
//
// When ctx ends first, this rank begins no more items. The others do not either, and wait for it
// until their contexts end. If they are in another loop then than this rank, the team has come to
// its end, and loops return dsm.ErrMismatch: make a new one.
//
// Errors: an *Error if body has failed; dsm.ErrMismatch (ranks gave different n, or have called
// different numbers of loops), dsm.ErrNoSpace (n is negative or more than MaxItems), dsm.ErrInUse
// (another goroutine of this process is in a loop of the team; the others wait for this rank),
// ctx's, dsm.ErrNodeLost, dsm.ErrClosed, dsm.ErrLost.
func (t *Team) For(ctx context.Context, n int, body func(i int) error) error {
	_, err := Reduce(ctx, t, n,
		func(i int) (struct{}, error) { return struct{}{}, body(i) },
		func(a, _ struct{}) struct{} { return a })
	return err
}

// Reduce is Team.For that combines what body returns for the items with op, and returns the result
// to all ranks, or the zero T if n is 0. op must be associative and commutative, because items are
// combined as they come: so floating-point sums may differ from call to call, but not from rank to
// rank. T must be shareable as for dsm.Alloc, and has at most MaxReduceBytes; else the error is
// dsm.ErrType or dsm.ErrNoSpace. A panic of op is that of an item, or of the caller, when the
// values of the ranks are combined.
func Reduce[T any](ctx context.Context, t *Team, n int, body func(i int) (T, error), op func(a, b T) T) (T, error) {
	v, err := reduce(ctx, t, n, body, op)
	return v, wrapped(err)
}

func reduce[T any](ctx context.Context, t *Team, n int, body func(i int) (T, error), op func(a, b T) T) (zero T, err error) {
	if size := reflect.TypeFor[T]().Size(); size > MaxReduceBytes {
		return zero, fmt.Errorf("%w: a value of %d bytes, of at most %d", dsm.ErrNoSpace, size, MaxReduceBytes)
	}
	if err := dsm.Shareable[T](); err != nil {
		return zero, err
	}
	number, err := t.begin()
	if err != nil {
		return zero, err
	}
	defer t.end()
	l := t.newLoop(ctx, number)
	sum := outcome[T]{Call: l.number<<34 | uint64(n)}
	var wrong error
	if n < 0 || n > MaxItems {
		// The others may have come with another number, and wait.
		wrong = fmt.Errorf("%w: %d items, of at most %d", dsm.ErrNoSpace, n, MaxItems)
		n, sum.Call = 0, l.number<<34|wrongItems
	}
	var mu sync.Mutex // guards sum while threads run
	l.thread = func() {
		var v T
		has := false
		l.each(func(i int) error {
			next, err := body(i)
			if has {
				next = op(v, next)
			}
			v, has = next, true
			return err
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			sum = sum.with(outcome[T]{Call: sum.Call, Has: has, Value: v}, op)
		})
	}
	if lost := dsm.Guard(func() { sum, err = conclude(l, n, &sum, op) }); lost != nil {
		return zero, lost
	}
	if wrong != nil {
		return zero, wrong
	}
	return sum.Value, err
}

// begin begins a loop, unless one runs, and returns its number.
func (t *crew) begin() (number uint64, err error) {
	lost := dsm.Guard(func() {
		own := t.own()
		if !own.busy.CompareAndSwap(false, true) {
			err = fmt.Errorf("%w: a loop of the team runs already", dsm.ErrInUse)
			return
		}
		own.loops++
		number = own.loops
		own.ran.begin(number)
	})
	if lost != nil {
		return 0, lost
	}
	return number, err
}

// end lets another loop begin. A slot that is lost is of no more use, busy or not.
func (t *crew) end() { _ = dsm.Guard(func() { t.own().busy.Store(false) }) }

// conclude runs the loop to its end, and returns its outcome. sum is this rank's, to which its
// threads add.
func conclude[T any](l *loop, n int, sum *outcome[T], op func(a, b T) T) (all outcome[T], err error) {
	t := l.t
	var ranks []outcome[T]
	meet := func(own outcome[T]) {
		defer dsm.Waiting(t.c, t.told)()
		ranks, err = dsm.AllGather(l.ctx, t.among, t.prefix, own)
	}
	lo, hi := t.block(n)
	defer l.show(n)()
	began := time.Now()
	l.work(lo, hi)
	patience := min(max(time.Since(began)/patienceShare, t.patience), maxPatience)
	// What others have taken they run after this rank has arrived at the first meeting. Then there
	// is a second one. Whatever was taken was taken from a rank that had not arrived.
	own := *sum
	own.More = t.own().ran.of(l.number) < hi-lo
	own.Failed, own.Rank = l.tell()
	// This goroutine is the one that meets, because it is the caller's: what it waits for has the
	// line of the program.
	met, helped := make(chan struct{}), make(chan error, 1)
	go func() { helped <- dsm.Guard(func() { l.help(met, patience) }) }()
	if meet(own); err != nil && l.ctx.Err() == nil {
		l.halted.Store(true)
	}
	close(met)
	if lost := <-helped; lost != nil {
		return outcome[T]{}, lost
	}
	if err != nil {
		l.stopped() // and tells the others, if that is because ctx has ended
	}
	first := func(a, _ T) T { return a }
	if all = together(ranks, first); all.More && !all.Mixed {
		own = *sum
		own.Call |= secondMeeting
		own.Failed, own.Rank = l.tell()
		meet(own)
		all = together(ranks, first)
	}
	switch {
	case all.Mixed || errors.Is(err, dsm.ErrMismatch):
		return outcome[T]{}, l.mixed(n, reflect.TypeFor[T]())
	case err != nil:
		return outcome[T]{}, err
	case all.Failed > 0:
		return outcome[T]{}, l.failed(int(all.Failed-1), int(all.Rank))
	}
	// op is the caller's, and so is a panic of it: no goroutine of ours calls it, and no rank waits
	// for this one any more.
	return together(ranks, op), nil
}

// mixed is the error of ranks that have not come to the same loop, here one over n items with
// values of a type.
func (l *loop) mixed(n int, of reflect.Type) error {
	with := ""
	if of.Size() > 0 {
		with = fmt.Sprintf(", with values of type %v", of)
	}
	return fmt.Errorf("%w: ranks are in different loops of the team, or in one over different numbers of items, or with different values: this one in its loop %d, over %d%s",
		dsm.ErrMismatch, l.number, n, with)
}

// help takes from others, and runs that, until all have arrived. A rank may be late, or become
// slow: so it looks again and again, each time after twice the time.
func (l *loop) help(met <-chan struct{}, wait time.Duration) {
	took := false
	defer func() {
		if l.vain && !took {
			l.t.patience = min(2*l.t.patience, maxPatience)
		} else {
			l.t.patience = max(l.t.patience-l.t.patience/patienceShare, minPatience)
		}
	}()
	for {
		select {
		case <-met:
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, maxWait)
		for lo, hi := l.steal(); lo < hi; lo, hi = l.steal() {
			l.work(lo, hi)
			wait, took = minPatience, true
		}
	}
}

// outcome is what a rank, or all of them, have done in a loop.
type outcome[T any] struct {
	Call   uint64 // the number of the loop, wrongItems, secondMeeting, and the number of items
	Failed int64  // 0: none has; else 1 and the first item that has
	Rank   int32  // where it was run, by index
	Has    bool   // an item was run
	More   bool   // a rank has not run all of its part, or not all has ended of its tasks
	Mixed  bool   // not all have the same Call
	Value  T      // if Has
}

// What an outcome's Call has beside the numbers: secondMeeting at the second meeting of a loop,
// wrongItems if the rank gave a number of items that is not possible, and both in Tasks, with the
// number of the meeting: 0 if the rank can run no tasks.
const (
	secondMeeting = 1 << 32
	wrongItems    = 1 << 33
)

func (a outcome[T]) with(b outcome[T], op func(a, b T) T) outcome[T] {
	switch {
	case a.Has && b.Has:
		a.Value = op(a.Value, b.Value)
	case b.Has:
		a.Value = b.Value
	}
	if b.Failed > 0 && (a.Failed == 0 || b.Failed < a.Failed) {
		a.Failed, a.Rank = b.Failed, b.Rank
	}
	a.Has, a.More, a.Mixed = a.Has || b.Has, a.More || b.More, a.Mixed || b.Mixed || a.Call != b.Call
	return a
}

// together is what all ranks have done: nothing, if they have not met.
func together[T any](ranks []outcome[T], op func(a, b T) T) (all outcome[T]) {
	for i, next := range ranks {
		if i == 0 {
			all = next
		} else {
			all = all.with(next, op)
		}
	}
	return all
}

// loop is this rank's part in a loop.
type loop struct {
	ctx     context.Context
	t       *crew
	number  uint64
	touches []Touch
	thread  func() // runs items, until there are no more in the rank's slot
	halted  atomic.Bool
	seen    map[int]look // what others had left when this rank looked last, by index
	vain    bool         // it has looked at one that was in the loop and had too little left

	mu    sync.Mutex
	first *Error // the failure here of the first item that has; guarded by mu
}

// look is what a rank had left, and since when that has not changed.
type look struct {
	left uint64
	at   time.Time
}

func (t *Team) newLoop(ctx context.Context, number uint64) *loop {
	return &loop{ctx: ctx, t: t.crew, number: number, touches: t.touches, seen: map[int]look{}}
}

// rest is what a rank has left of this loop.
func (l *loop) rest(index int) *items { return &l.t.slots.At(index).rest[l.number%2] }

// work runs the items from lo to hi, of which others may take some away, by all threads.
func (l *loop) work(lo, hi int) {
	if lo == hi {
		return
	}
	l.fetch(lo, hi)
	rest := l.rest(l.t.index)
	l.t.own().pace.Store(unknown)
	rest.put(lo, hi)
	var threads sync.WaitGroup
	for range min(l.t.threads, hi-lo) {
		threads.Go(l.thread)
	}
	threads.Wait()
	if l.stopped() {
		rest.put(0, 0)
	}
}

// steal takes items from the nearest rank that has some left.
func (l *loop) steal() (lo, hi int) {
	for _, v := range l.t.victims {
		if l.stopped() {
			return 0, 0
		}
		// A slot that is lost has nothing to take: its rank is lost, too.
		lost := dsm.Guard(func() {
			rest := l.rest(v)
			least := math.MaxInt
			if pace := l.t.slots.At(v).pace.Load(); pace != unknown {
				least = int(int64(worthwhile) / pace)
			}
			left := rest.Load()
			if seen := l.seen[v]; left != seen.left {
				l.seen[v] = look{left, time.Now()}
			} else if time.Since(seen.at) >= worthwhile {
				least = 1 // it has not got on: its pace is that of other items
			}
			lo, hi = rest.rob(least)
			if lo == hi { // one that has not come yet may have much left then
				l.vain = l.vain || l.t.slots.At(v).ran.in(l.number)
			}
		})
		if lost == nil && lo < hi {
			return lo, hi
		}
	}
	return 0, 0
}

// stopped reports whether no more items are to be begun.
func (l *loop) stopped() bool {
	if l.ctx.Err() != nil {
		l.stop()
	}
	return l.halted.Load() || l.t.own().stopped.Load() == l.number
}

// stop ends the loop on all ranks.
func (l *loop) stop() {
	if l.halted.Swap(true) {
		return
	}
	for _, v := range l.t.victims {
		// Who is lost needs no telling.
		_ = dsm.Guard(func() { l.t.slots.At(v).stopped.Store(l.number) })
	}
}

// each runs do for items in the rank's slot, until there are no more, and then end.
func (l *loop) each(do func(i int) error, end func()) {
	at := 0
	l.try(func(e *Error) { e.Index = at }, func() error {
		before := int64(unknown)
		for n := 1; !l.stopped(); {
			lo, hi := l.rest(l.t.index).take(n, chunkPart*l.t.threads)
			if lo == hi {
				break
			}
			began := time.Now()
			for at = lo; at < hi && !l.halted.Load(); at++ {
				if err := do(at); err != nil {
					return err
				}
			}
			l.t.own().ran.Add(uint64(at - lo))
			at = max(at-1, lo)
			took := time.Since(began)
			pace := int64(took)/int64((hi-lo)*l.t.threads) + 1
			if before != unknown {
				l.t.own().pace.Store(min(before, pace))
			}
			before = pace
			switch {
			case took < chunk/2:
				n = min(2*n, MaxItems)
			case took > 2*chunk:
				n = max(n/2, 1)
			}
		}
		end()
		return nil
	})
}

// try calls f. If it fails, in whatever way, what name names has failed.
func (l *loop) try(name func(*Error), f func() error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		switch v := recover().(type) {
		case nil:
			l.fail(name, errors.New("the body has ended its goroutine (runtime.Goexit)"))
		case error:
			l.fail(name, fmt.Errorf("panic: %w\n\n%s", v, whence()))
		default:
			l.fail(name, fmt.Errorf("panic: %v\n\n%s", v, whence()))
		}
	}()
	var err error
	if lost := dsm.Guard(func() { err = f() }); lost != nil {
		err = lost
	}
	returned = true
	if err != nil {
		l.fail(name, err)
	}
}
