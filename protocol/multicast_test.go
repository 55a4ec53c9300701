package protocol

import "testing"

// TestPageGoesToAllWhoWait: a page that many ask for at the same time comes to all of them through
// a tree, whoever has written it, in which nobody sends it to more than a few; and all give it up
// when one writes.
func TestPageGoesToAllWhoWait(t *testing.T) {
	const nodes, page = 150, 3 // more than a copyset names one by one
	for _, owner := range []NodeID{page, 1, 40} {
		f := newFew(t, Config{Nodes: nodes, Pages: 8, HomeStripe: 1})
		f.fault(owner, Write, page)
		f.settle()
		sent, answered := map[NodeID]int{}, 0
		f.withhold = func(m *Message) bool {
			switch {
			case m.Kind == KindMulticast && m.Contents() == PageContents:
				sent[m.From]++
			case m.Kind == KindGrant:
				answered++
			}
			return false
		}
		for n := range NodeID(nodes) {
			if n != owner {
				f.fault(n, Read, page)
			}
		}
		f.settle()
		f.endHolds()
		sum := 0
		for n := range NodeID(nodes) {
			if got := f.engines[n].Access(PageObject(page)); got != Read {
				t.Errorf("owner %d: node %d has %v", owner, n, got)
			}
			if sum += sent[n]; sent[n] > DefaultTreeArity {
				t.Errorf("owner %d: node %d sends the page to %d others", owner, n, sent[n])
			}
			if got := f.engines[n].Pending(); got != 0 {
				t.Errorf("owner %d: node %d has %d objects under way", owner, n, got)
			}
		}
		if sum < nodes-2 || answered > 3*DefaultManyReaders {
			t.Errorf("owner %d: the page was passed on %d times, and granted %d times", owner, sum, answered)
		}
		f.fault(7, Write, page)
		f.settle()
		for n := range NodeID(nodes) {
			if got := f.engines[n].Access(PageObject(page)); (got == Write) != (n == 7) || got == Read {
				t.Errorf("owner %d: node %d has %v after node 7 has written", owner, n, got)
			}
		}
	}
}

// TestStoppedNodeKeepsWritersOnly: a multicast that a node does not acknowledge keeps those from
// the page who want to write it, and others only for a while.
func TestStoppedNodeKeepsWritersOnly(t *testing.T) {
	const nodes, page = 64, 3
	f := newFew(t, Config{Nodes: nodes, Pages: 8, HomeStripe: 1})
	f.fault(40, Write, page)
	f.settle()
	f.withhold = func(m *Message) bool { return m.To == 44 }
	for n := range NodeID(20) {
		f.fault(n, Read, page)
	}
	f.settle()
	f.fault(50, Read, page)
	f.fault(51, Write, page)
	f.settle()
	if got := f.engines[50].Access(page); got != None {
		t.Fatalf("a late reader has %v; no multicast is under way", got)
	}
	f.endHolds()
	for n := range NodeID(20) {
		if got := f.engines[n].Access(page); got != Read {
			t.Errorf("node %d has %v", n, got)
		}
	}
	if got, writer := f.engines[50].Access(page), f.engines[51].Access(page); got != Read || writer != None {
		t.Errorf("a late reader has %v, and a writer %v", got, writer)
	}
	f.withhold = func(*Message) bool { return false }
	for len(f.withheld) > 0 {
		f.release(0)
	}
	f.endHolds()
	if got := f.engines[51].Access(page); got != Write {
		t.Errorf("the writer has %v in the end", got)
	}
}

// TestMulticastsRest: pages are not sent to all for nothing again and again. Many readers, one
// after the other, are no reason to, and when nobody has waited there is a rest.
func TestMulticastsRest(t *testing.T) {
	const nodes = 64
	for _, slow := range []Time{0, 2 * readersWithin / DefaultManyReaders} {
		f := newFew(t, Config{Nodes: nodes, Pages: nodes, HomeStripe: 1})
		begun := 0
		f.withhold = func(m *Message) bool {
			if m.Kind == KindMulticast && m.From == 0 {
				begun++
			}
			return false
		}
		for n := range NodeID(nodes) { // of 62 readers none waits for another
			f.fault(n, [2]Access{Write, Read}[min(n, 1)], 0)
			f.settle()
			f.now += slow
		}
		if want := map[bool]int{true: 0, false: DefaultTreeArity}[slow > 0]; begun != want {
			t.Errorf("with %d µs between readers the home has sent the page %d times, want %d", slow, begun, want)
		}
	}
}

// TestLostPageIsNotSentToAll: a node may still have to hear that a page is lost when that has begun
// anew. It would take what was sent to all for the answer, and hear that afterwards.
func TestLostPageIsNotSentToAll(t *testing.T) {
	f := newFew(t, Config{Nodes: 6, Pages: 8, HomeStripe: 1, TreeFrom: 2, TreeArity: 1, ManyReaders: 1})
	f.fault(5, Write, 0)
	f.settle()
	left := []NodeID{0, 1, 2, 3, 4}
	f.enter(1, left, left)
	multicasts := 0
	f.withhold = func(m *Message) bool {
		if m.Kind == KindMulticast {
			multicasts++
		}
		return m.Kind == KindLost && m.To == 1
	}
	f.fault(1, Read, 0)
	f.settle()
	f.anew = true
	for _, n := range []NodeID{2, 0, 3, 4} {
		f.fault(n, Read, 0)
		f.settle()
	}
	if len(f.withheld) != 1 || f.engines[4].Access(0) != Read || multicasts != 0 {
		t.Fatalf("%d answers are withheld, node 4 has %v, after %d multicasts", len(f.withheld), f.engines[4].Access(0), multicasts)
	}
	f.release(0)
	if f.engines[1].Access(0) != Read || multicasts != 0 {
		t.Errorf("node 1 has %v, after %d multicasts", f.engines[1].Access(0), multicasts)
	}
}

// TestMulticastRefused: no page is passed on, taken or acknowledged that no home could have begun,
// each for one thing that is wrong with it.
func TestMulticastRefused(t *testing.T) {
	engine := func(self NodeID) *Engine {
		return New(Config{Self: self, Nodes: 6, Pages: 12, HomeStripe: 1, TreeFrom: 2, TreeArity: 1, ManyReaders: 1})
	}
	// the page of node 0, which node 2 sends: to 3, that to 4, 5, 1
	sends := func(from, root NodeID, c Contents) Message {
		return Multicast{Root: root, Contents: c}.To(3, 0).SentBy(from)
	}
	lock := sends(2, 2, ZeroContents)
	lock.Object = LockObject(0)
	own := sends(2, 2, ZeroContents)
	own.Object = 3
	ends := func(from NodeID, served ...NodeID) Message {
		return MulticastEnd{Root: 2, Served: appendNodes(nil, served)}.To(3, 0).SentBy(from)
	}
	half := ends(2, 3)
	half.Payload = half.Payload[:1]
	for name, m := range map[string]Message{
		"by one that is not above": sends(4, 2, ZeroContents), "without a page": sends(2, 2, NoContents), "of nobody": sends(2, NoNode, ZeroContents),
		"of a lock": lock, "of the receiver's own page": own, "by the receiver, at another's wish": sends(4, 3, NoContents), "by the receiver, with a page": sends(0, 3, ZeroContents),
		"to the end of nothing": ends(2, 3), "to an end of nobody": ends(2), "to half an end": half, "to the end of the home's": ends(2, 0), "to an end by another": ends(4, 5),
	} {
		if !refuses(engine(3), m) {
			t.Errorf("a page is sent to all: %s", name)
		}
	}
	small := New(Config{Self: 3, Nodes: 6, Pages: 12, HomeStripe: 1})
	if !refuses(small, sends(2, 2, ZeroContents)) {
		t.Error("a page is sent to all in a small cluster")
	}
	e := engine(3)
	if refuses(e, sends(2, 2, ZeroContents)) || !refuses(e, sends(2, 2, ZeroContents)) {
		t.Error("only the second of two is refused")
	}
	acks := func(from NodeID, takers ...NodeID) Message {
		return MulticastAck{appendNodes(nil, takers)}.To(3, 0).SentBy(from)
	}
	for name, m := range map[string]Message{
		"by another": acks(5, 5), "of one above": acks(4, 2), "of the home": acks(4, 0), "of nobody": acks(4, 6),
		"twice": acks(4, 4, 4), "in no order": acks(4, 4, 1),
	} {
		if !refuses(e, m) {
			t.Errorf("an acknowledgement %s is believed", name)
		}
	}
	if sent, rejected := said(e, acks(4, 1, 4)); rejected || len(sent) != 1 || sent[0].Kind != KindMulticastAck || sent[0].To != 2 {
		t.Errorf("it is acknowledged by %v, rejected %v", sent, rejected)
	}
}
