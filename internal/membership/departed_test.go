package membership

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// withoutGossip is the membership of a node of a cluster of two, which gossips with nobody: the
// test tells it what memberlist would.
func withoutGossip(t *testing.T, self member, metrics prometheus.Registerer) gossip {
	t.Helper()
	count, err := newCounters(metrics, func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	return gossip{&Group{
		log: zap.NewNop(), self: self, count: count, formation: newFormation(self, 2, 3), wake: make(chan struct{}, 1),
		addresses: map[string]memberlist.Address{}, ends: ends{}, doubtful: map[string]*doubtful{},
	}}
}

// TestMadeUpDepartures: whoever says that nodes leave which there are not makes nobody remember
// them without end, and a node that is there is still heard.
func TestMadeUpDepartures(t *testing.T) {
	self, other := member{data: "10.0.0.1:1"}, member{data: "10.0.0.2:1"}
	g := withoutGossip(t, self, nil)
	g.formation.join(other)
	for i := range maxEnds + 1000 {
		g.NotifyMsg(appendMessage(nil, &message{kind: leaving, from: fmt.Sprint("made up ", i), reason: "none"}))
	}
	g.NotifyMsg(appendMessage(nil, &message{kind: leaving, from: other.name(), reason: "enough"}))
	if e := g.ends[other.name()]; len(g.ends) > maxEnds || e == nil || e.why != "enough" {
		t.Errorf("%d departures are remembered; that of a node which is there as %+v", len(g.ends), e)
	}
}

// TestLateGoodbye: a node whose end is gossiped before its own word of it comes has left all the
// same, with its reason, once. One that was started again since is no loss.
func TestLateGoodbye(t *testing.T) {
	self, other := member{id: Auto, data: "10.0.0.1:1"}, member{id: Auto, data: "10.0.0.2:1"}
	later := member{incarnation: 1, id: Auto, data: other.data}
	table := assign("c", []member{self, other})
	word := appendMessage(nil, &message{kind: leaving, from: other.name(), reason: "enough"})
	for _, test := range []struct {
		name     string
		returned bool
		want     []Loss
	}{
		{"it has ended", false, []Loss{{Node: table.Nodes[1], Left: true, Why: "enough"}}},
		{"it was started again", true, nil},
	} {
		metrics := prometheus.NewRegistry()
		g := withoutGossip(t, self, metrics)
		g.cfg.DeadAfter = MinDeadAfter
		g.formation.join(other)
		g.formation.table = table
		g.NotifyLeave(&memberlist.Node{Name: other.name()})
		if test.returned {
			g.formation.join(later)
		}
		for range 2 {
			g.NotifyMsg(word)
		}
		for _, d := range g.doubtful {
			d.since = d.since.Add(-objectionTime)
		}
		g.loseDoubtful()
		if !slices.Equal(g.lost, test.want) {
			t.Errorf("%s: the losses are %+v, want %+v", test.name, g.lost, test.want)
		}
		if left, died := sum(t, metrics, "departures_total"), sum(t, metrics, "deaths_total"); left != 1 || died != 0 {
			t.Errorf("%s: %v departures and %v deaths are counted", test.name, left, died)
		}
	}
}

// TestUnmet: a node of the table that this one has never met can be lost, too. It is taken for dead
// after a while, and for gone when it has said so, unless it is met. Whenever it was met, and
// however often its end is heard, that is counted once, and told once.
func TestUnmet(t *testing.T) {
	self, other := member{id: Auto, data: "10.0.0.1:1"}, member{id: Auto, data: "10.0.0.2:1"}
	later := member{incarnation: 1, id: Auto, data: other.data}
	table := assign("c", []member{self, other})
	meta := func(m member) *memberlist.Node {
		return &memberlist.Node{Name: m.name(), Meta: appendMember(nil, &m)}
	}
	word := appendMessage(nil, &message{kind: leaving, from: other.name(), reason: "enough"})
	met := func(g gossip) { g.NotifyJoin(meta(other)) }
	gone := func(g gossip) { g.NotifyLeave(meta(other)) }
	said := func(g gossip) { g.NotifyMsg(word) }
	dead, left := Loss{Node: table.Nodes[1], After: MinDeadAfter}, Loss{Node: table.Nodes[1], Left: true, Why: "enough"}
	for _, test := range []struct {
		name   string
		before func(g gossip) // the cluster is complete
		after  func(g gossip)
		late   func(g gossip) // it is certain
		want   []Loss
		dead   float64 // as it is counted, and so is a departure in want
	}{
		{"nothing is heard", nil, nil, nil, []Loss{dead}, 1},
		{"it is met before", met, nil, nil, nil, 0},
		{"it is met afterwards", nil, met, nil, nil, 0},
		{"its successor is met afterwards", nil, func(g gossip) { g.NotifyJoin(meta(later)) }, nil, nil, 1},
		{"it said goodbye before", said, nil, nil, []Loss{left}, 0},
		{"it says goodbye afterwards", nil, said, nil, []Loss{left}, 0},
		{"it says goodbye late", nil, nil, said, []Loss{dead}, 1},
		{"it was met and lost before", func(g gossip) { met(g); gone(g) }, nil, nil, []Loss{dead}, 1},
		{"it was met and said goodbye before", func(g gossip) { met(g); said(g) }, nil, nil, []Loss{left}, 0},
		{"it is met late and lost", nil, nil, func(g gossip) { met(g); gone(g) }, []Loss{dead}, 1},
		{"it is met late and says goodbye", nil, nil, func(g gossip) { met(g); said(g) }, []Loss{dead}, 1},
		{"it is met, and lost twice", met, gone, func(g gossip) { met(g); gone(g) }, []Loss{dead}, 1},
		{"this node comes back", func(g gossip) { g.self.returns = true }, nil, nil, nil, 0},
	} {
		metrics := prometheus.NewRegistry()
		core, logs := observer.New(zap.InfoLevel)
		g := withoutGossip(t, self, metrics)
		g.log = zap.New(core)
		g.cfg.DeadAfter = MinDeadAfter
		if test.before != nil {
			test.before(g)
		}
		g.formation.table = table
		g.doubtUnmet()
		if test.after != nil {
			test.after(g)
		}
		g.loseDoubtful()
		if slices.Contains(g.lost, dead) {
			t.Errorf("%s: it is lost at once", test.name)
		}
		for range 2 { // the second time late
			for _, d := range g.doubtful {
				d.since, d.silent = d.since.Add(-MinDeadAfter), questions
			}
			for range 2 {
				g.loseDoubtful()
			}
			if test.late != nil {
				test.late(g)
			}
		}
		if !slices.Equal(g.lost, test.want) {
			t.Errorf("%s: the losses are %+v, want %+v", test.name, g.lost, test.want)
		}
		said, died := sum(t, metrics, "departures_total"), sum(t, metrics, "deaths_total")
		if died != test.dead || slices.Contains(test.want, left) != (said == 1) || said > 1 {
			t.Errorf("%s: %v departures and %v deaths are counted, want %v deaths, and the losses %+v", test.name, said, died, test.dead, test.want)
		}
		if lines := logs.FilterMessage("node lost").Len(); lines != len(test.want) {
			t.Errorf("%s: %d lines tell the losses %+v", test.name, lines, test.want)
		}
	}
}

// TestDoubtfulAuthor: that the author of a plan is said to be dead ends nothing for a node that has
// accepted the plan, before the author had time to object.
func TestDoubtfulAuthor(t *testing.T) {
	author, self := member{id: Auto, data: "10.0.0.1:1"}, member{incarnation: 1, id: Auto, data: "10.0.0.2:1"}
	for _, objects := range []bool{true, false} {
		g := withoutGossip(t, self, nil)
		there := &memberlist.Node{Name: author.name(), Addr: net.IPv4(10, 0, 0, 1), Port: 1, Meta: appendMember(nil, &author)}
		g.NotifyJoin(there)
		table := assign("", []member{author, self})
		g.NotifyMsg(appendMessage(nil, &message{kind: propose, from: author.name(), digest: table.digest, nodes: table.Nodes}))
		g.turn(false)
		g.NotifyLeave(there)
		if g.loseDoubtful(); g.formation.bound == nil || g.formation.ended() {
			t.Fatalf("bound %+v, error %v", g.formation.bound, g.formation.err)
		}
		// what it says itself is a word that it is there
		d := g.doubtful[author.name()]
		d.since, d.silent = d.since.Add(-objectionTime), questions
		g.NotifyMsg(appendMessage(nil, &message{kind: propose, from: author.name(), digest: table.digest, nodes: table.Nodes}))
		if g.loseDoubtful(); g.formation.ended() || len(g.doubted()) != 1 {
			t.Fatalf("error %v, doubted %v", g.formation.err, g.doubted())
		}
		if objects {
			g.NotifyJoin(there)
		}
		for _, d := range g.doubtful {
			d.since, d.silent = d.since.Add(-objectionTime), questions
		}
		if g.loseDoubtful(); errors.Is(g.formation.err, errAuthorLost) == objects {
			t.Errorf("the author objects: %v; the formation has ended with %v", objects, g.formation.err)
		}
	}
}
