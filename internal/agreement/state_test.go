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

// TestTwoNodes: of two nodes the one with the lower number goes on at once, and the other one
// stops.
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

// TestLeftOutIsTold: whoever learns of a decision passes it on also to those that it leaves out,
// whom the node that has decided it may have lost.
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

// TestWronglySuspected: a node that is suspected by one only, and by mistake, is told that it is
// out, and everybody else is told too.
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

// TestWhoAsksLateIsTold: a node that knows only the first view is told of the last one, in which it
// may be or not.
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
	// A node that is in, and has heard nothing of the views between, asks when somebody speaks of
	// the next.
	nodes[2] = New(2, all)
	out, err := nodes[2].Message(0, appendMessage(nil, &message{kind: prepare, epoch: 3, ballot: makeBallot(1, 0)}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if said := run(t, nodes, 2, out)[2]; len(said) != 1 || said[0].Kind != View || said[0].Epoch != 2 {
		t.Errorf("node 2 is told %+v", said)
	}
}

// TestLossesDuringRecovery: a second loss before everybody has entered the view after the first
// counts together with that.
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
	if out, err := New(0, []NodeID{0, 1}).Message(1, []byte{Mark}, nil); !errors.Is(err, ErrMalformed) || out != nil {
		t.Errorf("what is no message: %+v, %v", out, err)
	}
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
		"another's ballot":    {1, message{kind: prepare, epoch: 2, ballot: makeBallot(1, 2)}},
		"another's promise":   {1, message{kind: promise, epoch: 2, ballot: makeBallot(1, 2)}},
		"the last ballot":     {1, message{kind: prepare, epoch: 2, ballot: makeBallot(1<<48-1, 1)}},
		"a refusal for ever":  {1, message{kind: refuse, epoch: 2, ballot: makeBallot(1<<48-1, 1)}},
		"the last epoch":      {1, message{kind: decided, epoch: 1<<32 - 1, view: view{members: []NodeID{0, 1, 2, 3}}}},
		"too few who decide":  {1, message{kind: decided, epoch: 2, view: view{members: []NodeID{1, 3}}}},
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

// TestStrangers: who is not in the view may ask about the next, and has no part in deciding it.
func TestStrangers(t *testing.T) {
	for kind, sensible := range map[kind]bool{query: true, promise: false, refuse: false, accepted: false} {
		m := message{kind: kind, epoch: 1}
		if kind != query {
			m.ballot = makeBallot(1, 0)
		}
		_, err := New(0, []NodeID{0, 1, 2}).Message(4, appendMessage(nil, &m), nil)
		if (err == nil) != sensible || !sensible && !errors.Is(err, ErrNonsense) {
			t.Errorf("%v of a stranger: %v", kind, err)
		}
	}
}

// TestRetire: the view in which a member leaves is asked for at once, and who is no member is not
// remembered as one that is to leave.
func TestRetire(t *testing.T) {
	all := []NodeID{0, 1, 2}
	nodes := map[NodeID]*State{0: New(0, all), 1: New(1, all), 2: New(2, all)}
	if out := nodes[0].Retire(7, nil); out != nil {
		t.Errorf("a stranger leaves: %+v", out)
	}
	run(t, nodes, 0, nodes[0].Retire(2, nil))
	for id, n := range nodes {
		if got := n.Leaving(); !slices.Equal(got, []NodeID{2}) {
			t.Errorf("node %d knows of %v that they leave", id, got)
		}
		n.Resumed(1, nil)
	}
	nodes[7] = NewOutside(7, 1)
	if out := nodes[7].Retire(7, nil); out != nil {
		t.Errorf("a node that is not in leaves: %+v", out)
	}
	run(t, nodes, 0, nodes[0].Admit(7, 1, nil))
	for _, id := range []NodeID{0, 1, 2, 7} {
		run(t, nodes, id, nodes[id].Resumed(2, nil))
	}
	for id, n := range nodes {
		if n.Epoch() != 2 || !slices.Equal(n.Leaving(), []NodeID{2}) {
			t.Errorf("node %d is in epoch %d, with %v leaving", id, n.Epoch(), n.Leaving())
		}
	}
}

// TestNewcomerDecidesNothing: who has come does not know under which views others may still work,
// so it cannot go on without one of them until all have entered the view.
func TestNewcomerDecidesNothing(t *testing.T) {
	come := func() *State {
		s := NewOutside(0, 1)
		m := message{kind: decided, epoch: 3, view: view{members: []NodeID{0, 1, 2}, processes: []process{{0, 1}}}}
		if _, err := s.Message(1, appendMessage(nil, &m), nil); err != nil || s.Epoch() != 3 {
			t.Fatalf("in epoch %d: %v", s.Epoch(), err)
		}
		return s
	}
	early, late := come(), come()
	if got := kinds(early.Suspect(2, nil)); !slices.Equal(got, []OutputKind{NoQuorum}) {
		t.Errorf("before all have entered the view: %v", got)
	}
	late.Resumed(3, nil)
	if got := kinds(late.Suspect(2, nil)); len(got) == 0 || slices.Contains(got, NoQuorum) {
		t.Errorf("after that: %v", got)
	}
}

// TestAnotherProcessIsMeant: a decision that lets in a node is one about the process that has
// asked. Another process in its place stays outside, whoever tells it of that; and when it asks,
// the members know that the other one is no more.
func TestAnotherProcessIsMeant(t *testing.T) {
	named := message{kind: decided, epoch: 6, view: view{members: []NodeID{0, 1, 2}, processes: []process{{0, 8}, {2, 3}}}}
	come, anew := NewOutside(0, 8), NewOutside(2, 9)
	out, err := come.Message(1, appendMessage(nil, &named), nil)
	if err != nil || come.Epoch() != 6 {
		t.Fatalf("in epoch %d: %v", come.Epoch(), err)
	}
	out = come.Admit(2, 3, out)
	said := 0
	for _, o := range out {
		if o.Kind != Send || o.To != 2 {
			continue
		}
		said++
		if _, err := anew.Message(0, o.Message, nil); err != nil || !anew.Outside() {
			t.Fatalf("in epoch %d by %x: %v", anew.Epoch(), o.Message, err)
		}
	}
	if said < 2 {
		t.Errorf("it has said so %d times", said)
	}
	come.Resumed(6, nil)
	if come.Admit(2, 9, nil); !come.Suspects(2) {
		t.Error("another process asks to come as a member, and the member is not suspected")
	}
}

// TestWhoHasBegunGetsAChance: a node whose turn is about to come waits when it hears that another
// has begun, whatever it hears first.
func TestWhoHasBegunGetsAChance(t *testing.T) {
	b := makeBallot(1, 0)
	for name, begun := range map[string]*message{
		"nobody": nil, "another": {kind: prepare, epoch: 1, ballot: b}, "another with others": {kind: accept, epoch: 1, ballot: b, view: view{members: []NodeID{0, 1}}},
	} {
		s := New(1, []NodeID{0, 1, 2})
		if out := s.Suspect(2, nil); out != nil {
			t.Fatalf("node 1 is the second: %+v", out)
		}
		for range patience - 1 {
			if out := s.Tick(nil); out != nil {
				t.Fatalf("too early: %+v", out)
			}
		}
		if begun != nil {
			if _, err := s.Message(0, appendMessage(nil, begun), nil); err != nil {
				t.Fatal(err)
			}
		}
		if out := s.Tick(nil); (len(out) == 0) != (begun != nil) {
			t.Errorf("%s has begun, and when its turn comes the node says %+v", name, out)
		}
	}
	first := New(0, []NodeID{0, 1, 2})
	hear(t, first, 1, message{kind: prepare, epoch: 1, ballot: makeBallot(1, 1)})
	if out := first.Suspect(2, nil); len(out) > 0 {
		t.Errorf("node 0, whose turn is first, has promised, and says %+v", out)
	}
}

// TestLastProcessToAskIsMeant: when a process asks to come as a node, and then another as the same
// node, the first is no more.
func TestLastProcessToAskIsMeant(t *testing.T) {
	s := New(0, []NodeID{0, 1, 2})
	s.Admit(7, 1, nil)
	s.Admit(7, 2, nil)
	sent := hear(t, s, 1, message{kind: promise, epoch: 1, ballot: s.next.own.ballot})
	if len(sent) == 0 {
		t.Fatal("it proposes nothing")
	}
	for _, m := range sent {
		if m.kind != accept || !slices.Equal(m.processes, []process{{7, 2}}) {
			t.Errorf("it proposes %+v", m)
		}
	}
}

// saysWithin lists the kinds of messages that a node sends when it hears nothing for a while.
func saysWithin(t *testing.T, s *State, ticks int) map[kind]bool {
	t.Helper()
	said := map[kind]bool{}
	for range ticks {
		for _, o := range s.Tick(nil) {
			m, err := decodeMessage(o.Message)
			if err != nil {
				t.Fatal(err)
			}
			said[m.kind] = true
		}
	}
	return said
}

// TestRepeats: any message may be lost. Who has promised asks for the decision that it has not
// heard of, and who is in a view that perhaps not all have entered tells them of it.
func TestRepeats(t *testing.T) {
	all := []NodeID{0, 1, 2}
	promised := New(1, all)
	m := message{kind: prepare, epoch: 1, ballot: makeBallot(1, 0)}
	if _, err := promised.Message(0, appendMessage(nil, &m), nil); err != nil {
		t.Fatal(err)
	}
	if said := saysWithin(t, promised, 4*patience); !said[query] {
		t.Errorf("who has promised says %v", said)
	}
	entered := New(1, all)
	m = message{kind: decided, epoch: 1, view: view{members: []NodeID{0, 1}}}
	if _, err := entered.Message(0, appendMessage(nil, &m), nil); err != nil {
		t.Fatal(err)
	}
	if said := saysWithin(t, entered, 4*patience); !said[decided] {
		t.Errorf("who has entered a view says %v", said)
	}
	if entered.Resumed(1, nil); !entered.Idle() || len(saysWithin(t, entered, 4*patience)) > 0 {
		t.Error("when all have, there is more to say")
	}
}

// TestOutAdmitsNobody: who is in no view has no say.
func TestOutAdmitsNobody(t *testing.T) {
	excluded := New(2, []NodeID{0, 1, 2})
	m := message{kind: decided, epoch: 1, view: view{members: []NodeID{0, 1}}}
	if _, err := excluded.Message(0, appendMessage(nil, &m), nil); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*State{excluded, NewOutside(2, 1)} {
		if out := s.Admit(5, 1, nil); out != nil || len(s.joins) > 0 || !s.Idle() {
			t.Errorf("it says %+v and remembers %v", out, s.joins)
		}
	}
}

// hear lets a state hear something that makes sense, and returns the messages that it sends.
func hear(t *testing.T, s *State, from NodeID, m message) []message {
	t.Helper()
	out, err := s.Message(from, appendMessage(nil, &m), nil)
	if err != nil {
		t.Fatal(err)
	}
	var sent []message
	for _, o := range out {
		if o.Kind != Send {
			t.Fatalf("node %d has come to %+v", s.self, o)
		}
		m, err := decodeMessage(o.Message)
		if err != nil {
			t.Fatal(err)
		}
		sent = append(sent, m)
	}
	return sent
}

// TestOldAnswers: what was said to an attempt that has failed does not count for the next, and an
// attempt ends when a higher one has begun.
func TestOldAnswers(t *testing.T) {
	s := New(0, []NodeID{0, 1, 2, 3, 4})
	s.Suspect(4, nil)
	first := s.next.own.ballot
	for _, n := range []NodeID{1, 2} {
		hear(t, s, n, message{kind: promise, epoch: 1, ballot: first})
	}
	for s.next.own == nil || s.next.own.ballot == first {
		s.Tick(nil)
	}
	second := s.next.own.ballot
	for _, n := range []NodeID{1, 2} {
		if sent := hear(t, s, n, message{kind: promise, epoch: 1, ballot: first}); len(sent) > 0 {
			t.Errorf("an old promise makes it say %+v", sent)
		}
	}
	for _, n := range []NodeID{1, 2} {
		hear(t, s, n, message{kind: promise, epoch: 1, ballot: second})
	}
	for _, n := range []NodeID{1, 2, 3} {
		if sent := hear(t, s, n, message{kind: accepted, epoch: 1, ballot: first}); len(sent) > 0 {
			t.Errorf("an old acceptance makes it say %+v", sent)
		}
	}
	higher := makeBallot(second.round()+1, 1)
	hear(t, s, 1, message{kind: prepare, epoch: 1, ballot: higher})
	for _, n := range []NodeID{1, 2, 3} {
		if sent := hear(t, s, n, message{kind: accepted, epoch: 1, ballot: second}); len(sent) > 0 {
			t.Errorf("after a higher attempt it says %+v", sent)
		}
	}
}
