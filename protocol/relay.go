package protocol

import (
	"cmp"
	"slices"
)

// Where barriers are trees (tree.go), every node relays. Upwards it combines: it sends the first arrival on at once, and while the node above has not
// acknowledged that, it collects what comes from below and from its own programs; then it sends all of it as one message. So nobody has to know
// how many arrivals to wait for, or where ranks are. Each node has one BarrierGather under way for each home, at most; so the arrivals and
// cancels of a node reach the home in their order, whatever the network does.
//
// Downwards it divides: a BarrierSpread has the result once, and the tickets of all below.
//
// A relay may be lost with what it had, or be in a recovery already when something comes. Arrivals are not missed: whoever waits arrives anew after
// the recovery. A release that went astray would be: its node would arrive anew, and be counted a second time. So the home remembers what it has released until all
// below have confirmed it (BarrierSpreadAck, which a node sends when all below it have), and when a recovery begins it releases those
// itself, before its EpochMark. Then it is true with trees as without that a release has come before the mark of the home (see resendCalls).
// That is why nobody relays in a recovery: what comes then is said anew, or by the home.
//
// Answers to one arrival alone (it was cancelled, it does not fit the others) are the home's own BarrierRelease at all times.

// trees is what a node knows of what it relays, and of the releases that it has sent as a home. It is forgotten in each recovery.
type trees struct {
	relays  []*relay  // one for each home with something under way from here; ascending
	passed  []passed  // in ascending order of home and serial
	unheard []unheard // in ascending order of serials
	serial  Ticket    // of the last release that this home has sent
	waiting int       // tickets in unheard
}

// relay collects what is to go to one home.
type relay struct {
	root    NodeID
	parcel           // what waits; to is the node above
	open    bool     // a BarrierGather is under way
	stalled []NodeID // those below whose BarrierGather is not acknowledged yet, because too much waits here
}

// passed is a release that was passed on, and that not all below have confirmed.
type passed struct {
	root    NodeID
	serial  Ticket
	missing uint64 // branches
}

// unheard is a release that this home has sent to one of those below it, who has not confirmed it.
type unheard struct {
	serial Ticket
	child  NodeID
	object ObjectID
	status Status
	to     []addressee
	result []byte
}

// sendToHome sends the arrival of a call, or its cancel, to the home of the barrier: both the same way.
func (e *Engine) sendToHome(c *call, g *gathered) {
	g.node, g.object, g.ticket = e.cfg.Self, c.object, c.ticket
	if c.to == e.cfg.Self || !e.usesTree(int(c.parties)) {
		e.send(g.message(c.to))
		return
	}
	r := e.relayTo(c.to)
	r.collect(g)
	e.passUp(r)
}

func (e *Engine) findRelay(root NodeID) (int, bool) {
	return slices.BinarySearchFunc(e.trees.relays, root, func(r *relay, root NodeID) int { return cmp.Compare(r.root, root) })
}

// relayTo is what collects for a home, new if nothing was under way.
func (e *Engine) relayTo(root NodeID) *relay {
	i, ok := e.findRelay(root)
	if !ok {
		e.trees.relays = slices.Insert(e.trees.relays, i, &relay{root: root, parcel: parcel{to: e.above(root)}})
	}
	return e.trees.relays[i]
}

func (r *relay) collect(g *gathered) {
	b := r.room(g.size())
	*b = g.append(*b)
}

// full says whether more waits than the next message holds. Then those below wait, too, and so what waits is bounded.
func (r *relay) full() bool { return len(r.pieces) > 1 }

// passUp sends what waits, if nothing is under way.
func (e *Engine) passUp(r *relay) {
	if r.open || len(r.pieces) == 0 {
		return
	}
	r.open = true
	e.send(Message{Kind: BarrierGather, To: r.to, Requester: r.root, Payload: r.pieces[0]})
	r.pieces = slices.Delete(r.pieces, 0, 1)
	if r.full() {
		return
	}
	for _, n := range r.stalled {
		e.acknowledgeGather(n, r.root)
	}
	r.stalled = nil
}

func (e *Engine) acknowledgeGather(to, root NodeID) {
	e.send(Message{Kind: BarrierGatherAck, To: to, Requester: root})
}

// onBarrierGather deals with arrivals from below: at their home each counts as if its node had sent it there, everybody else passes them on.
func (e *Engine) onBarrierGather(m *Message) {
	all, why := e.readGather(m)
	if why != "" {
		e.reject(m, why)
		return
	}
	if m.Requester == e.cfg.Self {
		for i := range all {
			one := all[i].message(e.cfg.Self)
			e.deliver(&one)
		}
		e.acknowledgeGather(m.From, e.cfg.Self)
		return
	}
	r := e.relayTo(m.Requester)
	for i := range all {
		r.collect(&all[i])
	}
	e.passUp(r)
	if r.full() {
		r.stalled = append(r.stalled, m.From)
		return
	}
	e.acknowledgeGather(m.From, r.root)
}

// readGather reads a BarrierGather, or says why it is none that could come.
func (e *Engine) readGather(m *Message) (all []gathered, why string) {
	root := m.Requester
	branch := e.childOf(m.From, root)
	if !e.usesTrees() || branch < 0 {
		return nil, "its sender is not below this node"
	}
	if i, ok := e.findRelay(root); ok && slices.Contains(e.trees.relays[i].stalled, m.From) {
		return nil, "its sender was not told to go on"
	}
	all, err := decodeGathered(m.Payload)
	if err != nil {
		return nil, err.Error()
	}
	for i := range all {
		g := &all[i]
		if e.branch(g.node, root) != branch {
			return nil, "an arrival of a node that is not below its sender"
		}
		if (i == 0 || g.object != all[i-1].object) && e.home(g.object) != root {
			return nil, "an arrival at a barrier that has another home"
		}
	}
	return all, ""
}

// holdGather keeps a BarrierGather that has come before this node's recovery was over. There can be one from each node and for each home.
func (e *Engine) holdGather(m *Message) {
	_, why := e.readGather(m)
	if slices.ContainsFunc(e.view.held, func(h Message) bool {
		return h.Kind == BarrierGather && h.From == m.From && h.Requester == m.Requester
	}) {
		why = "its sender was not told to go on"
	}
	if why != "" {
		e.reject(m, why)
		return
	}
	e.hold(m)
}

func (e *Engine) onBarrierGatherAck(m *Message) {
	i, ok := e.findRelay(m.Requester)
	if !ok || !e.trees.relays[i].open || e.trees.relays[i].to != m.From {
		e.reject(m, "nothing was sent that it acknowledges")
		return
	}
	r := e.trees.relays[i]
	r.open = false
	if len(r.pieces) == 0 {
		e.trees.relays = slices.Delete(e.trees.relays, i, i+1)
		return
	}
	e.passUp(r)
}

// releaseArrivals answers all arrivals at a barrier, all with the same result.
func (e *Engine) releaseArrivals(id ObjectID, in []arrival, status Status, result []byte) {
	to := make([]addressee, len(in))
	for i := range in {
		to[i] = addressee{in[i].node, in[i].ticket}
	}
	if !e.usesTree(len(to)) || e.trees.waiting+len(to) > e.limits.arrivals {
		e.releaseEach(id, to, status, result)
		return
	}
	own, branches := e.divide(to, e.cfg.Self)
	for b, list := range branches {
		for part := range slices.Chunk(list, spreadRoom(result)) {
			e.spread(unheard{child: e.below(b, e.cfg.Self), object: id, status: status, to: part, result: result})
		}
	}
	e.releaseEach(id, own, status, result)
}

// releaseEach sends each its own BarrierRelease.
func (e *Engine) releaseEach(id ObjectID, to []addressee, status Status, result []byte) {
	for _, a := range to {
		e.send(Message{Kind: BarrierRelease, To: a.node, Object: id, Ticket: a.ticket, Status: status, Payload: result})
	}
}

// divide sorts addressees by the branches in which they are, and those that are on this node.
func (e *Engine) divide(to []addressee, root NodeID) (own []addressee, branches [][]addressee) {
	branches = make([][]addressee, e.cfg.treeArity())
	for _, a := range to {
		if a.node == e.cfg.Self {
			own = append(own, a)
			continue
		}
		b := e.branch(a.node, root)
		branches[b] = append(branches[b], a)
	}
	return own, branches
}

// spread sends a release to one of those below this home, and remembers it.
func (e *Engine) spread(u unheard) {
	t := &e.trees
	t.serial++
	u.serial = t.serial
	t.unheard = append(t.unheard, u)
	t.waiting += len(u.to)
	e.send(Message{Kind: BarrierSpread, To: u.child, Requester: e.cfg.Self, Object: u.object, Ticket: u.serial, Status: u.status, Payload: appendSpread(nil, u.to, u.result)})
}

// onBarrierSpread passes a release on, and answers the calls of this node's clients.
func (e *Engine) onBarrierSpread(m *Message) {
	to, result, why := e.readSpread(m)
	if why != "" {
		e.reject(m, why)
		return
	}
	own, branches := e.divide(to, m.Requester)
	missing := uint64(0)
	for b, list := range branches {
		if len(list) == 0 {
			continue
		}
		missing |= 1 << b
		down := *m
		down.To, down.Payload = e.below(b, m.Requester), appendSpread(nil, list, result)
		e.send(down)
	}
	if missing == 0 {
		e.acknowledgeSpread(m.Requester, m.Ticket)
	} else {
		i, _ := e.findPassed(m.Requester, m.Ticket)
		e.trees.passed = slices.Insert(e.trees.passed, i, passed{m.Requester, m.Ticket, missing})
	}
	for _, a := range own {
		e.onReply(&Message{Kind: BarrierRelease, From: m.Requester, Object: m.Object, Ticket: a.ticket, Status: m.Status, Payload: result})
	}
}

// readSpread reads a BarrierSpread, or says why it is none that could come.
func (e *Engine) readSpread(m *Message) (to []addressee, result []byte, why string) {
	root := m.Requester
	switch _, known := e.findPassed(root, m.Ticket); {
	case !e.usesTrees() || root == e.cfg.Self || e.index(root) < 0 || e.above(root) != m.From:
		return nil, nil, "its sender is not above this node"
	case !m.Object.IsLock() || e.home(m.Object) != root:
		return nil, nil, "a release of a barrier that has another home"
	case m.Status != StatusOK && m.Status != StatusNoSpace:
		return nil, nil, "a release with an answer to one arrival"
	case known || len(e.trees.passed) >= e.limits.arrivals:
		return nil, nil, "a release that was passed on already, or one too many"
	}
	to, result, err := decodeSpread(m.Payload)
	if err != nil {
		return nil, nil, err.Error()
	}
	for _, a := range to {
		if a.node != e.cfg.Self && e.branch(a.node, root) < 0 {
			return nil, nil, "a release for a node that is not below this one"
		}
		if a.node != e.cfg.Self {
			continue
		}
		for i := range e.calls {
			if c := &e.calls[i]; c.ticket == a.ticket && c.object == m.Object && (!c.barrier || c.to != root) {
				return nil, nil, "the call that it answers went to another node, or was another"
			}
		}
	}
	return to, result, ""
}

func (e *Engine) acknowledgeSpread(root NodeID, serial Ticket) {
	e.send(Message{Kind: BarrierSpreadAck, To: e.above(root), Requester: root, Ticket: serial})
}

func (e *Engine) findPassed(root NodeID, serial Ticket) (int, bool) {
	return slices.BinarySearchFunc(e.trees.passed, passed{root: root, serial: serial}, func(a, b passed) int {
		return cmp.Or(cmp.Compare(a.root, b.root), cmp.Compare(a.serial, b.serial))
	})
}

// onBarrierSpreadAck notes that all below one of those below this node have heard of a release.
func (e *Engine) onBarrierSpreadAck(m *Message) {
	if m.Requester == e.cfg.Self {
		e.heard(m)
		return
	}
	branch := e.childOf(m.From, m.Requester)
	i, ok := e.findPassed(m.Requester, m.Ticket)
	if branch < 0 || !ok || e.trees.passed[i].missing>>branch&1 == 0 {
		e.reject(m, "nothing was passed on that it acknowledges")
		return
	}
	p := &e.trees.passed[i]
	if p.missing &^= 1 << branch; p.missing == 0 {
		e.trees.passed = slices.Delete(e.trees.passed, i, i+1)
		e.acknowledgeSpread(m.Requester, m.Ticket)
	}
}

// heard forgets a release of this home's that has reached everybody.
func (e *Engine) heard(m *Message) {
	t := &e.trees
	i, ok := slices.BinarySearchFunc(t.unheard, m.Ticket, func(u unheard, serial Ticket) int { return cmp.Compare(u.serial, serial) })
	if !ok || t.unheard[i].child != m.From {
		e.reject(m, "nothing was released that it acknowledges")
		return
	}
	t.waiting -= len(t.unheard[i].to)
	t.unheard = slices.Delete(t.unheard, i, i+1)
}

// leaveTrees ends all relaying at the beginning of a recovery. Releases that may have gone astray are said once more, to each itself. Who has heard them before
// waits for that ticket no longer, and never uses one twice.
func (e *Engine) leaveTrees() {
	for _, u := range e.trees.unheard {
		for _, a := range u.to {
			if e.isMember(a.node) {
				e.releaseEach(u.object, []addressee{a}, u.status, u.result)
			}
		}
	}
	e.trees = trees{}
}

func (t *trees) clone() trees {
	c := trees{passed: slices.Clone(t.passed), unheard: slices.Clone(t.unheard), serial: t.serial, waiting: t.waiting}
	for _, r := range t.relays {
		k := *r
		k.pieces, k.stalled = slices.Clone(r.pieces), slices.Clone(r.stalled)
		for i := range k.pieces {
			k.pieces[i] = slices.Clone(k.pieces[i])
		}
		c.relays = append(c.relays, &k)
	}
	return c
}
