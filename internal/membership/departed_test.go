package membership

import (
	"fmt"
	"slices"
	"testing"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// TestMadeUpDepartures: whoever says that nodes leave which there are not makes nobody remember
// them without end, and a node that is there is still heard.
func TestMadeUpDepartures(t *testing.T) {
	count, err := newCounters(nil, func() float64 { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	self, other := member{data: "10.0.0.1:1"}, member{data: "10.0.0.2:1"}
	g := gossip{&Group{log: zap.NewNop(), self: self, count: count, formation: newFormation(self, 2, 3), wake: make(chan struct{}, 1),
		departed: map[string]string{}, doubtful: map[string]doubtful{}}}
	g.formation.join(other)
	for i := range maxDeparted + 1000 {
		g.NotifyMsg(appendMessage(nil, &message{kind: leaving, from: fmt.Sprint("made up ", i), reason: "none"}))
	}
	g.NotifyMsg(appendMessage(nil, &message{kind: leaving, from: other.name(), reason: "enough"}))
	if why := g.departed[other.name()]; len(g.departed) > maxDeparted || why != "enough" {
		t.Errorf("%d departures are remembered; that of a node which is there with %q", len(g.departed), why)
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
		count, err := newCounters(metrics, func() float64 { return 0 })
		if err != nil {
			t.Fatal(err)
		}
		g := gossip{&Group{log: zap.NewNop(), self: self, count: count, formation: newFormation(self, 2, 3), wake: make(chan struct{}, 1),
			addresses: map[string]memberlist.Address{}, departed: map[string]string{}, doubtful: map[string]doubtful{}}}
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
		for name, d := range g.doubtful {
			d.since = d.since.Add(-objectionTime)
			g.doubtful[name] = d
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
// after a while, and for gone when it has said so, unless it is met.
func TestUnmet(t *testing.T) {
	self, other := member{id: Auto, data: "10.0.0.1:1"}, member{id: Auto, data: "10.0.0.2:1"}
	later := member{incarnation: 1, id: Auto, data: other.data}
	table := assign("c", []member{self, other})
	meta := func(m member) *memberlist.Node {
		return &memberlist.Node{Name: m.name(), Meta: appendMember(nil, &m)}
	}
	word := appendMessage(nil, &message{kind: leaving, from: other.name(), reason: "enough"})
	dead, left := Loss{Node: table.Nodes[1], After: MinDeadAfter}, Loss{Node: table.Nodes[1], Left: true, Why: "enough"}
	for _, test := range []struct {
		name          string
		before, after func(g gossip) // the cluster is complete
		want          []Loss
	}{
		{"nothing is heard", nil, nil, []Loss{dead}},
		{"it is met before", func(g gossip) { g.NotifyJoin(meta(other)) }, nil, nil},
		{"it is met afterwards", nil, func(g gossip) { g.NotifyJoin(meta(other)) }, nil},
		{"its successor is met afterwards", nil, func(g gossip) { g.NotifyJoin(meta(later)) }, nil},
		{"it said goodbye before", func(g gossip) { g.NotifyMsg(word) }, nil, []Loss{left}},
		{"it says goodbye afterwards", nil, func(g gossip) { g.NotifyMsg(word) }, []Loss{left}},
		{"it was met and lost before", func(g gossip) { g.NotifyJoin(meta(other)); g.NotifyLeave(meta(other)) }, nil, []Loss{dead}},
		{"this node comes back", func(g gossip) { g.self.returns = true }, nil, nil},
	} {
		count, err := newCounters(nil, func() float64 { return 0 })
		if err != nil {
			t.Fatal(err)
		}
		g := gossip{&Group{log: zap.NewNop(), self: self, count: count, formation: newFormation(self, 2, 3), wake: make(chan struct{}, 1),
			addresses: map[string]memberlist.Address{}, departed: map[string]string{}, doubtful: map[string]doubtful{}}}
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
		for name, d := range g.doubtful {
			d.since = d.since.Add(-MinDeadAfter)
			g.doubtful[name] = d
		}
		for range 2 {
			g.loseDoubtful()
		}
		if !slices.Equal(g.lost, test.want) {
			t.Errorf("%s: the losses are %+v, want %+v", test.name, g.lost, test.want)
		}
	}
}
