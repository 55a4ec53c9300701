package protocol

import (
	"bytes"
	"slices"
	"testing"
)

// TestTreeShape: every way up ends at the home, what is below and above agrees on all nodes, and a
// node is in exactly one branch of each that is above it.
func TestTreeShape(t *testing.T) {
	for _, nodes := range []int{2, 3, 5, 17, 40} {
		for arity := 1; arity <= 4; arity++ {
			for _, members := range [][]NodeID{nil, everySecond(nodes)} {
				checkShape(t, nodes, arity, members)
			}
		}
	}
}

func everySecond(nodes int) (members []NodeID) {
	for n := 1; n < nodes; n += 2 {
		members = append(members, NodeID(n))
	}
	return members
}

func checkShape(t *testing.T, nodes, arity int, members []NodeID) {
	t.Helper()
	engines := map[NodeID]*Engine{}
	for n := range NodeID(nodes) {
		e := New(Config{Self: n, Nodes: nodes, Pages: 1, HomeStripe: 1, TreeFrom: 2, TreeArity: arity})
		e.view.members, e.view.homes = members, members
		if e.isMember(n) {
			engines[n] = e
		}
	}
	for root := range engines {
		children := map[NodeID]int{}
		for n, e := range engines {
			if n == root {
				continue
			}
			up := e.tree(root).above()
			children[up]++
			if b := engines[up].tree(root).childOf(n); b < 0 || engines[up].tree(root).below(b) != n {
				t.Fatalf("%d nodes, members %v, arity %d, home %d: node %d is below %d, which has it in branch %d", nodes, members, arity, root, n, up, b)
			}
			steps := 0
			for at := n; at != root; at = engines[at].tree(root).above() {
				if steps++; steps > nodes {
					t.Fatalf("%d nodes, members %v, arity %d: no way from %d to %d", nodes, members, arity, n, root)
				}
			}
			above := 0
			for m, o := range engines {
				if o.tree(root).branch(n) >= 0 {
					above++
				} else if m == root {
					t.Fatalf("%d nodes, members %v, arity %d: %d is in no branch of the home %d", nodes, members, arity, n, root)
				}
			}
			if above != steps {
				t.Errorf("%d nodes, members %v, arity %d, home %d: %d steps up from %d, which is in branches of %d", nodes, members, arity, root, steps, n, above)
			}
		}
		for n, c := range children {
			if c > arity {
				t.Errorf("%d nodes, members %v, arity %d, home %d: %d nodes are below %d", nodes, members, arity, root, c, n)
			}
		}
	}
}

// chain is an engine in the middle of a tree of five nodes in a row, whose home is node 0: node 1,
// below which are nodes 2, 3 and 4.
func chain() *Engine {
	return New(Config{Self: 1, Nodes: 5, Pages: 8, HomeStripe: 1, TreeFrom: 2, TreeArity: 1})
}

// said lets a message come and returns what is sent, and whether the message was rejected.
func said(e *Engine, m Message) (sent []Message, rejected bool) {
	for _, f := range e.Step(Event{Kind: EventMessage, Message: &m}, nil) {
		if f.Kind == EffectSend {
			sent = append(sent, f.Message)
		}
		rejected = rejected || f.Kind == EffectReject
	}
	return sent, rejected
}

func combineOf(arrivals ...relayed) Message {
	m := BarrierCombine{Root: 0}.To(0).SentBy(2)
	for i := range arrivals {
		m.Payload = arrivals[i].append(m.Payload)
	}
	return m
}

func kindsOf(sent []Message) (all []Kind) {
	for _, m := range sent {
		all = append(all, m.Kind)
	}
	return all
}

// TestRelayCollects: the first arrival goes on at once, what comes meanwhile goes as one message,
// in order, and when more waits than a message holds, those below wait too.
func TestRelayCollects(t *testing.T) {
	e, barrier := chain(), LockObject(5)
	ack := BarrierCombineAck{Root: 0}.To(0).SentBy(0)
	arrival := func(ticket Ticket) relayed {
		return relayed{node: 3, object: barrier, parties: MaxParties, ticket: ticket, payload: make([]byte, MaxContribution)}
	}
	sent, _ := said(e, combineOf(arrival(1)))
	if !slices.Equal(kindsOf(sent), []Kind{KindBarrierCombine, KindBarrierCombineAck}) || sent[0].To != 0 || sent[1].To != 2 {
		t.Fatalf("the first arrival: %v", sent)
	}
	cancel := relayed{node: 3, cancel: true, object: barrier, ticket: 2}
	for _, g := range []relayed{arrival(2), cancel} {
		if sent, _ = said(e, combineOf(g)); !slices.Equal(kindsOf(sent), []Kind{KindBarrierCombineAck}) {
			t.Fatalf("while one is under way: %v", sent)
		}
	}
	own := e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: MaxParties, Payload: make([]byte, MaxContribution)}, nil)
	if len(own) != 0 {
		t.Fatalf("the node's own arrival: %v", own)
	}
	sent, _ = said(e, ack)
	all, err := decodeRelayed(sent[0].Payload)
	if len(sent) != 1 || err != nil || len(all) != 3 || all[0].ticket != 2 || !all[1].cancel || all[2].node != 1 {
		t.Fatalf("what was collected: %v, %v", all, err)
	}
	many := make([]relayed, MaxPayload/(relayedBytes+MaxContribution))
	for i := range many {
		many[i] = arrival(Ticket(100 + i))
	}
	if sent, _ = said(e, combineOf(many...)); !slices.Equal(kindsOf(sent), []Kind{KindBarrierCombineAck}) {
		t.Fatalf("a full message: %v", sent)
	}
	if sent, _ = said(e, combineOf(arrival(3))); len(sent) != 0 {
		t.Fatalf("more than a full message waits, and it is acknowledged: %v", sent)
	}
	if _, rejected := said(e, combineOf(arrival(4))); !rejected {
		t.Error("who was not told to go on may")
	}
	if sent, _ = said(e, ack); !slices.Equal(kindsOf(sent), []Kind{KindBarrierCombine, KindBarrierCombineAck}) || len(sent[0].Payload) > MaxPayload {
		t.Fatalf("there is room again: %v", kindsOf(sent))
	}
	if sent, _ = said(e, ack); !slices.Equal(kindsOf(sent), []Kind{KindBarrierCombine}) {
		t.Fatalf("the rest: %v", kindsOf(sent))
	}
	if sent, _ = said(e, ack); len(sent) != 0 || len(e.barriers.relays) != 0 {
		t.Errorf("nothing waits, and there are %d relays, %v", len(e.barriers.relays), sent)
	}
}

// TestRelayBroadcasts: a release goes on to those below, is answered here, and is confirmed when
// those below have confirmed it; once.
func TestRelayBroadcasts(t *testing.T) {
	e, barrier := chain(), LockObject(5)
	e.Step(Event{Kind: EventArrive, Object: barrier, Client: 1, Ticket: 9, Parties: 4}, nil)
	release := BarrierBroadcast{Root: 0, Serial: 7, Releases: appendBroadcast(nil, []addressee{{1, 9}, {4, 1}}, nil)}.To(0, barrier).SentBy(0)
	out := e.Step(Event{Kind: EventMessage, Message: &release}, nil)
	if len(out) != 2 || out[0].Message.Kind != KindBarrierBroadcast || out[0].Message.To != 2 || out[1].Kind != EffectComplete || out[1].Ticket != 9 {
		t.Fatalf("a release: %v", out)
	}
	if _, rejected := said(e, release); !rejected {
		t.Error("a release that was passed on already is passed on again")
	}
	ack := BarrierBroadcastAck{Root: 0, Serial: 7}.To(0).SentBy(2)
	if sent, _ := said(e, ack); !slices.Equal(kindsOf(sent), []Kind{KindBarrierBroadcastAck}) || sent[0].To != 0 || sent[0].ticket != 7 {
		t.Fatalf("all below have heard: %v", sent)
	}
	if _, rejected := said(e, ack); !rejected {
		t.Error("an acknowledgement that nobody waits for is accepted")
	}
}

// TestHomeSpeaksForItself: a home that waits for as many confirmations as it remembers releases
// everybody itself, and when a recovery begins, those from whom it has heard nothing.
func TestHomeSpeaksForItself(t *testing.T) {
	e, barrier := New(Config{Nodes: 3, Pages: 8, HomeStripe: 1, TreeFrom: 2, TreeArity: 1}), LockObject(3)
	e.limits.arrivals = 3
	meet := func(ticket Ticket) []Message {
		m := BarrierCombine{Root: 0}.To(0).SentBy(1)
		for n := range NodeID(2) {
			m.Payload = (&relayed{node: 1 + n, object: barrier, parties: 2, ticket: ticket, payload: []byte{byte(n)}}).append(m.Payload)
		}
		sent, _ := said(e, m)
		return sent
	}
	first := meet(1)
	if !slices.Equal(kindsOf(first), []Kind{KindBarrierBroadcast, KindBarrierCombineAck}) {
		t.Fatalf("a release: %v", first)
	}
	if sent := meet(2); !slices.Equal(kindsOf(sent), []Kind{KindBarrierRelease, KindBarrierRelease, KindBarrierCombineAck}) {
		t.Fatalf("too many are not confirmed: %v", sent)
	}
	if _, rejected := said(e, BarrierBroadcastAck{Root: 0, Serial: first[0].ticket}.To(0).SentBy(2)); !rejected {
		t.Error("another node than the one below confirms a release")
	}
	out := e.Step(Event{Kind: EventEpoch, Epoch: 1, Members: []NodeID{0, 2}}, nil)
	if m := out[0].Message; m.Kind != KindBarrierRelease || m.To != 2 || m.ticket != 1 || !bytes.Equal(m.Payload, []byte{0, 1}) || out[1].Message.Kind != KindEpochMarker {
		t.Fatalf("node 1 is lost with a release: %v", out)
	}
}

// TestFewPartiesNeedNoTree: in a large cluster, too, a barrier of few parties takes one message
// each way for each.
func TestFewPartiesNeedNoTree(t *testing.T) {
	cfg := Config{Self: 1, Nodes: 5, Pages: 8, HomeStripe: 1, TreeFrom: 3, TreeArity: 1}
	out := New(cfg).Step(Event{Kind: EventArrive, Object: LockObject(0), Client: 1, Ticket: 9, Parties: 2}, nil)
	if len(out) != 1 || out[0].Message.Kind != KindBarrierArrive || out[0].Message.To != 0 {
		t.Errorf("one of two parties arrives: %v", out)
	}
	cfg.Self = 0
	home := New(cfg)
	home.Step(Event{Kind: EventArrive, Object: LockObject(0), Client: 1, Ticket: 9, Parties: 2}, nil)
	if sent, _ := said(home, BarrierArrive{Parties: 2, Ticket: 7}.To(0, LockObject(0)).SentBy(4)); !slices.Equal(kindsOf(sent), []Kind{KindBarrierOpen}) || sent[0].To != 4 {
		t.Errorf("the other one of two parties has arrived: %v", sent)
	}
}

// TestTreeLies: what could not come from those above and below is rejected, and changes nothing.
func TestTreeLies(t *testing.T) {
	barrier := LockObject(5)
	good := relayed{node: 3, object: barrier, parties: 2, ticket: 1}
	with := func(change func(*relayed)) Message {
		g := good
		change(&g)
		return combineOf(g)
	}
	changed := func(m Message, change func(*Message)) Message {
		change(&m)
		return m
	}
	release := BarrierBroadcast{Root: 0, Serial: 1, Releases: appendBroadcast(nil, []addressee{{3, 1}}, nil)}.To(0, barrier).SentBy(0)
	for name, m := range map[string]Message{
		"an arrival of a node that is not below":   with(func(g *relayed) { g.node = 1 }),
		"an arrival of no node":                    with(func(g *relayed) { g.node = 5 }),
		"an arrival at another home":               with(func(g *relayed) { g.object = LockObject(1) }),
		"an arrival at a page":                     with(func(g *relayed) { g.object = PageObject(5) }),
		"an arrival of no parties":                 with(func(g *relayed) { g.parties = 0 }),
		"an arrival of too many parties":           with(func(g *relayed) { g.parties = MaxParties + 1 }),
		"an arrival with too much":                 with(func(g *relayed) { g.payload = make([]byte, MaxContribution+1) }),
		"a cancel with parties":                    with(func(g *relayed) { g.cancel = true }),
		"no arrival":                               {Kind: KindBarrierCombine, From: 2, node: 0},
		"half an arrival":                          changed(combineOf(good), func(m *Message) { m.Payload = m.Payload[:10] }),
		"arrivals from above":                      changed(combineOf(good), func(m *Message) { m.From = 0 }),
		"arrivals from further below":              changed(combineOf(good), func(m *Message) { m.From = 3 }),
		"arrivals for another home":                changed(combineOf(good), func(m *Message) { m.node = 3 }),
		"an acknowledgement of nothing":            {Kind: KindBarrierCombineAck, From: 0, node: 0},
		"a release from below":                     changed(release, func(m *Message) { m.From = 2 }),
		"a release of this node's own":             changed(release, func(m *Message) { m.node = 1 }),
		"a release of another home":                changed(release, func(m *Message) { m.Object = LockObject(1) }),
		"a release of a page":                      changed(release, func(m *Message) { m.Object = PageObject(0) }),
		"a release for nobody":                     changed(release, func(m *Message) { m.Payload = appendBroadcast(nil, nil, nil) }),
		"a release for a node that is not below":   changed(release, func(m *Message) { m.Payload = appendBroadcast(nil, []addressee{{0, 1}}, nil) }),
		"a release for more than are named":        changed(release, func(m *Message) { m.Payload = append([]byte{2}, m.Payload[1:]...) }),
		"a release with an answer to one":          changed(release, func(m *Message) { m.status = StatusCanceled }),
		"a release of a call that is a name's":     changed(release, func(m *Message) { m.Object, m.Payload = 0, appendBroadcast(nil, []addressee{{1, 8}}, nil) }),
		"a confirmation of what was not passed on": {Kind: KindBarrierBroadcastAck, From: 2, node: 0, ticket: 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := chain()
			e.Step(Event{Kind: EventName, Client: 1, Ticket: 8, Payload: (&NameCall{Op: Bind, Client: 1, Pages: 1, Name: "a"}).Append(nil)}, nil)
			before := string(e.AppendState(nil))
			m.Payload = slices.Clone(m.Payload)
			if _, rejected := said(e, m); !rejected || string(e.AppendState(nil)) != before {
				t.Errorf("rejected: %v; before %q, after %q", rejected, before, e.AppendState(nil))
			}
		})
	}
	for name, m := range map[string]Message{"arrivals": combineOf(good), "a release": release} {
		if _, rejected := said(chain(), m); rejected {
			t.Errorf("%s: rejected, although nothing is wrong", name)
		}
		e := chain()
		e.cfg.TreeFrom = DefaultTreeFrom
		if _, rejected := said(e, m); !rejected {
			t.Errorf("%s: accepted in a small cluster", name)
		}
	}
}

// TestCombinesWait: of what comes before the recovery is over one message from each node is kept
// for each home, and no second.
func TestCombinesWait(t *testing.T) {
	e := chain()
	for i, m := range []Message{
		combineOf(relayed{node: 3, object: LockObject(5), parties: 2, ticket: 1}),
		combineOf(relayed{node: 3, object: LockObject(4), parties: 2, ticket: 2}),
		combineOf(relayed{node: 3, object: LockObject(5), parties: 2, ticket: 3}),
	} {
		m.node = e.home(LockObject(4 + uint64(1-i%2)))
		e.parkCombine(&m)
		if want := min(i+1, 2); len(e.recovery.held) != want {
			t.Errorf("of %d messages %d are kept, want %d", i+1, len(e.recovery.held), want)
		}
	}
}

// TestLongestResultToAll: the longest result fits into one message with a ticket of each node.
func TestLongestResultToAll(t *testing.T) {
	if room := broadcastRoom(make([]byte, MaxResult)); room != MaxNodes {
		t.Errorf("the longest result leaves room for %d tickets", room)
	}
	if n := Contributed(new(BarrierBroadcast{Releases: appendBroadcast(nil, []addressee{{1, 1}}, make([]byte, 7))}.To(0, 0))); n != 7 {
		t.Errorf("%d bytes were contributed to a release, want 7", n)
	}
	m := combineOf(relayed{node: 3, object: LockObject(0), parties: 1, payload: make([]byte, 5)}, relayed{node: 3, object: LockObject(0), parties: 1, payload: make([]byte, 6)})
	if n := Contributed(&m); n != 11 || len(SplitCombined(m.Payload)) != 2 {
		t.Errorf("%d bytes were contributed to two arrivals, want 11", n)
	}
}
