package protocol

import (
	"bytes"
	"slices"
	"testing"
)

// TestUnnamedParties: where a release does not name everybody, who waits while the home is lost is
// told that nobody knows who has passed. Others wait on at the next home.
func TestUnnamedParties(t *testing.T) {
	for name, test := range map[string]struct {
		parties  uint32
		treeFrom int
		named    bool
		leaves   bool
	}{
		"all are named":           {parties: mostNamed, treeFrom: mostNamed + 1, named: true},
		"too many":                {parties: mostNamed + 1, treeFrom: mostNamed + 2},
		"a tree before the loss":  {parties: 3, treeFrom: 3},
		"a tree while one leaves": {parties: 3, treeFrom: 3, leaves: true},
	} {
		f := newFew(t, Config{Nodes: 3, Pages: 8, HomeStripe: 1, TreeFrom: test.treeFrom})
		epoch := uint32(1)
		if test.leaves {
			f.enter(epoch, []NodeID{0, 1, 2}, []NodeID{0, 1})
			epoch++
		}
		e, barrier := f.engines[1], LockObject(0)
		e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: test.parties}, nil)
		e.Step(Event{Kind: EventEpoch, Epoch: epoch, Members: []NodeID{1}}, nil)
		if waits := e.barriers.waitsFor(barrier, 9); waits != test.named {
			t.Errorf("%s: it waits on: %v", name, waits)
		}
	}
}

// TestOpeningsAreBounded: a node remembers the last releases, and not much of them.
func TestOpeningsAreBounded(t *testing.T) {
	for _, result := range []int{1, MaxResult} {
		e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
		for i := range Ticket(3 * mostOpenings) {
			barrier := LockObject(3 * uint64(i))
			e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: i, Parties: 2}, nil)
			releases := appendBroadcast(nil, []addressee{{1, i}, {2, i}}, bytes.Repeat([]byte{byte(i)}, result))
			if _, rejected := said(e, BarrierOpen{Releases: releases}.To(1, barrier).SentBy(0)); rejected {
				t.Fatalf("release %d is rejected", i)
			}
		}
		bytes := 0
		for _, o := range e.barriers.openings {
			bytes += len(o.releases)
		}
		last := e.barriers.openings[len(e.barriers.openings)-1].releases
		if n := len(e.barriers.openings); n > mostOpenings || bytes > mostOpeningBytes || n < min(mostOpenings, mostOpeningBytes/(result+24)) || last[len(last)-1] != 3*mostOpenings-1 {
			t.Errorf("it remembers %d releases of %d bytes, the last with %d", n, bytes, last[len(last)-1])
		}
	}
}

// TestOpeningsThatAreOver: of a barrier a node remembers the last release, and an earlier one as
// long as somebody may not have heard of it; and nothing when a recovery is over.
func TestOpeningsThatAreOver(t *testing.T) {
	e, barrier := New(Config{Self: 1, Nodes: 4, Pages: 8, HomeStripe: 1}), LockObject(0)
	for i, others := range []NodeID{2, 2, 3, 3, 2} {
		ticket := Ticket(i)
		e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: ticket, Parties: 2}, nil)
		said(e, BarrierOpen{Releases: appendBroadcast(nil, []addressee{{1, ticket}, {others, ticket}}, nil)}.To(1, barrier).SentBy(0))
		if want := []int{1, 1, 2, 2, 2}[i]; len(e.barriers.openings) != want {
			t.Errorf("after %d releases it remembers %d, want %d", i+1, len(e.barriers.openings), want)
		}
	}
	e.barriers.resume()
	if n := len(e.barriers.openings); n > 0 {
		t.Errorf("%d releases are remembered after a recovery, when others may come as nodes that they name", n)
	}
}

// TestRepeatedOpening: a release of a home that is lost comes from whoever has heard it, to each
// node once, also to one that does not know of the loss. When the recovery is over nobody remembers
// it.
func TestRepeatedOpening(t *testing.T) {
	const barrier = ObjectID(lockBit) // whose home is node 0
	releases := appendBroadcast(nil, []addressee{{1, 9}, {2, 7}, {2, 8}, {0, 5}}, []byte("sum"))
	var engines []*Engine
	for self := range NodeID(3) {
		engines = append(engines, New(Config{Self: self, Nodes: 3, Pages: 8, HomeStripe: 1}))
	}
	one, two := engines[1], engines[2]
	one.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: 4}, nil)
	two.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 7, Parties: 4}, nil)
	two.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 8, Parties: 4}, nil)
	one.Step(Event{Kind: EventMessage, Object: barrier, Message: new(BarrierOpen{Releases: releases}.To(1, barrier).SentBy(0))}, nil)
	said := one.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	if len(said) != 2 || said[0].Message.Kind != KindBarrierOpen || said[0].Message.To != 2 || said[1].Message.Kind != KindEpochMarker {
		t.Fatalf("it says %v", said)
	}
	out := two.Step(Event{Kind: EventMessage, Object: barrier, Message: &said[0].Message}, nil)
	if len(out) != 2 || slices.ContainsFunc(out, func(f Effect) bool {
		return f.Kind != EffectComplete || f.Status != StatusOK || string(f.Payload) != "sum"
	}) {
		t.Errorf("the other one does %v", out)
	}
	// it has heard of it, too
	said = two.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{1, 2}}, nil)
	if len(said) != 2 || said[0].Message.Kind != KindBarrierOpen || said[0].Message.To != 1 {
		t.Errorf("the other one says %v", said)
	}
	one.barriers.resume()
	if n := len(one.barriers.openings); n > 0 {
		t.Errorf("%d releases are remembered when all have heard of them", n)
	}
}

// TestOpeningLies: what is no release, or none of a call that was sent, is rejected.
func TestOpeningLies(t *testing.T) {
	barrier := LockObject(1) // whose home is this node
	to := appendBroadcast(nil, []addressee{{1, 9}}, nil)
	for name, m := range map[string]Message{
		"one of the home itself":   BarrierOpen{Releases: to}.To(1, barrier).SentBy(2),
		"one that names nobody":    BarrierOpen{Releases: make([]byte, 4)}.To(1, LockObject(0)).SentBy(0),
		"one of a page":            BarrierOpen{Releases: to}.To(1, PageObject(0)).SentBy(0),
		"an answer to one arrival": BarrierOpen{Status: StatusMismatch, Releases: to}.To(1, LockObject(0)).SentBy(0),
	} {
		e := New(Config{Self: 1, Nodes: 3, Pages: 8, HomeStripe: 1})
		e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: 2}, nil)
		if _, rejected := said(e, m); !rejected || !e.barriers.waitsFor(barrier, 9) {
			t.Errorf("%s: rejected %v", name, rejected)
		}
	}
}
