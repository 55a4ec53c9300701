package protocol

import (
	"encoding/binary"
	"slices"
)

// Many copies of a page are invalidated through a tree (Config.TreeFrom, TreeArity). The home
// divides the sharers into a few parts, and tells the first of each part, who the others are. (The
// owner and itself it tells apart.) The first one divides those in the same way, and passes the
// Invalidate on at once, even if its own copy has to stay for a while. It acknowledges when all of
// them have, and its own copy is gone. The requester hears from those whom the home has told, and
// every other sharer answers the one that has told it. So nobody sends or hears more than a few
// messages.
//
// What the home says comes behind what the home has granted before. What a sharer passes on may
// overtake that, and may be a lie. So a node believes it only where neither matters: it has a copy
// that it may drop at any time (droppableFlag) and was not served by a multicast, or has none and
// asks for none. Else it asks the home (Verify), whose answer comes behind the Grant.
//
// A transaction tells a node once, and the next one waits until all have acknowledged. So a page
// has one passing, at most. A recovery forgets it: whoever still wants the page asks again.

// passing is what a node has to hear before it acknowledges an invalidation that concerns others,
// or that came from another sharer.
type passing struct {
	to      NodeID   // who hears the acknowledgement
	missing []NodeID // who has not acknowledged; this node itself while its copy is not gone
	asked   bool     // the home was asked whether this node's copy is to go
}

// appendNodes writes a list of nodes into a payload.
func appendNodes(b []byte, nodes []NodeID) []byte {
	for _, n := range nodes {
		b = binary.LittleEndian.AppendUint16(b, uint16(n))
	}
	return b
}

// readNodes reads what appendNodes wrote, of nodes in ascending order, or says why it is not that.
func readNodes(b []byte) (nodes []NodeID, why string) {
	if len(b)%2 != 0 {
		return nil, "half a node"
	}
	for ; len(b) > 0; b = b[2:] {
		n := NodeID(binary.LittleEndian.Uint16(b))
		if len(nodes) > 0 && n <= nodes[len(nodes)-1] {
			return nil, "a node twice, or in no order"
		}
		nodes = append(nodes, n)
	}
	return nodes, ""
}

// invalidate has sharers of an object give up their copies, and returns how many of them the
// requester will hear.
func (d *directory) invalidate(o *object, r *request, sharers []NodeID) int {
	what := Invalidate{Requester: r.from, Moves: r.moves}
	if o.id.IsLock() || !d.usesTree(len(sharers)) {
		for _, n := range sharers {
			d.send(what.To(n, o.id))
		}
		return len(sharers)
	}
	heard := 0
	others := make([]NodeID, 0, len(sharers)) // the caller's list stays on its stack
	for _, n := range sharers {
		if n != d.cfg.Self && n != o.owner {
			others = append(others, n)
			continue
		}
		heard++
		d.send(what.To(n, o.id)) // the owner would ask
	}
	slices.Sort(others)
	return heard + len(d.passDown(o.id, what, others))
}

// passDown tells the first of each part of a list, and returns these.
func (c *pages) passDown(id ObjectID, what Invalidate, nodes []NodeID) (told []NodeID) {
	if len(nodes) == 0 {
		return nil
	}
	for part := range slices.Chunk(nodes, (len(nodes)+c.cfg.TreeArity-1)/c.cfg.TreeArity) {
		what.Others = appendNodes(nil, part[1:])
		c.send(what.To(part[0], id))
		told = append(told, part[0])
	}
	return told
}

// onPassed deals with an Invalidate that concerns others too, or that another sharer passes on.
func (h *holder) onPassed(m *Message) {
	k := m.AsInvalidate()
	o := h.objects.find(m.Object)
	others, why := h.readOthers(m, &k)
	if why == "" {
		why = h.noPassing(o, h.peek(o))
	}
	if why != "" {
		h.reject(m, why)
		return
	}
	to := m.From
	byHome := to == h.home(m.Object)
	if byHome {
		to = k.Requester
	}
	if o == nil && len(others) == 0 {
		h.send(InvalidateAck{}.To(to, m.Object)) // nothing of it needs to be remembered
		return
	}
	o = h.objects.get(m.Object)
	p := h.pendingOf(o)
	p.passing = passing{to: to, missing: append([]NodeID{h.cfg.Self}, h.passDown(o.id, k, others)...)}
	if byHome || o.is(droppableFlag) && !p.served || o.has() == None && p.want == None {
		h.giveUp(o, p, recall{requester: k.Requester, access: Write, passed: true, moves: k.Moves})
	} else {
		p.asked = true
		h.send(Verify{Requester: k.Requester, Moves: k.Moves}.To(h.home(o.id), o.id))
	}
	h.settle(o)
}

// readOthers reads whom an Invalidate concerns besides its receiver, or says why it is none that
// could come.
func (h *holder) readOthers(m *Message, k *Invalidate) (others []NodeID, why string) {
	home := h.home(m.Object)
	switch {
	case m.Object.IsLock() || !h.usesTrees():
		return nil, "only the home takes it away, and from one node after the other"
	case k.Requester == h.cfg.Self || m.From != home && m.From == k.Requester || !h.isMember(k.Requester) || home == h.cfg.Self:
		return nil, "it was not passed on for another member by one that is told so"
	}
	others, why = readNodes(k.Others)
	if slices.ContainsFunc(others, func(n NodeID) bool {
		return n == h.cfg.Self || n == k.Requester || n == home || int(n) >= h.cfg.Nodes || !h.isMember(n)
	}) {
		why = "it concerns nodes that the home does not leave to others"
	}
	return others, why
}

// noPassing says why an invalidation can not be one that others have a part in: "" if it can.
func (h *holder) noPassing(o *object, p *pending) string {
	switch {
	case p == nil && h.underWay() >= h.limits.pending:
		return "as much is under way at this node as can be"
	case o != nil && o.has() == Write || p != nil && p.granted && p.grant == Write:
		return "the owner is not invalidated, its page is forwarded"
	case p != nil && (len(p.missing) > 0 || p.leaves() && !p.evicting):
		return "the page is being taken already"
	}
	return ""
}

// giveUp has this node's copy go, as part of what it has passed on.
func (h *holder) giveUp(o *object, p *pending, r recall) {
	switch {
	case o.has() != None || p.granted:
		p.parked, p.hasParked = r, true
		h.retryRecall(o, p)
	case p.evicting: // it is just being dropped
		p.serving, p.evicting = r, false
	default:
		h.acknowledged(o, p, h.cfg.Self)
	}
}

// acknowledged notes that a copy below this node is gone, or its own, and says so when all are.
func (h *holder) acknowledged(o *object, p *pending, from NodeID) {
	i := slices.Index(p.missing, from)
	if i < 0 {
		return // a recovery has begun, and forgotten it
	}
	if p.missing = slices.Delete(p.missing, i, i+1); len(p.missing) == 0 {
		h.send(InvalidateAck{}.To(p.to, o.id))
		p.passing = passing{}
	}
}

// verified goes on with what the home was asked about, and reports whether it was.
func (h *holder) verified(m *Message) bool {
	o := h.objects.find(m.Object)
	p := h.peek(o)
	if p == nil || !p.asked {
		return false
	}
	p.asked = false
	k := m.AsInvalidate()
	h.giveUp(o, p, recall{requester: k.Requester, access: Write, passed: true, moves: k.Moves})
	h.settle(o)
	return true
}

// forgetPassing has nothing passed on any more: a recovery begins.
func (h *holder) forgetPassing(_ *object, p *pending) { p.passing = passing{} }

// onVerify tells a sharer itself what another has passed on to it.
func (d *directory) onVerify(m *Message) {
	k, o := m.AsVerify(), d.objects.find(m.Object)
	p := d.peek(o)
	switch {
	case d.home(m.Object) != d.cfg.Self || m.Object.IsLock() || !d.usesTrees():
		d.reject(m, "this node has nobody pass on what it says about that")
		return
	case o == nil || k.Requester == m.From || !o.goesTo(p, k.Requester) || p != nil && p.mode == homeBusyExclusive && p.supplier == m.From:
		d.reject(m, "the copy is not to go, or to somebody else")
		return
	}
	d.send(Invalidate{Requester: k.Requester, Moves: k.Moves}.To(m.From, m.Object))
}

// goesTo reports, at the home, whether a node has just been granted an object for writing, or is
// about to be.
func (o *object) goesTo(p *pending, n NodeID) bool {
	return o.owner == n && o.is(exclusiveFlag) || p != nil && p.mode == homeBusyExclusive && p.requester == n && p.granting == Write
}
