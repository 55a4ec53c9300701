package protocol

import (
	"cmp"
	"slices"
)

// Where barriers are trees (tree.go), every node relays. Upwards it combines: it sends the first
// arrival on at once, and while the node above has not acknowledged that, it collects what comes
// from below and from its own programs; then it sends all of it as one message. So nobody has to
// know how many arrivals to wait for, or where ranks are. Each node has one BarrierCombine under
// way for each home, at most; so the arrivals and cancels of a node reach the home in their order,
// whatever the network does.
//
// Downwards it divides: a BarrierBroadcast has the result once, and the tickets of all below.
//
// A relay may be lost with what it had, or be in a recovery already when something comes. Arrivals
// are not missed: whoever waits arrives anew after the recovery. A release that went astray would
// be: its node would arrive anew, and be counted a second time. So the home remembers what it has
// released until all below have confirmed it (BarrierBroadcastAck, which a node sends when all
// below it have), and when a recovery begins it releases those itself, before its EpochMarker. Then
// it is true with trees as without that a release has come before the mark of the home (see
// resume). That is why nobody relays in a recovery: what comes then is said anew, or by the home.
//
// Answers to one arrival alone (it was cancelled, it does not fit the others) are the home's own
// BarrierRelease at all times.

// relay collects what is to go to one home.
type relay struct {
	root   NodeID
	parcel      // what waits; to is the node above
	open   bool // a BarrierCombine is under way
	// those below whose BarrierCombine is not acknowledged yet, because too much waits here
	stalled []NodeID
}

// forwardedRelease is one that was passed on, and that not all below have confirmed.
type forwardedRelease struct {
	root    NodeID
	serial  Ticket
	missing uint64 // branches
}

// unconfirmedRelease is one that this home has sent to a node below it, which has not confirmed it.
type unconfirmedRelease struct {
	serial Ticket
	child  NodeID
	object ObjectID
	status Status
	to     []addressee
	result []byte
}

// sendToHome sends the arrival of a call, or its cancel, to the home of the barrier: both the same
// way.
func (b *barriers) sendToHome(c *arrivalCall, g *relayed) {
	g.node, g.object, g.ticket = b.cfg.Self, c.object, c.ticket
	if c.to == b.cfg.Self || !b.usesTree(int(c.parties)) {
		b.send(g.message(c.to))
		return
	}
	r := b.relayTo(c.to)
	r.collect(g)
	b.passUp(r)
}

func (b *barriers) findRelay(root NodeID) (int, bool) {
	return slices.BinarySearchFunc(b.relays, root, func(r *relay, root NodeID) int { return cmp.Compare(r.root, root) })
}

// relayTo is what collects for a home, new if nothing was under way.
func (b *barriers) relayTo(root NodeID) *relay {
	i, ok := b.findRelay(root)
	if !ok {
		b.relays = slices.Insert(b.relays, i, &relay{root: root, parcel: parcel{to: b.tree(root).above()}})
	}
	return b.relays[i]
}

func (r *relay) collect(g *relayed) {
	room := r.room(g.size())
	*room = g.append(*room)
}

// full reports whether more waits than the next message holds. Then those below wait, too, and so
// what waits is bounded.
func (r *relay) full() bool { return len(r.pieces) > 1 }

// passUp sends what waits, if nothing is under way.
func (b *barriers) passUp(r *relay) {
	if r.open || len(r.pieces) == 0 {
		return
	}
	r.open = true
	b.send(BarrierCombine{Root: r.root, Arrivals: r.pieces[0]}.To(r.to))
	r.pieces = slices.Delete(r.pieces, 0, 1)
	if r.full() {
		return
	}
	for _, n := range r.stalled {
		b.acknowledgeCombine(n, r.root)
	}
	r.stalled = nil
}

func (b *barriers) acknowledgeCombine(to, root NodeID) {
	b.send(BarrierCombineAck{Root: root}.To(to))
}

// onCombine deals with arrivals from below: at their home each counts as if its node had sent it
// there, everybody else passes them on.
func (b *barriers) onCombine(m *Message) {
	all, why := b.readCombine(m)
	if why != "" {
		b.reject(m, why)
		return
	}
	root := m.AsBarrierCombine().Root
	if root == b.cfg.Self {
		for i := range all {
			if one := all[i].message(b.cfg.Self); all[i].cancel {
				b.onCancel(&one)
			} else {
				b.onArrive(&one)
			}
		}
		b.acknowledgeCombine(m.From, b.cfg.Self)
		return
	}
	r := b.relayTo(root)
	for i := range all {
		r.collect(&all[i])
	}
	b.passUp(r)
	if r.full() {
		r.stalled = append(r.stalled, m.From)
		return
	}
	b.acknowledgeCombine(m.From, r.root)
}

// readCombine reads a BarrierCombine, or says why it is none that could come.
func (b *barriers) readCombine(m *Message) (all []relayed, why string) {
	k := m.AsBarrierCombine()
	root := k.Root
	branch := b.tree(root).childOf(m.From)
	if !b.usesTrees() || branch < 0 {
		return nil, "its sender is not below this node"
	}
	if i, ok := b.findRelay(root); ok && slices.Contains(b.relays[i].stalled, m.From) {
		return nil, "its sender was not told to go on"
	}
	all, err := decodeRelayed(k.Arrivals)
	if err != nil {
		return nil, err.Error()
	}
	for i := range all {
		g := &all[i]
		if b.tree(root).branch(g.node) != branch {
			return nil, "an arrival of a node that is not below its sender"
		}
		if (i == 0 || g.object != all[i-1].object) && b.home(g.object) != root {
			return nil, "an arrival at a barrier that has another home"
		}
	}
	return all, ""
}

func (b *barriers) onCombineAck(m *Message) {
	i, ok := b.findRelay(m.AsBarrierCombineAck().Root)
	if !ok || !b.relays[i].open || b.relays[i].to != m.From {
		b.reject(m, "nothing was sent that it acknowledges")
		return
	}
	r := b.relays[i]
	r.open = false
	if len(r.pieces) == 0 {
		b.relays = slices.Delete(b.relays, i, i+1)
		return
	}
	b.passUp(r)
}

// releaseArrivals answers all arrivals at a barrier, all with the same result.
func (b *barriers) releaseArrivals(id ObjectID, in []arrival, status Status, result []byte) {
	to := make([]addressee, len(in))
	for i := range in {
		to[i] = addressee{in[i].node, in[i].ticket}
	}
	switch {
	case !b.usesTree(len(to)) && len(to) <= mostNamed:
		b.sayOpen(&opening{object: id, status: status, releases: appendBroadcast(nil, to, result)}, to)
		b.releaseEach(id, slices.DeleteFunc(to, func(a addressee) bool { return a.node != b.cfg.Self }), status, result)
		return
	case !b.usesTree(len(to)) || b.waiting+len(to) > b.limits.arrivals:
		b.releaseEach(id, to, status, result)
		return
	}
	own, branches := b.divide(to, b.cfg.Self)
	for branch, list := range branches {
		for part := range slices.Chunk(list, broadcastRoom(result)) {
			b.broadcast(unconfirmedRelease{child: b.tree(b.cfg.Self).below(branch), object: id, status: status, to: part, result: result})
		}
	}
	b.releaseEach(id, own, status, result)
}

// releaseEach sends each its own BarrierRelease.
func (b *barriers) releaseEach(id ObjectID, to []addressee, status Status, result []byte) {
	for _, a := range to {
		b.send(BarrierRelease{Ticket: a.ticket, Status: status, Result: result}.To(a.node, id))
	}
}

// divide sorts addressees by the branches in which they are, and those that are on this node.
func (b *barriers) divide(to []addressee, root NodeID) (own []addressee, branches [][]addressee) {
	branches = make([][]addressee, b.cfg.TreeArity)
	for _, a := range to {
		if a.node == b.cfg.Self {
			own = append(own, a)
			continue
		}
		branch := b.tree(root).branch(a.node)
		branches[branch] = append(branches[branch], a)
	}
	return own, branches
}

// broadcast sends a release to one of those below this home, and remembers it.
func (b *barriers) broadcast(u unconfirmedRelease) {
	b.serial++
	u.serial = b.serial
	b.unconfirmed = append(b.unconfirmed, u)
	b.waiting += len(u.to)
	b.send(BarrierBroadcast{Root: b.cfg.Self, Serial: u.serial, Status: u.status, Releases: appendBroadcast(nil, u.to, u.result)}.To(u.child, u.object))
}

// onBroadcast passes a release on, and answers the calls of this node's clients.
func (b *barriers) onBroadcast(m *Message) {
	k := m.AsBarrierBroadcast()
	to, result, why := b.readBroadcast(m, &k)
	if why != "" {
		b.reject(m, why)
		return
	}
	own, branches := b.divide(to, k.Root)
	missing := uint64(0)
	for branch, list := range branches {
		if len(list) == 0 {
			continue
		}
		missing |= 1 << branch
		down := k
		down.Releases = appendBroadcast(nil, list, result)
		b.send(down.To(b.tree(k.Root).below(branch), m.Object))
	}
	if missing == 0 {
		b.acknowledgeBroadcast(k.Root, k.Serial)
	} else {
		i, _ := b.findForwarded(k.Root, k.Serial)
		b.forwarded = slices.Insert(b.forwarded, i, forwardedRelease{k.Root, k.Serial, missing})
	}
	for _, a := range own {
		b.onRelease(new(BarrierRelease{k.Status, a.ticket, result}.To(b.cfg.Self, m.Object).SentBy(k.Root)))
	}
}

// readBroadcast reads a BarrierBroadcast, or says why it is none that could come.
func (b *barriers) readBroadcast(m *Message, k *BarrierBroadcast) (to []addressee, result []byte, why string) {
	switch _, known := b.findForwarded(k.Root, k.Serial); {
	case !b.usesTrees() || k.Root == b.cfg.Self || b.index(k.Root) < 0 || b.tree(k.Root).above() != m.From:
		return nil, nil, "its sender is not above this node"
	case !m.Object.IsLock() || b.home(m.Object) != k.Root:
		return nil, nil, "a release of a barrier that has another home"
	case k.Status != StatusOK && k.Status != StatusNoSpace:
		return nil, nil, "a release with an answer to one arrival"
	case known || len(b.forwarded) >= b.limits.arrivals:
		return nil, nil, "a release that was passed on already, or one too many"
	}
	to, result, err := decodeBroadcast(k.Releases)
	if err != nil {
		return nil, nil, err.Error()
	}
	for _, a := range to {
		if a.node != b.cfg.Self && b.tree(k.Root).branch(a.node) < 0 {
			return nil, nil, "a release for a node that is not below this one"
		}
		if a.node != b.cfg.Self {
			continue
		}
		for i := range b.calls {
			if c := &b.calls[i]; c.ticket == a.ticket && c.object == m.Object && c.to != k.Root {
				return nil, nil, "the call that it answers went to another node, or was another"
			}
		}
	}
	return to, result, ""
}

func (b *barriers) acknowledgeBroadcast(root NodeID, serial Ticket) {
	b.send(BarrierBroadcastAck{Root: root, Serial: serial}.To(b.tree(root).above()))
}

func (b *barriers) findForwarded(root NodeID, serial Ticket) (int, bool) {
	return slices.BinarySearchFunc(b.forwarded, forwardedRelease{root: root, serial: serial}, func(x, y forwardedRelease) int {
		return cmp.Or(cmp.Compare(x.root, y.root), cmp.Compare(x.serial, y.serial))
	})
}

// onBroadcastAck notes that all below one of those below this node have heard of a release.
func (b *barriers) onBroadcastAck(m *Message) {
	k := m.AsBarrierBroadcastAck()
	if k.Root == b.cfg.Self {
		b.heard(m, k.Serial)
		return
	}
	branch := b.tree(k.Root).childOf(m.From)
	i, ok := b.findForwarded(k.Root, k.Serial)
	if branch < 0 || !ok || b.forwarded[i].missing>>branch&1 == 0 {
		b.reject(m, "nothing was passed on that it acknowledges")
		return
	}
	p := &b.forwarded[i]
	if p.missing &^= 1 << branch; p.missing == 0 {
		b.forwarded = slices.Delete(b.forwarded, i, i+1)
		b.acknowledgeBroadcast(k.Root, k.Serial)
	}
}

// heard forgets a release of this home's that has reached everybody.
func (b *barriers) heard(m *Message, serial Ticket) {
	i, ok := slices.BinarySearchFunc(b.unconfirmed, serial, func(u unconfirmedRelease, serial Ticket) int { return cmp.Compare(u.serial, serial) })
	if !ok || b.unconfirmed[i].child != m.From {
		b.reject(m, "nothing was released that it acknowledges")
		return
	}
	b.waiting -= len(b.unconfirmed[i].to)
	b.unconfirmed = slices.Delete(b.unconfirmed, i, i+1)
}
