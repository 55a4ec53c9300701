package protocol

import "testing"

// TestCopiesAreInvalidatedThroughATree: of many copies a home, and whoever passes an invalidation
// on, tells and hears a few; and all copies but the writer's go.
func TestCopiesAreInvalidatedThroughATree(t *testing.T) {
	const nodes, page = 150, 3 // more than a copyset names one by one
	for _, writer := range []NodeID{3, 40} {
		f := newFew(t, Config{Nodes: nodes, Pages: 8, HomeStripe: 1})
		f.fault(1, Write, page)
		f.settle()
		for n := range NodeID(100) {
			f.fault(n, Read, page)
			f.settle()
		}
		f.endHolds()
		told, heard := map[NodeID]int{}, map[NodeID]int{}
		f.withhold = func(m *Message) bool {
			switch m.Kind {
			case KindInvalidate:
				told[m.From]++
			case KindInvalidateAck:
				heard[m.To]++
			case KindVerify:
				told[m.To]++
			}
			return false
		}
		f.fault(writer, Write, page)
		f.settle()
		sum := 0
		for n, e := range f.engines {
			node := NodeID(n)
			if has := e.Access(PageObject(page)); (has == Write) != (node == writer) || has == Read {
				t.Errorf("node %d has %v, and node %d has written", n, has, writer)
			}
			// besides the parts there are the owner and the home
			if told[node] > DefaultTreeArity+1 || heard[node] > DefaultTreeArity+2 {
				t.Errorf("node %d tells %d and hears %d", n, told[node], heard[node])
			}
			sum += told[node]
			if e.Pending() != 0 {
				t.Errorf("node %d has %d objects under way", n, e.Pending())
			}
		}
		if sum < 98 || len(told) < 20 {
			t.Errorf("%d nodes have told %d others", len(told), sum)
		}
	}
}

// TestOneReaderHearsFewWords: who has no copy, and nobody to pass anything on to, says so at once
// and remembers nothing.
func TestOneReaderHearsFewWords(t *testing.T) {
	e := New(Config{Self: 1, Nodes: 5, Pages: 8, HomeStripe: 1, TreeFrom: 2, TreeArity: 1})
	sent, rejected := said(e, Invalidate{Requester: 2}.To(1, 0).SentBy(3))
	if rejected || len(sent) != 1 || sent[0].Kind != KindInvalidateAck || sent[0].To != 3 || e.Objects() != 0 {
		t.Errorf("it says %v and knows %d objects, rejected %v", sent, e.Objects(), rejected)
	}
}

// TestPassedOnRefused: no invalidation is passed on that no home could have begun, each for one
// thing that is wrong with it; nor does a home confirm one.
func TestPassedOnRefused(t *testing.T) {
	config := Config{Nodes: 6, Pages: 12, HomeStripe: 1, TreeFrom: 2, TreeArity: 1}
	engine := func(self NodeID) *Engine {
		c := config
		c.Self = self
		return New(c)
	}
	passed := func(from, requester NodeID, others ...NodeID) Message {
		return Invalidate{Requester: requester, Others: appendNodes(nil, others)}.To(1, 0).SentBy(from)
	}
	half := passed(0, 2, 3)
	half.Payload = half.Payload[:1]
	lock := passed(0, 2, 3)
	lock.Object = LockObject(0)
	atHome := passed(3, 2, 4)
	atHome.Object = 1
	for name, m := range map[string]Message{
		"for the receiver": passed(0, 1, 3), "by the one who writes": passed(2, 2, 3), "for nobody": passed(0, NoNode, 3),
		"of a lock": lock, "of the receiver's own page": atHome, "half a node": half,
		"in no order": passed(0, 2, 4, 3), "twice": passed(0, 2, 3, 3), "of the receiver": passed(0, 2, 1), "of the home": passed(3, 2, 0),
		"of the one who writes": passed(0, 2, 2), "of nobody": passed(0, 2, 6),
	} {
		if !refuses(engine(1), m) {
			t.Errorf("an invalidation is passed on: %s", name)
		}
	}
	if e := engine(1); refuses(e, passed(0, 2, 3)) || !refuses(e, passed(0, 2, 4)) {
		t.Error("only the second of two invalidations is refused")
	}
	f := newFew(t, config)
	f.fault(1, Write, 0)
	f.settle()
	if !refuses(f.engines[1], passed(3, 2)) {
		t.Error("who may write a page is told that it is one of many")
	}
	verify := func(from, requester NodeID, page ObjectID) Message {
		return Verify{Requester: requester}.To(0, page).SentBy(from)
	}
	for name, m := range map[string]Message{
		"of another's page": verify(2, 1, 1), "of a page that nobody has touched": verify(2, 1, 6), "for the one who asks": verify(1, 1, 0), "for another": verify(2, 3, 0),
	} {
		if !refuses(f.engines[0], m) {
			t.Errorf("a home confirms an invalidation %s", name)
		}
	}
	if sent, rejected := said(f.engines[0], verify(2, 1, 0)); rejected || len(sent) != 1 || sent[0].Kind != KindInvalidate || sent[0].To != 2 {
		t.Errorf("a home that is asked says %v, rejected %v", sent, rejected)
	}
	// the owner supplies the page, and is not invalidated
	f.withhold = func(m *Message) bool { return m.Kind == KindForward }
	f.fault(3, Write, 0)
	f.settle()
	if !refuses(f.engines[0], verify(1, 3, 0)) {
		t.Error("a home confirms that its supplier is invalidated")
	}
	small := New(Config{Nodes: 6, Pages: 8, HomeStripe: 1})
	if !refuses(small, verify(1, 2, 0)) {
		t.Error("a home of a small cluster confirms what nobody passes on")
	}
}

// TestMovesIsPassedOn: that a page only moves is known to all who give up their copies, also to
// those who hear it from another reader, and who ask the home.
func TestMovesIsPassedOn(t *testing.T) {
	f := newFew(t, Config{Nodes: 6, Pages: 12, HomeStripe: 1, TreeFrom: 2, TreeArity: 1})
	f.fault(1, Write, 0)
	f.settle()
	f.fault(4, Read, 0)
	f.settle()
	told := Invalidate{Requester: 2, Others: appendNodes(nil, []NodeID{5}), Moves: true}.To(1, 0).SentBy(3)
	sent, rejected := said(f.engines[1], told)
	if rejected || len(sent) != 2 || !sent[0].AsInvalidate().Moves || sent[1].Kind != KindVerify || !sent[1].AsVerify().Moves {
		t.Fatalf("the owner, told that a page moves by a reader, says %v, rejected %v", sent, rejected)
	}
	f.withhold = func(m *Message) bool { return m.Kind == KindForward }
	f.fault(2, Write, 0)
	f.settle()
	for _, moves := range []bool{true, false} {
		sent, rejected := said(f.engines[0], Verify{Requester: 2, Moves: moves}.To(0, 0).SentBy(4))
		if rejected || len(sent) != 1 || sent[0].AsInvalidate().Moves != moves {
			t.Errorf("a home that is asked whether a page goes, as a move %v, says %v, rejected %v", moves, sent, rejected)
		}
	}
}
