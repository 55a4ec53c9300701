package parallel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/dsm"
	"dsmd/dsm/collections"
)

// A rank looks what others tell and offer, after a time that doubles while nothing has come of it.
// Where they have changed something it misses a page, which takes as long as the first of these
// times.
const (
	firstLook = 100 * time.Microsecond
	lastLook  = 2 * time.Millisecond
)

// ErrEnded is what Join returns when tasks end before they are done: one has failed, or a context
// has ended, or a node was lost.
var ErrEnded = errors.New("parallel: the tasks have come to an end")

// Task is a task that runs. Its methods belong to the goroutine that its body was called by.
type Task[T any] struct {
	Value T

	w      *worker[T]
	parent *join
	own    *join // of its children, if it has forked any
	place  int   // of the first of them
}

// Tasks runs tasks on all ranks, until there are none any more: first, and what these fork, and so
// on. See the package comment. Every rank calls it, each with tasks of its own to begin with, or
// none. body is called for each task, by several goroutines at the same time.
//
// T must be shareable as for dsm.Alloc; it may hold a heap.Ref. A task has to be small: up to 48
// bytes travel best. For what is larger it says where that is.
//
// When ctx ends first, this rank begins no more tasks, and Team.For says what the others do.
//
// Errors: an *Error if body has failed; dsm.ErrType, dsm.ErrNoSpace (there is no room for 64 tasks
// of each rank), dsm.ErrMismatch (ranks gave different T, or have called different numbers of
// loops), dsm.ErrInUse (another goroutine of this process is in a loop of the team; the others wait
// for this rank), ctx's, dsm.ErrNodeLost, dsm.ErrClosed, dsm.ErrLost.
func Tasks[T any](ctx context.Context, t *Team, first []T, body func(t *Task[T]) error) error {
	return wrapped(runTasks(ctx, t, first, body))
}

// Fork adds a task, which some goroutine of some rank runs. It sends nothing, and waits for nobody.
// The task's page may travel later, when another rank has nothing to do.
func (t *Task[T]) Fork(v T) {
	if t.own == nil {
		t.own = &join{above: t.parent}
		t.own.left.Store(1)
		t.place = t.w.push()
	}
	t.own.left.Add(1)
	t.w.push(task[T]{v, t.own})
	t.w.run.rouse()
}

// Join waits until all that this task has forked has ended, and all that these have forked. What
// they have stored, the caller sees then. Meanwhile the goroutine runs those of them that nobody
// has begun. When others have begun the rest, it waits for them, and another goroutine of the rank
// goes on in its place.
//
// It returns ErrEnded if not all of them will be run. Then the body should return, with any error.
func (t *Task[T]) Join() error {
	r := t.w.run
	for t.own != nil && t.own.left.Load() > 1 {
		if r.halted.Load() {
			return ErrEnded
		}
		if next, ok := t.w.pop(t.place); ok {
			r.do(t.w, next)
		} else {
			r.await(t.own)
		}
	}
	return nil
}

// run is this rank's part in running tasks. Goroutines run tasks, as many as the team has threads,
// and one more deals with the other ranks.
type run[T any] struct {
	*loop
	body  func(t *Task[T]) error
	rings *collections.Padded[ring[T]] // of the ranks, by index
	root  join                         // of the tasks to begin with

	offers offers    // of deal, as is own memory that others look at
	taken  worker[T] // of deal: tasks that were taken from others, or back

	workers atomic.Pointer[[]*worker[T]] // also those that nobody has, in spare
	mu      sync.Mutex                   // guards spare, and changes of workers
	spare   []*worker[T]

	ends     sync.WaitGroup // of all goroutines
	active   atomic.Int32   // how many run tasks
	sleeping atomic.Int32   // how many wait for a task
	surplus  atomic.Int32   // how many are to end, since others have come back from Join

	wake  chan struct{} // has a token when there is a task for one that waits
	look  chan struct{} // has a token when deal should look at once
	quiet chan struct{} // has a token when deal has found nothing, and no task runs
	over  chan struct{} // is closed at the end
	once  sync.Once     // closes it
}

// worker is a goroutine's own: the tasks that it has forked, and the one that it runs.
type worker[T any] struct {
	deque[T]
	run     *run[T]
	current *Task[T]
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func runTasks[T any](ctx context.Context, t *Team, first []T, body func(t *Task[T]) error) error {
	number, err := t.begin()
	if err != nil {
		return err
	}
	defer t.end()
	r := &run[T]{
		loop: t.newLoop(ctx, number), body: body, wake: make(chan struct{}, t.threads),
		look: make(chan struct{}, 1), quiet: make(chan struct{}, 1), over: make(chan struct{}),
	}
	wrong := dsm.Shareable[T]()
	if wrong == nil {
		// The memory is new in each call. So who still looks for a task, when the others are in
		// another call, finds none of these.
		name := fmt.Sprintf("%s/tasks/%d", t.memory, number)
		r.rings, wrong = collections.NewPadded[ring[T]](ctx, t.c, name, t.size, dsm.Unsaved())
	}
	if errors.Is(wrong, dsm.ErrMismatch) {
		wrong = r.mixed()
	}
	if lost := dsm.Guard(func() { err = r.conclude(first, wrong) }); lost != nil {
		err = lost
	}
	if wrong != nil {
		return wrong
	}
	return errors.Join(err, r.rings.Free(context.WithoutCancel(ctx)))
}

// mixed is the error of ranks that have not come to the same call of Tasks.
func (r *run[T]) mixed() error {
	return fmt.Errorf("%w: ranks are in different loops of the team, or have tasks of different types: this one is in its loop %d, with tasks of type %v",
		dsm.ErrMismatch, r.number, reflect.TypeFor[T]())
}

// conclude runs the tasks to their end. If something is wrong it runs none, but tells the others,
// who wait.
//
// The ranks meet when all have nothing to do: each arrives when none of its goroutines has a task.
// Its arrival stands while it takes tasks from others. Then all is done if at each rank all has
// ended that it began with. If not, somebody has taken tasks, or will hear that some have ended,
// after he arrived. So they meet again when all have nothing to do. A rank that is lost, too, all
// learn of at a meeting.
func (r *run[T]) conclude(first []T, wrong error) error {
	call := r.number<<34 | secondMeeting | wrongItems
	told := fmt.Sprintf("for the ends of all tasks of team %q", r.t.name)
	defer r.finish()
	if wrong == nil {
		r.begin(first)
	}
	for more := true; more; {
		own := outcome[struct{}]{Call: call}
		if wrong == nil {
			call++
			r.rest()
			own.Call, own.More = call, r.root.left.Load() > 0
		}
		own.Failed, own.Rank = r.tell()
		over := dsm.Waiting(r.t.c, told)
		ranks, err := dsm.AllGather(r.ctx, r.t.among, r.t.prefix, own)
		over()
		all := together(ranks, func(a, _ struct{}) struct{} { return a })
		more = err == nil && !all.Mixed && all.Failed == 0 && all.More
		if more {
			continue
		}
		if err != nil || all.Mixed || all.Failed > 0 {
			r.stop()
		}
		r.finish()
		switch {
		case err != nil:
			return err
		case all.Mixed:
			return r.mixed()
		case all.Failed > 0:
			return r.failed(int(all.Failed-1), int(all.Rank))
		}
	}
	return nil
}

// begin starts the goroutines.
func (r *run[T]) begin(first []T) {
	r.root.left.Store(int64(len(first)))
	for i := range first {
		r.taken.push(task[T]{first[len(first)-1-i], &r.root})
	}
	r.workers.Store(&[]*worker[T]{&r.taken})
	r.active.Store(int32(r.t.threads))
	for range r.t.threads {
		r.start()
	}
	r.offers.begin(r.t.own())
	r.ends.Go(r.deal)
}

// start starts a goroutine, which counts as active already.
func (r *run[T]) start() {
	w := r.hire()
	r.ends.Go(func() { r.work(w) })
}

// hire returns a worker of a goroutine that has ended, or a new one.
func (r *run[T]) hire() *worker[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := len(r.spare) - 1; last >= 0 {
		w := r.spare[last]
		r.spare = r.spare[:last]
		return w
	}
	w := &worker[T]{run: r}
	all := append(slices.Clip(*r.workers.Load()), w)
	r.workers.Store(&all)
	return w
}

// rest waits until this rank has nothing to do, or has ended.
func (r *run[T]) rest() {
	select {
	case <-r.quiet: // which it was before the last meeting
	default:
	}
	signal(r.look)
	select {
	case <-r.quiet:
	case <-r.over:
		r.finish()
	}
}

// finish lets all goroutines end, and waits for them.
func (r *run[T]) finish() {
	r.halted.Store(true)
	r.let()
	r.ends.Wait()
}

// let lets goroutines end that wait.
func (r *run[T]) let() { r.once.Do(func() { close(r.over) }) }

// reach calls f, which touches what the ranks share to run tasks. If that is lost, so is a node.
func (r *run[T]) reach(f func()) {
	if lost := dsm.Guard(f); lost != nil {
		r.fail(func(e *Error) { e.Task = "none, but the memory of the team" }, lost)
	}
}

// work runs tasks until there are no more, or another goroutine does in this one's place.
func (r *run[T]) work(w *worker[T]) {
	defer r.active.Add(-1)
	name := func(e *Error) {
		if w.current != nil {
			e.Task = fmt.Sprintf("%+v", w.current.Value)
		}
	}
	r.try(name, func() error {
		for t, ok := r.next(w); ok; t, ok = r.next(w) {
			r.do(w, t)
		}
		return nil
	})
	if r.halted.Load() {
		r.let()
	}
}

// do runs a task.
func (r *run[T]) do(w *worker[T], t task[T]) {
	self := &Task[T]{Value: t.value, w: w, parent: t.parent}
	outer := w.current
	w.current = self
	ended := r.call(self)
	w.current = outer
	if !ended {
		return
	}
	if self.own != nil {
		r.ended(self.own, 1)
	} else {
		r.ended(self.parent, 1)
	}
}

// call calls the body of a task, and reports whether that has ended well. A panic ends here: the
// task may run in a Join, whose caller might recover, and nobody would know that it has failed.
func (r *run[T]) call(t *Task[T]) (ended bool) {
	name := func(e *Error) { e.Task = fmt.Sprintf("%+v", t.Value) }
	defer func() {
		if v := recover(); v != nil {
			r.try(name, func() error { panic(v) })
		}
	}()
	if err := r.body(t); err != nil {
		r.fail(name, err)
		return false
	}
	return true
}

// await waits for the end of others' tasks, while another goroutine takes this one's place.
func (r *run[T]) await(j *join) {
	waiter := make(chan struct{}, 1)
	if j.waiter.Store(&waiter); j.left.Load() == 1 {
		return
	}
	r.start()
	select {
	case <-waiter:
	case <-r.over:
	}
	r.active.Add(1)
	r.surplus.Add(1)
}

// next returns a task, and waits for one.
func (r *run[T]) next(w *worker[T]) (t task[T], ok bool) {
	for !r.halted.Load() {
		if s := r.surplus.Load(); s > 0 && r.surplus.CompareAndSwap(s, s-1) {
			r.mu.Lock()
			r.spare = append(r.spare, w)
			r.mu.Unlock()
			r.rouse() // if it was this goroutine that was told of a task
			return t, false
		}
		if t, ok = w.pop(0); ok {
			return t, true
		}
		if !r.gather(w) && !r.sleep() {
			return t, false
		}
	}
	return t, false
}

// gather takes tasks from other goroutines of this rank.
func (r *run[T]) gather(w *worker[T]) bool {
	for _, other := range *r.workers.Load() {
		if taken := other.rob(batch); len(taken) > 0 {
			w.push(taken...)
			r.rouse()
			return true
		}
	}
	return false
}

// rouse wakes one that waits for a task.
func (r *run[T]) rouse() {
	if r.sleeping.Load() > 0 {
		signal(r.wake)
	}
}

// sleep waits for a task. It returns false at the end.
func (r *run[T]) sleep() bool {
	r.sleeping.Add(1)
	defer r.sleeping.Add(-1)
	if r.longest().len() > 0 { // put there by one that has not seen that this one sleeps
		return true
	}
	r.active.Add(-1)
	defer r.active.Add(1)
	signal(r.look)
	select {
	case <-r.wake:
		return true
	case <-r.over:
		return false
	}
}

// longest is a worker that has the most tasks.
func (r *run[T]) longest() (w *worker[T]) {
	most := -1
	for _, other := range *r.workers.Load() {
		if n := other.len(); n > most {
			w, most = other, n
		}
	}
	return w
}

// deal offers tasks to other ranks, takes theirs, and hears what they tell.
func (r *run[T]) deal() {
	defer r.let()
	for wait := firstLook; ; wait = min(2*wait, lastLook) {
		some := false
		r.reach(func() {
			r.halt()
			r.hear()
			if w := r.longest(); w.len() > 0 {
				some = r.offer(w)
			} else if r.sleeping.Load() > 0 {
				some = r.takeBack() || r.steal()
			}
		})
		switch {
		case r.halted.Load():
			return
		case some:
			r.rouse()
			wait = firstLook
		case r.active.Load() == 0 && r.longest().len() == 0:
			signal(r.quiet)
		}
		select {
		case <-r.over:
			return
		case <-r.look:
			wait = firstLook
		case <-time.After(wait):
		}
	}
}

// halt begins no more tasks if they have been stopped, here or by another rank.
func (r *run[T]) halt() {
	if r.stopped() {
		r.halted.Store(true)
	}
}
