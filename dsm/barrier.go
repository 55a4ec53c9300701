package dsm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/runstats"
)

// Barrier waits until every rank of the job has called it. What any rank stored before, every rank
// sees after. It is the usual way to meet; NewBarrier has the others.
//
// One goroutine of each rank takes part. When ctx ends first, this rank has not arrived: the others
// go on waiting, and the error wraps ctx.Err(). It says which ranks were missing, as Mutex.Lock
// says who holds a lock.
//
// With SaveAtBarriers, and if `dsmd run` asks for checkpoints, it takes one when it is time.
//
// Other errors: ErrInUse (another goroutine of this process is in it), ErrNodeLost (a rank is lost,
// so that not all can come: see Survivors), ErrClosed, ErrLost, those of Checkpoint.
func (c *Cluster) Barrier(ctx context.Context) error {
	if asks, due := c.saves.savesAt(time.Now()); asks {
		if err := c.saves.meet(ctx, c, due); err != nil {
			return failure("Barrier", err)
		}
		return nil
	}
	return meet(ctx, c)
}

// meet waits until every rank of a group has called it.
func meet(ctx context.Context, among Group) error {
	g := among.group()
	c := g.c
	hash := attach.NameHash(attach.NameBarrier, c.within(everyRank)+g.suffix)
	if !c.occupied.enter(hash) {
		return failure("Barrier", fmt.Errorf("%w: a rank arrives once; use dsm.NewBarrier with dsm.Team to let goroutines meet", ErrInUse))
	}
	defer c.occupied.leave(hash)
	w := c.attendant.begin(&wait{item: everybody, object: hash, parties: among.Size(), ranks: g.losses == 0})
	defer c.attendant.end(w)
	if _, err := g.arrive(ctx, w, attach.NoFold, nil); err != nil {
		return failure("Barrier", err)
	}
	return nil
}

// everybody is what people are told of the barrier of all ranks.
var everybody = item{runstats.Barrier, "all ranks"}

// everyRank is the name of the barrier of all ranks. A user can't choose it: theirs are put behind
// "user/".
const (
	everyRank  = "all"
	userPrefix = "user/"
)

// occupied are barriers and reductions that this rank is in, by hash: it is in each once at a time.
type occupied struct {
	mu sync.Mutex
	by map[uint64]struct{}
}

// enter notes that this rank comes in, unless it is in already.
func (o *occupied) enter(hash uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, busy := o.by[hash]; busy {
		return false
	}
	o.by[hash] = struct{}{}
	return true
}

func (o *occupied) leave(hash uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.by, hash)
}

// arrive waits at a barrier and returns what all parties have brought, or what fold makes of it.
func (g group) arrive(ctx context.Context, w *wait, fold attach.Fold, payload []byte) ([]byte, error) {
	if err := g.c.commit(ctx); err != nil {
		return nil, err
	}
	if err := g.c.introduce(ctx, w.object, w.name); err != nil {
		return nil, err
	}
	r, err := g.c.doWaiting(ctx, attach.Call{Op: attach.OpArrive, Object: w.object, Parties: uint32(w.parties), Count: uint64(g.losses), Site: w.site.Number(), Fold: fold, Payload: payload}, w)
	if err != nil {
		return nil, err
	}
	switch r.Status {
	case attach.StatusOK:
		return r.Payload, nil
	case attach.StatusMismatch:
		return nil, fmt.Errorf("%w: %s", ErrMismatch, r.Payload)
	case attach.StatusNoSpace:
		if len(r.Payload) > 0 { // the daemon says what there is too much of
			return nil, fmt.Errorf("%w: %s", ErrNoSpace, r.Payload)
		}
		return nil, fmt.Errorf("%w: %d parties with %d bytes each are more than one message holds (%d bytes)", ErrNoSpace, w.parties, len(payload), attach.MaxPayload)
	}
	return nil, fmt.Errorf("the daemon answered with %v", r.Status)
}

// MaxParties bounds the parties of a barrier.
const MaxParties = 1 << 16

// Barrier is a meeting point with a name: barriers of the same name are the same, in this and in
// all other programs. It can be used again at once, by any number of goroutines, and must not be
// copied after its first use.
type Barrier struct {
	c       *Cluster
	g       group
	name    string
	hash    uint64
	parties int
	local   int
	ranks   bool // one goroutine of each rank meets, or one team

	mu   sync.Mutex // nothing else is taken, sent or awaited under it
	team *team      // that gathers at present, or nil; guarded by mu
}

// team is the goroutines of this process that pass a barrier together.
type team struct {
	here   int  // guarded by Barrier.mu
	full   bool // guarded by Barrier.mu
	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when err is set
	err    error
}

// BarrierOption is an option of NewBarrier.
type BarrierOption func(*Barrier)

// Parties says how many goroutines meet, if not one of each rank. They may be anywhere: two in this
// program and one in another are three. It is from 1 to MaxParties, and all must give the same.
func Parties(n int) BarrierOption { return func(b *Barrier) { b.parties, b.ranks = n, false } }

// Team lets local goroutines of this process meet as one party. All of them wait at this very
// Barrier; they combine first, so that the process sends one message. local is at least 1, and may
// differ from program to program.
func Team(local int) BarrierOption { return func(b *Barrier) { b.local = local } }

// NewBarrier returns the barrier called name. One goroutine of each rank of among meets there, if
// Parties and Team do not say otherwise. It sends nothing. It panics if an option is out of its
// range.
//
// All must give the same number of parties. Only those who give another than the first to arrive
// are told of that; see Wait.
//
// among is the Cluster, or when ranks are lost the Survivors. At a barrier that was made for more
// ranks than are left everybody gets ErrNodeLost, whether one of its parties is lost or not,
// because that is not known.
func NewBarrier(among Group, name string, opts ...BarrierOption) *Barrier {
	g := among.group()
	b := &Barrier{
		c: g.c, g: g, name: name, hash: attach.NameHash(attach.NameBarrier, userPrefix+g.scoped(name)),
		parties: among.Size(), local: 1, ranks: g.losses == 0,
	}
	for _, opt := range opts {
		opt(b)
	}
	if b.parties < 1 || b.parties > MaxParties || b.local < 1 {
		panic(fmt.Sprintf("dsm: barrier %q of %d parties with teams of %d: 1 to %d parties and at least 1 in a team are possible", name, b.parties, b.local, MaxParties))
	}
	return b
}

// Wait waits until all parties have arrived. What any of them stored before, all see after.
//
// When ctx ends first, the caller has not arrived, and the error wraps ctx.Err(). If its team was
// complete by then, the whole team withdraws: Wait returns an error that wraps context.Canceled to
// the others, or nil to all if the barrier had opened already.
//
// Other errors: ErrMismatch (the first to arrive gave another number of parties; it goes on waiting
// for as many as it gave), ErrNodeLost (a rank is lost, see NewBarrier), ErrClosed, ErrLost.
func (b *Barrier) Wait(ctx context.Context) error {
	w := b.c.attendant.begin(&wait{item: item{runstats.Barrier, b.name}, object: b.hash, parties: b.parties, ranks: b.ranks})
	defer b.c.attendant.end(w)
	var err error
	if b.local == 1 {
		_, err = b.g.arrive(ctx, w, attach.NoFold, nil)
	} else {
		err = b.waitInTeam(ctx, w)
	}
	if err != nil {
		return failure(fmt.Sprintf("Wait at barrier %q", b.name), err)
	}
	return nil
}

// errTeammate is why a team withdraws, for those who did not want to.
var errTeammate = fmt.Errorf("another goroutine of the team gave up: %w", context.Canceled)

func (b *Barrier) waitInTeam(ctx context.Context, w *wait) error {
	if err := errors.Join(b.c.err(), ctx.Err()); err != nil {
		return err
	}
	t, last := b.join()
	if last {
		go func() {
			_, t.err = b.g.arrive(t.ctx, w, attach.NoFold, nil)
			t.cancel(nil)
			close(t.done)
		}()
	}
	select {
	case <-t.done:
	case <-b.c.done:
		if _, alone := b.leave(t); alone {
			return b.c.err()
		}
		<-t.done // the call ends too
	case <-ctx.Done():
		if here, alone := b.leave(t); alone {
			w.give(fmt.Sprintf("at barrier %q for the rest of a team of %d, of which %d came", b.name, b.local, here))
			return w.gaveUp(w.began, ctx.Err())
		}
		w.give(b.c.attendant.explain(w))
		t.cancel(errTeammate)
		<-t.done
		if errors.Is(t.err, context.Canceled) {
			return w.gaveUp(w.began, ctx.Err())
		}
		return t.err
	}
	if errors.Is(t.err, context.Canceled) {
		return errTeammate
	}
	return t.err
}

// join adds the caller to the team that gathers, and reports whether that completes it.
func (b *Barrier) join() (t *team, last bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.team == nil {
		b.team = &team{done: make(chan struct{})}
		b.team.ctx, b.team.cancel = context.WithCancelCause(context.Background())
	}
	t = b.team
	t.here++
	if t.here == b.local {
		t.full = true
		b.team = nil
	}
	return t, t.full
}

// leave takes the caller out of its team, unless that is complete, and says how many were in it.
func (b *Barrier) leave(t *team) (here int, left bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	here = t.here
	if t.full {
		return here, false
	}
	t.here--
	return here, true
}
