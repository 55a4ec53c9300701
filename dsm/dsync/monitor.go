package dsync

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"dsmd/dsm"
)

// monitor is state in shared memory that one goroutine of all ranks changes at a time: it is
// inside. A is what all ranks have in common, and O what each has of its own.
//
// Goroutines of a rank that wait are in a list of the rank, in their order. While there are any,
// one more waits for all of them at the rank's gate, a barrier of two, and the rank is parked. Who
// makes a change for which it waits marks it as not parked, leaves, and goes to the gate. Then
// those in the list look inside whether they may go on.
//
// Everything may die. If the rank does not come to its gate it is not waited for; and if nobody
// comes to the gate for long the rank looks all the same.
type monitor[A, O any] struct {
	c      *dsm.Cluster
	among  dsm.Group
	index  int
	called string     // by who made it
	what   string     // is waited for, as is announced: "for permits of semaphore"; "": nothing
	name   string     // in this group
	guard  *dsm.Mutex // held inside
	life   *dsm.Mutex // held as long as this rank has the handle
	places []place[A, O]
	// ready is called inside. It reports whether the goroutine of this rank that has waited longest
	// may go on, which then does. If it may not, none of the others may.
	ready func() bool
	// left is called inside when so many of the goroutines of this rank wait no more and could not
	// go on.
	left   func(n int)
	relook time.Duration

	turn    chan struct{} // guards the rest; who has it may wait for the guard
	waiting []chan error
	recall  context.CancelFunc // of who is at the gate; nil: nobody is
	rung    []int              // ranks at whose gate they wait for who is inside
	agents  sync.WaitGroup
}

// place is a rank's part of the state.
type place[A, O any] struct {
	// Of the first place: it is being changed, or a program has died in the middle of that.
	changing atomic.Bool
	all      A

	came   atomic.Bool // the rank has a handle, or has had one
	own    O
	parked bool
}

// Only tests change them.
var (
	// relookAfter is when a rank looks again that waits, if nobody has come to its gate. It is
	// longer than a wait lasts until it is part of a job that hangs, of which people are told.
	relookAfter = 30 * time.Second
	// watchAfter is that for waits that are no hang, however long they last.
	watchAfter = 5 * time.Second
	// gatePatience is how long a rank is waited for at its gate. It is on the way there unless its
	// program is dead or stopped.
	gatePatience = 2 * time.Second
)

// newMonitor makes the monitor of that kind and name. This rank's own state is zero then, as nobody
// waits there: the handle that it had before was freed, or its program has died, or left.
func newMonitor[A, O any](ctx context.Context, among dsm.Group, kind, name string) (*monitor[A, O], error) {
	c, index := dsm.Member(among)
	// Survivors have state of their own: with fewer of them it has another name. All is the job's
	// own, as its ranks are: the name does not begin with dsm.Everywhere.
	m := &monitor[A, O]{c: c, among: among, index: index, called: name, name: fmt.Sprintf("dsync/%s/%s/%d", name, kind, among.Size()),
		left: func(int) {}, relook: relookAfter, turn: make(chan struct{}, 1)}
	m.guard = dsm.NewMutex(c, m.name)
	life := m.lifeOf(index)
	// Who had it before has died, or its program left without freeing it.
	if err := life.LockRepair(ctx, func(*dsm.OwnerDiedError) error { return nil }); err != nil {
		return nil, err
	}
	places, err := dsm.Alloc[place[A, O]](ctx, c, m.name, among.Size(), dsm.Unsaved())
	if err != nil {
		return nil, errors.Join(err, life.Unlock())
	}
	m.life, m.places = life, places
	err = m.inside(ctx, func() error {
		own := &m.places[index]
		own.own, own.parked = *new(O), false
		own.came.Store(true)
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, m.free(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// failed says of an error in which method it was, and of what.
func (m *monitor[A, O]) failed(what string, err error) error {
	if err != nil {
		return fmt.Errorf("dsync: %s of %q: %w", what, m.called, err)
	}
	return nil
}

func (m *monitor[A, O]) lifeOf(index int) *dsm.Mutex {
	return dsm.NewMutex(m.c, fmt.Sprintf("%s/%d", m.name, index))
}

// free gives back what newMonitor took. Nobody is inside, or waits.
func (m *monitor[A, O]) free(ctx context.Context) error {
	m.agents.Wait()
	return errors.Join(dsm.Free(ctx, m.c, m.places), m.life.Unlock())
}

func (m *monitor[A, O]) all() *A { return &m.places[0].all }

func (m *monitor[A, O]) own() *O { return &m.places[m.index].own }

// inside calls f inside, and wakes those for which that has changed something. If ctx ends first f
// was not called, else it was, whatever the error.
func (m *monitor[A, O]) inside(ctx context.Context, f func() error) error {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := m.guard.LockRepair(ctx, m.repair)
	if err != nil {
		<-m.turn
		return err
	}
	m.rung = nil
	lost := dsm.Guard(func() {
		m.places[0].changing.Store(true)
		err = f()
		m.settle()
		m.places[0].changing.Store(false)
	})
	rung := m.rung
	err = errors.Join(err, lost, m.guard.Unlock())
	<-m.turn
	return errors.Join(err, m.ringAll(rung))
}

// repair finds out whether who had the guard, or was with it at a node that is lost, was inside.
func (m *monitor[A, O]) repair(died *dsm.OwnerDiedError) (err error) {
	lost := dsm.Guard(func() {
		if m.places[0].changing.Load() {
			err = died
		}
	})
	return errors.Join(err, lost)
}

// ringAll meets ranks at their gates.
func (m *monitor[A, O]) ringAll(rung []int) error {
	errs := make([]error, len(rung))
	var all sync.WaitGroup
	for i, index := range rung {
		all.Go(func() { errs[i] = m.ring(index) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// wake says, inside, that a rank is to look whether its goroutines may go on. This rank does so in
// any case.
func (m *monitor[A, O]) wake(index int) {
	if p := &m.places[index].parked; *p && index != m.index {
		*p = false
		m.rung = append(m.rung, index)
	}
}

func (m *monitor[A, O]) wakeAll() {
	for index := range m.places {
		m.wake(index)
	}
}

// ring meets a rank at its gate. A loss ends its wait, too, so that it looks.
func (m *monitor[A, O]) ring(index int) error {
	ctx, cancel := context.WithTimeout(context.Background(), gatePatience)
	defer cancel()
	if err := m.gate(ctx, index); !over(err) && !errors.Is(err, dsm.ErrNodeLost) {
		return err
	}
	return nil
}

func (m *monitor[A, O]) gate(ctx context.Context, index int) error {
	return dsm.NewBarrier(m.among, fmt.Sprintf("%s/%d", m.name, index), dsm.Parties(2)).Wait(ctx)
}

// over reports whether a wait has ended because its context has.
func over(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// look lets those go on, inside, that may.
func (m *monitor[A, O]) look() {
	for len(m.waiting) > 0 && m.ready() {
		m.waiting[0] <- nil
		m.waiting = m.waiting[1:]
	}
}

// settle lets those go on, inside, that may, and sees to it that somebody is at the gate if there
// are others.
func (m *monitor[A, O]) settle() {
	m.look()
	switch {
	case len(m.waiting) > 0 && m.recall == nil:
		m.places[m.index].parked = true
		ctx, cancel := context.WithTimeout(context.Background(), m.relook)
		m.recall = cancel
		m.agents.Go(func() { m.attend(ctx) })
	case len(m.waiting) == 0 && m.recall != nil:
		m.recall()
	}
}

// attend is at this rank's gate until somebody comes, ctx ends or no rank can come any more.
func (m *monitor[A, O]) attend(ctx context.Context) {
	met := m.gate(ctx, m.index)
	if errors.Is(met, context.DeadlineExceeded) {
		if died := m.deaths(); died != nil {
			met = died
		}
	}
	for coming := true; coming; {
		err := m.inside(context.Background(), func() error {
			parked := &m.places[m.index].parked
			if coming = over(met) && !*parked; coming {
				return nil
			}
			*parked = false
			m.recall()
			m.recall = nil
			if met != nil && !over(met) {
				m.fail(met)
			}
			return nil
		})
		switch {
		case err != nil:
			m.abandon(err)
			return
		case coming: // who has marked this rank is on the way to the gate
			met = m.ring(m.index)
		}
	}
}

// fail ends, inside, the waits of this rank that have not come to their end.
func (m *monitor[A, O]) fail(err error) {
	m.look()
	for _, w := range m.waiting {
		w <- err
	}
	m.left(len(m.waiting))
	m.waiting = nil
}

// abandon ends the waits of this rank when nobody can be inside any more.
func (m *monitor[A, O]) abandon(err error) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.recall != nil {
		m.recall()
		m.recall = nil
	}
	for _, w := range m.waiting {
		w <- err
	}
	m.waiting = nil
}

// deaths returns an error if a rank that has a handle has died. One that has not had any yet has
// not taken its life lock, which may be unrepaired all the same: since the lock's home was lost, or
// since a program died with it in a former run of the job.
func (m *monitor[A, O]) deaths() error {
	var came []int
	if lost := dsm.Guard(func() {
		for index := range m.places {
			if index != m.index && m.places[index].came.Load() {
				came = append(came, index)
			}
		}
	}); lost != nil {
		return lost
	}
	for _, index := range came {
		life := m.lifeOf(index)
		free, err := life.TryLock(context.Background())
		if free { // it has no handle any more
			err = life.Unlock()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isLost reports whether the rank with that index is known to be lost. This one is not.
func (m *monitor[A, O]) isLost(index int) bool {
	if index == m.index {
		return false
	}
	if left, ok := m.among.(*dsm.Survivors); ok {
		index = left.Ranks()[index]
	}
	lost, _ := m.c.Lost(context.Background()) // with an error nobody can go on anyway
	return slices.Contains(lost, index)
}

// next waits for what w has next, or for the end of ctx.
func (m *monitor[A, O]) next(ctx context.Context, w chan error) (has bool, err error) {
	if m.what != "" {
		defer dsm.Waiting(m.c, fmt.Sprintf("%s %q", m.what, m.called))()
	}
	select {
	case err := <-w:
		return true, err
	case <-ctx.Done():
		return false, nil
	}
}

// await calls begin inside, and returns when that did if it need not wait. Else it waits until
// ready says so. If it returns ctx's error the caller does not wait any more.
func (m *monitor[A, O]) await(ctx context.Context, begin func() (waits bool, err error)) error {
	w, err := m.enlist(ctx, begin)
	if err != nil {
		return err
	}
	return m.wait(ctx, w)
}

// enlist is the first part of await: the caller waits from then on.
func (m *monitor[A, O]) enlist(ctx context.Context, begin func() (waits bool, err error)) (w chan error, err error) {
	w = make(chan error, 1)
	return w, m.inside(ctx, func() error {
		waits, err := begin()
		switch {
		case err != nil:
		case waits:
			m.waiting = append(m.waiting, w)
		default:
			w <- nil
		}
		return err
	})
}

func (m *monitor[A, O]) wait(ctx context.Context, w chan error) error {
	select {
	case err := <-w:
		return err
	default:
	}
	if has, err := m.next(ctx, w); has {
		return err
	}
	// What has come before this takes effect is not given back.
	left := false
	err := m.inside(context.WithoutCancel(ctx), func() error {
		m.look()
		if i := slices.Index(m.waiting, w); i >= 0 {
			m.waiting = slices.Delete(m.waiting, i, i+1)
			m.left(1)
			left = true
		}
		return nil
	})
	if left || err != nil {
		return errors.Join(ctx.Err(), err)
	}
	return <-w
}
