package agreement

import (
	"errors"
	"slices"
	"testing"
)

// kinds lists what is put out.
func kinds(out []Output) (list []OutputKind) {
	for _, o := range out {
		list = append(list, o.Kind)
	}
	return list
}

// TestTwoNodes: of two nodes the one with the lower number goes on at once, and the other one stops.
func TestTwoNodes(t *testing.T) {
	low, high := New(3, []NodeID{3, 8}), New(8, []NodeID{3, 8})
	out := low.Suspect(8, nil)
	if last := out[len(out)-1]; last.Kind != View || last.Epoch != 1 || !slices.Equal(last.Members, []NodeID{3}) {
		t.Errorf("node 3 is left with %+v", last)
	}
	if got := kinds(high.Suspect(3, nil)); !slices.Equal(got, []OutputKind{NoQuorum}) {
		t.Errorf("node 8 is left with %v", got)
	}
	if !low.Idle() || !high.Idle() || low.Tick(nil) != nil || high.Tick(nil) != nil {
		t.Error("there is nothing to wait for")
	}
	if low.Suspect(8, nil) != nil || low.Suspect(3, nil) != nil || !high.Suspects(3) || high.Suspects(8) {
		t.Error("a node is suspected twice, or suspects itself")
	}
}

// TestLeftOutIsTold: whoever learns of a decision passes it on also to those that it leaves out, whom the node that has decided it may have lost.
func TestLeftOutIsTold(t *testing.T) {
	all := []NodeID{0, 1, 2}
	learner, out := New(0, all), New(2, all)
	m := message{kind: decided, epoch: 1, view: view{members: []NodeID{0, 1}}}
	told := false
	said, err := learner.Message(1, appendMessage(nil, &m), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range said {
		if o.Kind != Send || o.To != 2 {
			continue
		}
		heard, err := out.Message(0, o.Message, nil)
		if err != nil {
			t.Fatal(err)
		}
		told = slices.Contains(kinds(heard), Excluded)
	}
	if !told {
		t.Errorf("node 0 has learnt of a view without node 2, which is not told: %+v", said)
	}
}

// run carries messages between nodes until none is left, and returns all other outputs of each.
func run(t *testing.T, nodes map[NodeID]*State, from NodeID, out []Output) map[NodeID][]Output {
	t.Helper()
	said := map[NodeID][]Output{}
	type letter struct {
		from NodeID
		o    Output
	}
	var mail []letter
	collect := func(id NodeID, out []Output) {
		for _, o := range out {
			if o.Kind == Send {
				mail = append(mail, letter{id, o})
			} else {
				said[id] = append(said[id], o)
			}
		}
	}
	for collect(from, out); len(mail) > 0; mail = mail[1:] {
		to := mail[0].o.To
		if nodes[to] == nil {
			continue
		}
		out, err := nodes[to].Message(mail[0].from, mail[0].o.Message, nil)
		if err != nil {
			t.Fatal(err)
		}
		collect(to, out)
	}
	return said
}

// TestWronglySuspected: a node that is suspected by one only, and by mistake, is told that it is out, and everybody else is told too.
func TestWronglySuspected(t *testing.T) {
	nodes := map[NodeID]*State{}
	for id := range NodeID(3) {
		nodes[id] = New(id, []NodeID{0, 1, 2})
	}
	said := run(t, nodes, 0, nodes[0].Suspect(2, nil))
	want := map[NodeID]OutputKind{0: View, 1: View, 2: Excluded}
	for id, kind := range want {
		if got := said[id]; len(got) != 1 || got[0].Kind != kind || got[0].Epoch != 1 || !slices.Equal(got[0].Members, []NodeID{0, 1}) {
			t.Errorf("node %d is told %+v", id, got)
		}
	}
	for _, b := range [][]byte{appendMessage(nil, &message{kind: query, epoch: 1}), appendMessage(nil, &message{kind: query, epoch: 2})} {
		if out, err := nodes[2].Message(0, b, nil); err != nil || out != nil {
			t.Errorf("the node that is out says %v, %v", out, err)
		}
	}
	if nodes[2].Suspect(1, nil) != nil || nodes[2].Resumed(0, nil) != nil || !nodes[2].Idle() {
		t.Error("the node that is out is not")
	}
}

// TestWhoAsksLateIsTold: a node that knows only the first view is told of the last one, in which it may be or not.
func TestWhoAsksLateIsTold(t *testing.T) {
	all := []NodeID{0, 1, 2, 3, 4}
	nodes := map[NodeID]*State{}
	for _, id := range all[:3] {
		nodes[id] = New(id, all)
	}
	run(t, nodes, 0, nodes[0].Suspect(4, nil))
	for _, id := range all[:3] {
		nodes[id].Resumed(1, nil)
	}
	run(t, nodes, 0, nodes[0].Suspect(3, nil))
	if nodes[1].Epoch() != 2 {
		t.Fatalf("node 1 is in epoch %d", nodes[1].Epoch())
	}
	nodes[3], nodes[4] = New(3, all), New(4, all)
	for _, id := range []NodeID{3, 4} {
		out := nodes[id].Suspect(0, nil)
		for len(out) == 0 {
			out = nodes[id].Tick(out)
		}
		said := run(t, nodes, id, out)[id]
		if len(said) != 1 || said[0].Kind != Excluded || said[0].Epoch != 2 {
			t.Errorf("node %d is told %+v", id, said)
		}
	}
	// A node that is in, and has heard nothing of the views between, asks when somebody speaks of the next.
	nodes[2] = New(2, all)
	out, err := nodes[2].Message(0, appendMessage(nil, &message{kind: prepare, epoch: 3, ballot: makeBallot(1, 0)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if said := run(t, nodes, 2, out)[2]; len(said) != 1 || said[0].Kind != View || said[0].Epoch != 2 {
		t.Errorf("node 2 is told %+v", said)
	}
}

// TestLossesDuringRecovery: a second loss before everybody has entered the view after the first counts together with that.
func TestLossesDuringRecovery(t *testing.T) {
	for name, resumed := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			nodes := map[NodeID]*State{0: New(0, []NodeID{0, 1, 2}), 1: New(1, []NodeID{0, 1, 2})}
			run(t, nodes, 0, nodes[0].Suspect(2, nil))
			if resumed {
				nodes[0].Resumed(1, nil)
			}
			out := nodes[0].Suspect(1, nil)
			if got := out[len(out)-1].Kind; (got == View) != resumed || (got == NoQuorum) == resumed {
				t.Errorf("one of three is left with output %d", got)
			}
			if out := nodes[0].Resumed(1, nil); !resumed && (len(out) == 0 || out[0].Kind != Quorum || out[len(out)-1].Kind != View) {
				t.Errorf("once all have entered the view, what comes is %+v", out)
			}
		})
	}
}

// TestNonsense: what no node that keeps to the rules says is an error, and changes nothing.
func TestNonsense(t *testing.T) {
	b := makeBallot(1, 1)
	for name, c := range map[string]struct {
		from NodeID
		m    message
	}{
		"its own words":       {0, message{kind: query, epoch: 2}},
		"another decision":    {1, message{kind: decided, epoch: 1, view: view{members: []NodeID{0, 1, 2}}}},
		"members that left":   {1, message{kind: accept, epoch: 2, ballot: b, view: view{members: []NodeID{0, 1, 4}}}},
		"the same members":    {1, message{kind: accept, epoch: 2, ballot: b, view: view{members: []NodeID{0, 1, 2, 3}}}},
		"too few members":     {1, message{kind: accept, epoch: 2, ballot: b, view: view{members: []NodeID{2, 3}}}},
		"a stranger's ballot": {4, message{kind: prepare, epoch: 2, ballot: b}},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(0, []NodeID{0, 1, 2, 3, 4})
			if _, err := s.Message(1, appendMessage(nil, &message{kind: decided, epoch: 1, view: view{members: []NodeID{0, 1, 2, 3}}}), nil); err != nil {
				t.Fatal(err)
			}
			out, err := s.Message(c.from, appendMessage(nil, &c.m), nil)
			if !errors.Is(err, ErrNonsense) || out != nil || s.Epoch() != 1 || s.next.promised != 0 {
				t.Errorf("%+v, %v", out, err)
			}
		})
	}
}
