package membership

import (
	"fmt"
	"testing"

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
