package protocol

import (
	"slices"
	"testing"
)

// lockOf is a lock whose home is, among all nodes, the given one.
func (e *Engine) lockOf(home NodeID) ObjectID {
	for h := uint64(0); ; h++ {
		if id := LockObject(h); e.home(id) == home {
			return id
		}
	}
}

// TestLostLockTells: of a lock that was lost on its way, or with its holder, whoever takes it is
// told, if it may have been held for writing: by who had it alone, or by who was to get it so; or
// if it was marked already.
func TestLostLockTells(t *testing.T) {
	for _, c := range []struct {
		alone    bool
		marked   bool // who had it had the mark of a dead owner
		granting Access
		tells    bool
	}{{false, false, Read, false}, {false, true, Read, true}, {false, false, Write, true}, {true, false, Read, true}, {true, false, Write, true}} {
		way := func() (*Engine, *object) {
			e := New(Config{Nodes: 4, Pages: 8, HomeStripe: 1})
			e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}, nil)
			o := e.objects.get(e.lockOf(0))
			p := e.pendingOf(o)
			o.owner, p.mode, p.requester, p.granting = 2, homeBusyExclusive, 3, c.granting
			o.sharers.add(2, &e.cfg)
			o.set(exclusiveFlag, c.alone)
			o.set(markedFlag, c.marked)
			return e, o
		}
		e, o := way()
		e.dir.lose(o)
		died := uint32(0)
		if l := e.locks.peekLock(o.id); l != nil {
			died = l.died
		}
		if (died == LostRank(3)+1) != c.tells || !c.tells && died != 0 || o.owner != NoNode {
			t.Errorf("%+v: its mark is %d, its owner %d", c, died, o.owner)
		}
		// The same, told to a new home.
		e, o = way()
		parcel := parcel{to: 1}
		e.dir.reportEntry(&parcel, o)
		found := 0
		if err := eachEntry(parcel.pieces[0], func(x *entry) {
			if found++; x.owner != 3 || x.written != c.tells {
				t.Errorf("%+v: a new home is told %+v", c, x)
			}
		}); err != nil || found != 1 {
			t.Errorf("%d entries, %v", found, err)
		}
	}
	// Who is to get it and is a member tells by itself what it has.
	e := New(Config{Nodes: 4, Pages: 8, HomeStripe: 1})
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}, nil)
	o := e.objects.get(e.lockOf(0))
	p := e.pendingOf(o)
	o.owner, p.mode, p.requester, p.granting = 2, homeBusyExclusive, 1, Write
	o.sharers.add(2, &e.cfg)
	parcel := parcel{to: 1}
	e.dir.reportEntry(&parcel, o)
	if err := eachEntry(parcel.pieces[0], func(x *entry) {
		if x.owner != 2 || x.written {
			t.Errorf("a new home is told %+v", x)
		}
	}); err != nil {
		t.Error(err)
	}
}

// TestLostHomeTells: of what was known to a home alone that is lost, the next home says that it may
// be lost.
func TestLostHomeTells(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	lock, other, page := e.lockOf(0), e.lockOf(2), PageObject(3)
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	views := [][]NodeID{{0, 1, 2}}
	e.dir.suspects = []suspect{{run{}, views, []NodeID{1, 2}, 1}, {run{2, 4}, views, []NodeID{1, 2}, 1}}
	for _, c := range []struct {
		id   ObjectID
		lost bool
	}{{page, true}, {lock, true}, {PageObject(6), false}, {other, false}} {
		if node, lost := e.dir.lostHome(c.id); lost != c.lost || lost && node != 0 {
			t.Errorf("%v was lost with its home: %v, node %d; want %v", c.id, lost, node, c.lost)
		}
	}
	e.dir.lookForLoss(e.objects.get(lock))
	if l := e.locks.peekLock(lock); l == nil || l.died != LostRank(0)+1 {
		t.Errorf("the mark of the lock is %+v", l)
	}
	o := e.objects.get(page)
	if e.dir.lookForLoss(o); !o.lost() || o.owner != 0 {
		t.Errorf("the page is lost: %v, with node %d", o.lost(), o.owner)
	}
}

// TestOnlyLocksHaveMarks: what is reported of a page makes no lock of it, and what is reported of a
// lock without a mark makes none either.
func TestOnlyLocksHaveMarks(t *testing.T) {
	for _, locked := range []bool{false, true} {
		e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
		e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
		x := entry{tag: tagEntry, owner: 0, lost: true}
		x.id = e.own()
		if locked {
			x.id = e.lockOf(1)
		}
		if e.dir.applyEntry(&x); len(e.locks.list) > 0 {
			t.Errorf("%v is a lock with a mark: %+v", x.id, e.locks.list[0])
		}
	}
}

// TestNewcomersKnowWhoCame: in which epoch each member came all members know alike, those that come
// later among them.
func TestNewcomersKnowWhoCame(t *testing.T) {
	cfg := Config{Nodes: 4, Pages: 8, HomeStripe: 1}
	f := newFew(t, cfg)
	epoch := uint32(0)
	for _, n := range []NodeID{1, 3} {
		f.comeBack(cfg, n, epoch)
		epoch += 2
	}
	for n, e := range f.engines {
		if want := []uint32{0, 2, 0, 4}; !slices.Equal(e.view.came, want) {
			t.Errorf("node %d knows that the members came in epochs %v, want %v", n, e.view.came, want)
		}
	}
}

// TestSuspectsAreBounded: where the same nodes are lost and come back again and again, no more is
// suspected than after each was lost once, but of as many losses as there were.
func TestSuspectsAreBounded(t *testing.T) {
	cfg := Config{Nodes: 4, Pages: 8, HomeStripe: 1}
	f := newFew(t, cfg)
	bind := NameCall{Op: Bind, Client: 1, Pages: 2, Name: "a"}
	f.step(0, Event{Kind: EventName, Client: 1, Ticket: 1, Payload: bind.Append(nil)})
	f.settle()
	epoch, once := uint32(0), 0
	for round := range 4 {
		for _, n := range []NodeID{1, 3} {
			f.comeBack(cfg, n, epoch)
			epoch += 2
		}
		suspects := f.engines[0].dir.suspects
		if round == 0 {
			once = len(suspects)
		}
		if once != 4 || len(suspects) != once { // all locks, and the memory, of two nodes
			t.Errorf("%d suspects after %d losses, and %d after two", len(suspects), epoch/2, once)
		}
		for i, s := range suspects {
			if want := 2*round + 1 + i/2; s.lost != want {
				t.Errorf("suspect %d is of %d losses, want %d", i, s.lost, want)
			}
		}
	}
}

// TestHandingOverEndsInARecovery: an engine that goes on with it is unsound.
func TestHandingOverEndsInARecovery(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
	e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	if err := e.Check(); err != nil {
		t.Fatal(err)
	}
	e.evac.on = true
	if e.Check() == nil {
		t.Error("it hands over")
	}
	e.evac.on, e.backups.asked = false, []copying{{PageObject(1), 2}}
	if e.Check() == nil {
		t.Error("it is asked for backups")
	}
}

// TestHomeKnowsOfMark: a home learns that a lock is marked where it is, by Done and by the reports
// of a recovery, and that it is no longer.
func TestHomeKnowsOfMark(t *testing.T) {
	e := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1})
	id := e.lockOf(0)
	o := e.objects.get(id)
	e.Step(Event{Kind: EventMessage, Object: id, Message: new(Request{Access: Write}.To(0, id).SentBy(1))}, nil)
	for i, died := range []uint32{14, 14, 0} {
		from, to := NodeID(1+i%2), NodeID(2-i%2)
		e.Step(Event{Kind: EventMessage, Object: id, Message: new(Request{Access: Write}.To(0, id).SentBy(to))}, nil)
		e.Step(Event{Kind: EventMessage, Object: id, Message: new(Done{Write, died}.To(0, id).SentBy(to))}, nil)
		if o.owner != to || o.is(markedFlag) != (died != 0) {
			t.Fatalf("node %d has got the lock of node %d with mark %d: owner %d, marked: %t", to, from, died, o.owner, o.is(markedFlag))
		}
	}
	for _, died := range []uint32{0, 14} {
		holder := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
		holder.objects.get(id).setAccess(Read)
		if died != 0 {
			holder.locks.getLock(id).died = died
		}
		home := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1})
		holder.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 1}}, nil)
		for _, f := range holder.Step(Event{Kind: EventMessage, Message: new(EpochMarker{Epoch: 1}.To(0).SentBy(0))}, nil) {
			if f.Kind != EffectSend || f.Message.To != 0 || f.Message.Kind != KindReportHeld {
				continue
			}
			for _, tag := range []byte{tagObject, tagEntry} {
				if err := eachEntry(f.Message.Payload, func(x *entry) {
					switch {
					case x.tag != tag:
					case tag == tagObject:
						home.dir.applyHolder(1, x)
					default:
						home.dir.applyEntry(x)
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := home.objects.get(id); got.owner != 1 || got.is(markedFlag) != (died != 0) {
			t.Errorf("a holder has reported mark %d: owner %d, marked: %t", died, got.owner, got.is(markedFlag))
		}
	}
}

// TestBeginsAnew: a host that has something a lost page can begin with gets the page as one that
// nobody has touched. If the memory is being freed meanwhile, who waits is only woken.
func TestBeginsAnew(t *testing.T) {
	const page = ObjectID(3)
	for _, freed := range []bool{false, true} {
		e := New(Config{Nodes: 4, Pages: 8, HomeStripe: 4})
		e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0}}, nil)
		e.objects.get(page).owner = 2
		step := func(ev Event, want Effect) {
			t.Helper()
			ev.Object = page
			out := e.Step(ev, nil)
			if len(out) != 1 || out[0].Kind != want.Kind || out[0].Access != want.Access || out[0].Source != want.Source || e.Check() != nil {
				t.Fatalf("freed: %t: %+v, %v; want %+v", freed, out, e.Check(), want)
			}
		}
		step(Event{Kind: EventFault, Client: 1, Thread: 1, Access: Read}, Effect{Kind: EffectLost, Access: Read})
		if freed {
			e.reclaim.freed = []freedExtent{{first: 0, count: 8, phase: 1}}
			step(Event{Kind: EventCompleted, Effect: EffectLost, Access: Read, Anew: true}, Effect{Kind: EffectMap})
			continue
		}
		step(Event{Kind: EventCompleted, Effect: EffectLost, Access: Read, Anew: true}, Effect{Kind: EffectInstall, Access: Write, Source: SourceFirst})
		if out := e.Step(Event{Kind: EventCompleted, Object: page, Effect: EffectInstall}, nil); len(out) > 0 || e.objects.get(page).owner != 0 {
			t.Errorf("%+v; its owner is %d", out, e.objects.get(page).owner)
		}
	}
	e := New(Config{Nodes: 2, Pages: 8, HomeStripe: 1})
	id := e.lockOf(0)
	out := e.Step(Event{Kind: EventMessage, Object: id, Message: new(Request{Access: Write, Anew: true}.To(0, id).SentBy(1))}, nil)
	if len(out) != 1 || out[0].Kind != EffectReject {
		t.Errorf("a lock begins anew: %+v", out)
	}
}
