package model

import (
	"slices"

	"dsmd/internal/lockwords"
	"dsmd/protocol"
)

// NewNodes makes all nodes of a cluster. If memberships may change, all pages are memory that a
// client of each node has bound beforehand, unless the programs bind memory themselves: an engine
// knows of no other that it could be lost.
func NewNodes(config *Config) []*Node {
	var nodes []*Node
	for i := range config.Nodes {
		nodes = append(nodes, NewNode(config, protocol.NodeID(i)))
	}
	if config.Changes() && !config.binds() {
		for _, n := range nodes {
			bindAll(nodes[0], n, config)
		}
	}
	if len(config.Join) > 0 {
		sendAway(nodes, config)
	}
	return nodes
}

// sendAway makes those leave that are to come later.
func sendAway(nodes []*Node, config *Config) {
	for _, id := range config.Join {
		nodes[id].leaving = true
		nodes[id].moves++
	}
	enter(nodes)
	for _, id := range config.Join {
		rules := config.Engine(id)
		rules.Outside = true
		nodes[id].standing = standing{outside: true, moves: 2}
		nodes[id].engine = protocol.New(rules)
	}
	enter(nodes)
}

// enter has all members enter the present view, and recover.
func enter(nodes []*Node) {
	epoch, members, homes := view(nodes)
	var sent []protocol.Message
	step := func(n *Node, ev protocol.Event) {
		for _, e := range n.engine.Step(ev, nil) {
			if e.Kind == protocol.EffectSend {
				sent = append(sent, e.Message)
			}
		}
	}
	for _, id := range members {
		step(nodes[id], protocol.Event{Kind: protocol.EventEpoch, Epoch: epoch, Members: members, Homes: homes})
	}
	for len(sent) > 0 {
		m := sent[0]
		sent = sent[1:]
		step(nodes[m.To], protocol.Event{Kind: protocol.EventMessage, Message: &m})
	}
}

// bystander is the client that has bound all pages on each node.
const bystander protocol.ClientID = 1 << 31

func bindAll(directory, n *Node, config *Config) {
	ask := n.engine.Step(bind(config), nil)
	if n == directory {
		return // it has answered itself
	}
	answer := directory.engine.Step(protocol.Event{Kind: protocol.EventMessage, Message: &ask[0].Message}, nil)
	n.engine.Step(protocol.Event{Kind: protocol.EventMessage, Message: &answer[0].Message}, nil)
}

// bind is the event by which it does.
func bind(config *Config) protocol.Event {
	call := protocol.NameCall{Op: protocol.Bind, Client: bystander, Pages: config.Pages, Replicas: config.Replicas, Name: "all"}
	return protocol.Event{Kind: protocol.EventName, Client: bystander, Ticket: 1, Payload: call.Append(nil)}
}

// standing is a node's place among the nodes. The others learn of it by the next view.
type standing struct {
	outside bool // it has not come yet
	leaving bool // it leaves, or has left
	told    bool // it has entered a view in which it is leaving
	down    bool // it is lost, or gone
	// it has come, and waits to be told which memory is replicated; its threads begin then
	binding bool
	// the others go on without it, and those that are cut off with it: of the first of them
	cut      bool
	blocked  bool   // it knows that it has no quorum
	healed   bool   // it had no quorum, and found one again
	returned bool   // it was, and has ended, and this is another one
	alone    bool   // it has gone on without those that are cut off
	left     uint32 // it has left in order, in the view of that epoch
	moves    uint32 // how often that has changed; the epoch is the sum of all nodes'
}

// crash loses the node.
func (n *Node) crash(out *Outcome) {
	out.Retired = append(out.Retired, Retirement{Kind: RetireCrash, Node: n.self})
	n.depart(out)
}

// depart ends the node, and nobody is told that anything is lost.
func (n *Node) depart(*Outcome) {
	n.down, n.handed = true, 0
	n.moves++
	n.engine, n.pages, n.ops, n.holds, n.granted = nil, nil, nil, nil, nil
	n.words, n.cells, n.expelled = lockwords.Words{}, nil, 0
	for i := range n.threads {
		t := &n.threads[i]
		*t = thread{spec: t.spec, index: t.index, rank: t.rank, state: threadDead}
	}
}

// MembersNote reports whether what a ledger notes of members (Ledger.NoteMembers) may be another
// than before.
func (n *Node) MembersNote(before *Node) bool {
	return n.standing != before.standing || n.handed != before.handed
}

// Down reports whether the node is lost, or gone.
func (n *Node) Down() bool { return n.down }

// entered reports whether the node works: it is not down, and has entered a view if it was outside.
func (n *Node) entered() bool {
	if n.down || n.outside {
		return false
	}
	epoch, _ := n.engine.Epoch()
	return epoch > 0 || !n.comes()
}

// comes reports whether the node was not there from the start.
func (n *Node) comes() bool { return n.returned || slices.Contains(n.config.Join, n.self) }

// Hears reports whether a message can arrive at the node. Whoever enters a view tells the others of
// it before anything else.
func (n *Node) Hears(f *Flight) bool {
	if f.Message.Kind != protocol.KindEpochMarker || n.down || n.blocked {
		return true
	}
	epoch, _ := n.engine.Epoch()
	return epoch >= epochOf(&f.Message)
}

// view is what all nodes would agree on now.
func view(nodes []*Node) (epoch uint32, members, homes []protocol.NodeID) {
	for _, n := range nodes {
		epoch += n.moves
		if n.down || n.outside || apart(nodes, n) {
			continue
		}
		members = append(members, n.self)
		if !n.leaving {
			homes = append(homes, n.self)
		}
	}
	return epoch, members, homes
}

// orderly reports whether all have left in order that are members to a node, and are no longer.
func orderly(n *Node, nodes []*Node) bool {
	epoch, _ := n.engine.Epoch()
	return !slices.ContainsFunc(nodes, func(m *Node) bool {
		return protocol.IsMember(n.engine, m.self) && (m.down && (m.left == 0 || m.left != epoch) || apart(nodes, m))
	})
}

// calm reports whether some member has recovered in the present view. Then all have entered it.
func calm(nodes []*Node, epoch uint32) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool {
		if !n.entered() {
			return false
		}
		at, recovered := n.engine.Epoch()
		return at == epoch && recovered
	})
}

// undecided is the epoch of the last view that somebody has entered, if it is not the present one
// and some member has recovered in it: then the present view may still be another, and others
// leave, or are gone, by the same one. Clusters in which two leave do so together, too.
func undecided(nodes []*Node, epoch uint32) (uint32, bool) {
	latest := uint32(0)
	for _, n := range nodes {
		if n.entered() {
			at, _ := n.engine.Epoch()
			latest = max(latest, at)
		}
	}
	return latest, len(nodes[0].config.Leave) > 1 && latest < epoch && calm(nodes, latest)
}

// allHandedOver reports whether all members have handed over what they had to, and homes have what
// leaving members alone had.
func allHandedOver(nodes []*Node, epoch uint32) bool {
	return !slices.ContainsFunc(nodes, func(n *Node) bool { return !n.down && !n.outside && !apart(nodes, n) && n.handed != epoch })
}

// leavesNewcomers reports whether the loss of a node leaves only members that are about to come,
// and have not been told what there is. They make a cluster in which all memory is new, and the
// ledger knows only one.
func leavesNewcomers(nodes []*Node, lost *Node) bool {
	left := slices.DeleteFunc(alive(nodes), func(n *Node) bool { return n == lost })
	return len(left) > 0 && !slices.ContainsFunc(left, (*Node).knows)
}

// knows reports whether the node was there from the start, or has recovered with the others and
// been told what memory there is.
func (n *Node) knows() bool {
	if !n.entered() {
		return false
	}
	_, recovered := n.engine.Epoch()
	return recovered && !n.binding || !n.comes()
}

// Membership appends the actions that change the place of node i among the nodes, or by which it
// learns who they are. Only who is lost need not wait until the others have recovered.
func Membership(nodes []*Node, i int, out []Action) []Action {
	n := nodes[i]
	if n.down {
		if n.config.Return && apart(nodes, n) {
			out = append(out, Action{Kind: ActReturn, Node: n.self})
		}
		return out
	}
	out = n.minorityActions(nodes, out)
	if apart(nodes, n) {
		return out
	}
	epoch, members, homes := view(nodes)
	if slices.Contains(n.config.Crash, n.self) && n.entered() && !leavesNewcomers(nodes, n) {
		out = append(out, Action{Kind: ActCrash, Node: n.self})
	}
	latest, possible := epoch, func() bool { return calm(nodes, epoch) }
	add := func(kind ActionKind, wanted bool) {
		if wanted && possible() {
			out = append(out, Action{Kind: kind, Node: n.self})
		}
	}
	if n.outside {
		add(ActJoin, true)
		return out
	}
	if at, _ := n.engine.Epoch(); at < epoch {
		out = append(out, Action{Kind: ActEpoch, Node: n.self, Epoch: epoch, Left: members, Homes: homes, Apart: cutOff(nodes), Orderly: orderly(n, nodes)})
		last, open := undecided(nodes, epoch)
		latest, possible = last, func() bool { return open }
	}
	add(ActLeave, !n.leaving && slices.Contains(n.config.Leave, n.self) && n.Done() && len(homes) > 1)
	add(ActDepart, n.told && allHandedOver(nodes, latest))
	return out
}

// CheckLost checks that a page which a node is told to be lost is on none. Of one that has begun
// anew it may be told late.
func CheckLost(l *Ledger, nodes []*Node, o protocol.ObjectID) *Violation {
	if i, ok := slices.BinarySearch(l.pages, o); ok && l.begun[i] {
		return nil
	}
	for _, n := range alive(nodes) {
		if i, ok := n.search(o); ok && (n.pages[i].access != protocol.None || n.pages[i].saved || n.pages[i].stashed) {
			return violated(RuleLost, "a node is told that %v is lost, and node %d has it", o, n.self)
		}
	}
	return nil
}

// mayBeLost reports whether a page may be lost: a node was that may have had it, or a node was and
// nobody has written to the page, of which the others need not know. Nodes that leave take nothing
// with them.
func (l *Ledger) mayBeLost(i int) bool { return l.risked[i] || l.crashed && l.versions[i] == 0 }

// checkLoss checks that a page of which a thread is told that it is lost may be, and was not to
// survive that.
func (l *Ledger) checkLoss(r *Retirement, i int) *Violation {
	x := &l.replicas
	switch {
	case !l.mayBeLost(i):
		return violated(RuleLost, "thread %d on node %d: %v is lost, and no node was that has had the page", r.Thread, r.Node, r.Op)
	case r.Kind == RetireLost && l.replicas.mustBegin(i, l.config):
		return violated(RuleReplica, "thread %d on node %d: %v is lost, and nobody has committed it", r.Thread, r.Node, r.Op)
	case x.pages == nil || x.pages[i].floor == 0 || x.crashes > x.pages[i].until:
		return nil
	}
	return violated(RuleReplica, "thread %d on node %d: %v is lost, and version %d of it was to survive the loss of %d nodes; %d are lost",
		r.Thread, r.Node, r.Op, x.pages[i].floor, x.pages[i].until, x.crashes)
}

// beginPage notes that a page has come with what it begins with. If somebody has written to it, it
// begins anew, which a page does only that may be lost, and what was written is as if it had never
// been.
func beginPage(l *Ledger, r *Retirement) *Violation {
	i, _ := slices.BinarySearch(l.pages, r.Op.Object())
	l.lost[i], l.begun[i] = false, l.begun[i] || l.mayBeLost(i)
	if l.versions[i] == 0 {
		return nil
	}
	if v := l.checkLoss(r, i); v != nil {
		return v
	}
	l.versions[i] = 0
	l.replicas.begin(i, l.spare())
	return nil
}

// alive are the nodes that are there.
func alive(nodes []*Node) []*Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.down || n.outside || apart(nodes, n) })
}

// checkForgotten checks that a page that was written and that nobody has is known to be lost, and
// may be: it would be zeros otherwise.
func checkForgotten(nodes []*Node, home *Node, ledger *Ledger, o protocol.ObjectID) *Violation {
	_, lost := home.engine.Lost(o)
	switch {
	case o.IsLock():
		return nil
	case lost && !ledger.mayBeLost(slices.Index(ledger.pages, o)):
		return violated(RuleLost, "%v is lost, as its home, node %d, says, and no node was that has had it", o, home.self)
	case ledger.Version(o) == 0:
		return nil
	}
	if entry, ok := home.engine.Entry(o); ok && entry.Backed {
		return ledger.checkBackup(o, nodes[entry.Owner])
	}
	if !lost && !ledger.replicas.isUncommitted(slices.Index(ledger.pages, o)) {
		return violated(RuleLost, "%v has seen %d writes and is on no node, and its home, node %d, takes it for untouched", o, ledger.Version(o), home.self)
	}
	return nil
}
