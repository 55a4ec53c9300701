package model

import (
	"bytes"
	"slices"

	"dsmd/protocol"
)

// Nodes that the others take for lost, and that live on (Config.Cut): their programs go on with
// what they have, writable pages, locks that are held or that the node has, words on control pages;
// they go on talking to each other, and to whoever has not gone on without them yet. At some moment
// their daemons learn that they are too few (ActBlock), and grant nothing from then on, as package
// node does (node/members.go). In the end they are ended, sooner or later, and may come back, with
// Config.Return, as nodes that know nothing.
//
// With Config.Heal the others do not go on without them: each loses its quorum once, and finds it
// again (ActHeal). What was granted meanwhile is told then, unless it was cancelled, and nothing
// has changed for anybody.
//
// What docs/consistency.md promises of them is checked by the ledger: see sides.

// cutOff reports whether the nodes that may be cut off are.
func cutOff(nodes []*Node) bool {
	cut := nodes[0].config.Cut
	return len(cut) > 0 && nodes[cut[0]].cut
}

// apart reports whether a node is one of those that are cut off.
func apart(nodes []*Node, n *Node) bool {
	return slices.Contains(n.config.Cut, n.self) && !n.returned && cutOff(nodes)
}

// minorityActions appends what can happen to a node because it may be cut off, or is.
func (n *Node) minorityActions(nodes []*Node, out []Action) []Action {
	switch cut := n.config.Cut; {
	case n.config.Heal && n.blocked:
		out = append(out, Action{Kind: ActHeal, Node: n.self})
	case n.config.Heal:
		if slices.Contains(cut, n.self) && !n.healed {
			out = append(out, Action{Kind: ActBlock, Node: n.self})
		}
	case !slices.Contains(cut, n.self) || n.returned:
	case !cutOff(nodes) && cut[0] == n.self:
		out = append(out, Action{Kind: ActCut, Node: n.self})
	case cutOff(nodes) && !n.blocked:
		out = append(out, Action{Kind: ActBlock, Node: n.self})
	}
	if apart(nodes, n) {
		out = append(out, Action{Kind: ActEnd, Node: n.self})
	}
	return out
}

// giveBirth makes the node one that knows nothing and waits to be let in. Its programs do not come
// back, and what was on its way to or from the one before goes nowhere.
func (n *Node) giveBirth() {
	rules := n.config.Engine(n.self)
	rules.Outside = true
	n.standing = standing{outside: true, cut: n.cut, returned: true, alone: true, moves: n.moves}
	n.engine = protocol.New(rules)
}

// Forgets reports whether an action takes a message out of the network: those of a node that has
// ended go with it, at the latest when another one comes.
func (a *Action) Forgets(m *protocol.Message) bool {
	return a.Kind == ActReturn && (m.From == a.Node || m.To == a.Node)
}

// block has the node grant nothing any more.
func (n *Node) block(now protocol.Time, out *Outcome) {
	n.blocked = true
	if n.config.Words && n.config.Plant != WordsWithoutQuorum {
		n.words.Block(wordHost{n, now, out})
	}
}

// heal has the node grant again, and tells what it has kept back, as package node does.
func (n *Node) heal(out *Outcome) {
	n.blocked, n.healed = false, true
	n.words.Unblock()
	granted := n.granted
	n.granted = nil
	for i := range granted {
		g := &granted[i]
		n.answer(&protocol.Effect{Kind: protocol.EffectComplete, Client: g.client, Ticket: g.ticket, Status: g.status, Rank: g.rank, Payload: g.payload}, out)
	}
}

// end ends a node that is cut off.
func (n *Node) end(out *Outcome) {
	moves := n.moves
	n.depart(out)
	n.moves = moves // the others know already
	out.Retired = append(out.Retired, Retirement{Kind: RetireEnd, Node: n.self})
}

// goesOn reports whether a thread of a node that grants nothing can do an action: it uses pages
// that it has, takes what its control page has, gives back what it holds, and dies.
func goesOn(a *Action) bool {
	switch a.Kind {
	case ActAccess, ActTake, ActDie, ActCancel:
		return true
	}
	return a.Kind == ActCall && (a.Op.Kind == OpUnlock || a.Op.Kind == OpRUnlock)
}

// holdAnswer keeps an answer that grants something, if the node grants nothing, and says whether it
// did.
func (n *Node) holdAnswer(e *protocol.Effect) bool {
	if !n.blocked || e.Status != protocol.StatusOK && e.Status != protocol.StatusOwnerDied || n.config.Plant == GrantedWithoutQuorum {
		return false
	}
	n.granted = append(n.granted, grantHeld{e.Client, e.Ticket, e.Status, e.Rank, bytes.Clone(e.Payload)})
	return true
}

// grantHeld is what was granted to a client that was not told.
type grantHeld struct {
	client  protocol.ClientID
	ticket  protocol.Ticket
	status  protocol.Status
	rank    uint32 // StatusOwnerDied: of the holder before
	payload []byte
}

// cancelGranted ends the wait of a thread for a lock that was granted without its being told, and
// says whether there was one. The lock is given back.
func (n *Node) cancelGranted(t *thread, now protocol.Time, out *Outcome) bool {
	i := slices.IndexFunc(n.granted, func(g grantHeld) bool { return g.client == t.spec.Client && g.ticket == t.ticket() })
	if i < 0 || t.op().Kind == OpBarrier {
		return false
	}
	g := n.granted[i]
	n.granted = slices.Delete(slices.Clone(n.granted), i, i+1)
	op := t.op()
	t.state, t.cancelled = threadReady, false
	t.attempt++
	n.step(protocol.Event{Kind: protocol.EventRelease, Now: now, Client: t.spec.Client, Object: op.Object(), Access: op.Access(), Rank: g.rank, Unrepaired: g.status == protocol.StatusOwnerDied}, nil, out)
	return true
}

// sides is what the observer knows of nodes that are cut off, and of the others.
//
// What must hold: each side is a cluster of its own. Those that are cut off see of the others
// nothing that they did after they went on, and the others nothing that was done by those when all
// had gone on. Of each page, at most one side stores from the parting on. A lock may be held on
// both sides only if the others were told that it may be, and it is obtained by nobody whose daemon
// knows that it has no quorum.
type sides struct {
	cut, allOn bool // the others have all gone on
	// beside Ledger.pages: 1 + the version that was the last on both sides, once the others have
	// stored
	frozen []uint32
	// beside Ledger.pages: stored to by those that are cut off, when all others had gone on
	theirs []bool
}

func (s *sides) clone() sides {
	c := *s
	c.frozen, c.theirs = slices.Clone(s.frozen), slices.Clone(s.theirs)
	return c
}

func (s *sides) appendState(b []byte) []byte {
	if s.frozen == nil {
		return b
	}
	b = append(b, flag(s.cut)|flag(s.allOn)<<1)
	for i := range s.frozen {
		b = append(b, byte(s.frozen[i]), flag(s.theirs[i]))
	}
	return b
}

// isApart reports whether a node is cut off.
func (l *Ledger) isApart(n protocol.NodeID) bool {
	return l.sides.cut && slices.Contains(l.config.Cut, n)
}

// noteSides notes who has gone on.
func (l *Ledger) noteSides(nodes []*Node) {
	if s := &l.sides; s.frozen != nil && cutOff(nodes) {
		s.allOn = !slices.ContainsFunc(alive(nodes), func(n *Node) bool { return !n.alone })
	}
}

// cutOff notes that nodes are cut off.
func (l *Ledger) cutOff() {
	l.crashed, l.sides.cut = true, true
	for i, o := range l.pages {
		for _, n := range l.config.Cut {
			l.risked[i] = l.risked[i] || l.left || l.config.touches(n, o)
		}
	}
	for i := range l.names {
		l.names[i].drop(func(h holder) bool { return slices.Contains(l.config.Cut, h.node) })
	}
	for i := range l.locks {
		l.locks[i].crashes++
	}
}

// ended notes that a node that was cut off is ended. Who obtains a lock then that it held is told.
func (l *Ledger) ended(r *Retirement) {
	for i := range l.locks {
		s := &l.locks[i]
		s.holders = slices.DeleteFunc(s.holders, func(h holder) bool {
			if h.node == r.Node && h.access == protocol.Write && !s.apart {
				s.markDeath(protocol.LostRank(r.Node))
			}
			return h.node == r.Node
		})
	}
}

// accessApart checks an access on a node that is cut off.
func (l *Ledger) accessApart(i int, r *Retirement) *Violation {
	s := &l.sides
	want := l.versions[i]
	if s.frozen[i] != 0 {
		want = s.frozen[i] - 1
	}
	if r.Contents != want {
		return violated(RuleSides, "thread %d on node %d, which is cut off: %v found version %d; the last that its side has is %d", r.Thread, r.Node, r.Op, r.Contents, want)
	}
	if r.Op.Kind != OpWrite {
		return nil
	}
	if s.frozen[i] != 0 {
		return violated(RuleSides, "thread %d on node %d, which is cut off: %v, and the others have stored to the page since", r.Thread, r.Node, r.Op)
	}
	l.versions[i]++
	s.theirs[i] = s.theirs[i] || s.allOn
	return nil
}

// accessBeside checks an access on a node that is not cut off.
func (l *Ledger) accessBeside(i int, r *Retirement) *Violation {
	s := &l.sides
	if s.theirs[i] {
		return violated(RuleSides, "thread %d on node %d: %v sees a page that has been stored to by those who are cut off", r.Thread, r.Node, r.Op)
	}
	if r.Op.Kind == OpWrite && r.Alone && s.frozen[i] == 0 {
		s.frozen[i] = l.versions[i] + 1
	}
	return nil
}

// acrossSides says what is wrong with a lock that is obtained on one side, of which there is a
// holder on the other.
func (l *Ledger) acrossSides(s *lockState, h *holder, r *Retirement) bool {
	if l.isApart(r.Node) {
		switch {
		case r.Op.Access() == protocol.Write:
			return !s.apart
		case h.access == protocol.Write:
			return !h.alone
		}
		return false
	}
	switch {
	case h.access == protocol.Write:
		// any of those that are lost: a lock may go from one to another while they are cut off
		_, node := protocol.LostNode(r.OwnerRank)
		told := r.Status == protocol.StatusOwnerDied && node
		return !r.Alone || !told && !s.apart
	case r.Op.Access() == protocol.Write:
		return !r.Alone
	}
	return false
}
