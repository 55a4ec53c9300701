package dsm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"dsmd/internal/attach"
)

// losing is the part of a daemon that tells programs which ranks are lost, as the node does:
// arrivals of those who know of less are in vain.
type losing struct {
	mu   sync.Mutex
	lost []uint32 // guarded by mu
}

func (l *losing) lose(ranks ...uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, ranks...)
}

func (l *losing) answer(call attach.Call) (attach.Reply, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case call.Op == attach.OpLostRanks:
		return attach.Reply{Ticket: call.Ticket, Payload: attach.AppendRanks(nil, l.lost)}, true
	case call.Op == attach.OpArrive && call.Count < uint64(len(l.lost)):
		return attach.Reply{Ticket: call.Ticket, Status: attach.StatusNodeLost, Payload: []byte("node 1 (host:7000)")}, true
	}
	return attach.Reply{}, false
}

// together has each of several programs do the same, at the same time, and returns their errors.
func together(all []*Cluster, do func(*Cluster) error) []error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = do(c) })
	}
	wg.Wait()
	return errs
}

// TestSurvivors: where all ranks met, nobody can go on when some are lost; those that are left can,
// among themselves, until another is lost.
func TestSurvivors(t *testing.T) {
	var l losing
	f := newFake(t, 4, func(f *fake) { f.answer = l.answer })
	all := f.joinAll()
	ctx := within(t)
	whole, err := all[0].Survivors(ctx)
	if err != nil || !slices.Equal(whole.Ranks(), []int{0, 1, 2, 3}) || whole.Size() != 4 || whole.Index() != 0 {
		t.Fatalf("before anything is lost the survivors are %v, %v", whole.Ranks(), err)
	}
	if err := errors.Join(together(all, func(c *Cluster) error { return c.Barrier(ctx) })...); err != nil {
		t.Fatal(err)
	}
	l.lose(1)
	left := []*Cluster{all[0], all[2], all[3]}
	for name, wait := range map[string]func(*Cluster) error{
		"Barrier":          func(c *Cluster) error { return c.Barrier(ctx) },
		"Reduce":           func(c *Cluster) error { _, err := Reduce(ctx, c, "sum", 1, Sum); return err },
		"Wait":             func(c *Cluster) error { return NewBarrier(c, "step", Parties(3)).Wait(ctx) },
		"Wait in a team":   func(c *Cluster) error { return NewBarrier(c, "step", Parties(4), Team(1)).Wait(ctx) },
		"Wait among whole": func(*Cluster) error { return NewBarrier(whole, "step", Parties(3)).Wait(ctx) },
	} {
		for _, err := range together(left, wait) {
			if !errors.Is(err, ErrNodeLost) || errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "node 1 (host:7000)") {
				t.Errorf("%s after a loss: %v, want ErrNodeLost and who it was", name, err)
			}
		}
	}
	for _, err := range together(left, func(c *Cluster) error { return goOn(ctx, c, 3) }) {
		if err != nil {
			t.Error(err)
		}
	}
	if lost, err := all[0].Lost(ctx); err != nil || !slices.Equal(lost, []int{1}) {
		t.Errorf("lost are %v, %v", lost, err)
	}
	among, err := all[3].Survivors(ctx)
	if err != nil || !slices.Equal(among.Ranks(), []int{0, 2, 3}) || among.Index() != 2 {
		t.Errorf("the survivors are %v, %v", among.Ranks(), err)
	}
	if c, index := Member(among); c != all[3] || index != 2 {
		t.Errorf("rank 3 is member %d of them", index)
	}
	if c, index := Member(all[3]); c != all[3] || index != 3 {
		t.Errorf("rank 3 is member %d of all", index)
	}
	l.lose(2)
	if err := among.Barrier(ctx); !errors.Is(err, ErrNodeLost) {
		t.Errorf("a barrier of survivors of whom another one is lost: %v, want ErrNodeLost", err)
	}
	for _, err := range together([]*Cluster{all[0], all[3]}, func(c *Cluster) error { return goOn(ctx, c, 2) }) {
		if err != nil {
			t.Error(err)
		}
	}
}

// goOn does with those that are left what all ranks did.
func goOn(ctx context.Context, c *Cluster, want int) error {
	s, err := c.Survivors(ctx)
	if err != nil {
		return err
	}
	if err := s.Barrier(ctx); err != nil {
		return err
	}
	sum, err := Reduce(ctx, s, "sum", 1, Sum)
	if err == nil && sum != want {
		err = errors.New("the reduction was not among those that are left")
	}
	if err != nil {
		return err
	}
	var team sync.WaitGroup
	b := NewBarrier(s, "step", Team(2))
	errs := make([]error, 2)
	for i := range errs {
		team.Go(func() { errs[i] = b.Wait(ctx) })
	}
	team.Wait()
	return errors.Join(append(errs, NewBarrier(s, "/everywhere", Parties(want)).Wait(ctx))...)
}

// TestNodeLost: what else can't be done because a node is lost says so.
func TestNodeLost(t *testing.T) {
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			if call.Op == attach.OpStats {
				return attach.Reply{}, false
			}
			return attach.Reply{Ticket: call.Ticket, Status: attach.StatusNodeLost, Payload: []byte("node 3")}, true
		}
	})
	c := f.join()
	ctx := within(t)
	_, alloc := Alloc[int](within(t), c, "a", 1)
	_, lost := c.Lost(ctx)
	_, survivors := c.Survivors(ctx)
	for what, err := range map[string]error{
		"Lock": NewMutex(c, "m").Lock(ctx), "Alloc": alloc, "Discard": Discard(ctx, c, "a"), "Lost": lost, "Survivors": survivors,
	} {
		if !errors.Is(err, ErrNodeLost) || !strings.Contains(err.Error(), "node 3") {
			t.Errorf("%s: %v, want ErrNodeLost and who it was", what, err)
		}
	}
}

// TestLockWhoseNodeIsLost: who repairs has the lock, and knows that it can't know who had it.
func TestLockWhoseNodeIsLost(t *testing.T) {
	f := newFake(t, 1, func(f *fake) {
		f.answer = func(call attach.Call) (attach.Reply, bool) {
			status := attach.StatusUnrepaired
			if call.Op == attach.OpRepair {
				status = attach.StatusOwnerDied
			}
			return attach.Reply{Ticket: call.Ticket, Status: status, Rank: 1<<31 | 2}, call.Op.TakesLock()
		}
	})
	m := NewMutex(f.join(), "m")
	var died *OwnerDiedError
	if err := m.LockRepair(within(t), func(d *OwnerDiedError) error { died = d; return nil }); err != nil {
		t.Fatal(err)
	}
	told := died
	if err := m.Unlock(); err != nil {
		t.Error(err)
	}
	err := m.Lock(within(t))
	if !errors.As(err, &died) || *died != *told || died.Node != 2 || died.Rank != -1 || !errors.Is(err, ErrOwnerDied) || !strings.Contains(err.Error(), "node 2") {
		t.Fatalf("Lock: %v, want an OwnerDiedError of node 2", err)
	}
	wantError(t, m.Unlock(), ErrNotHeld)
}

// TestDaemonThatLosesTheImpossible: a program does not divide work among ranks that can't be.
func TestDaemonThatLosesTheImpossible(t *testing.T) {
	for name, payload := range map[string][]byte{
		"a rank that is none": attach.AppendRanks(nil, []uint32{2}), "this rank": attach.AppendRanks(nil, []uint32{0}), "rubbish": {1, 0},
	} {
		f := newFake(t, 2, func(f *fake) {
			f.socket += strings.ReplaceAll(name, " ", "-")
			f.answer = func(call attach.Call) (attach.Reply, bool) {
				return attach.Reply{Ticket: call.Ticket, Payload: payload}, call.Op == attach.OpLostRanks
			}
		})
		c := f.join(WithRank(0))
		if s, err := c.Survivors(within(t)); err == nil {
			t.Errorf("%s is lost, and the survivors are %v", name, s.Ranks())
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
