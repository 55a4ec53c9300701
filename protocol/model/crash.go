package model

import (
	"slices"

	"dsmd/protocol"
)

// NewNodes makes all nodes of a cluster. If memberships may change, all pages are memory that a client of each node has bound beforehand, unless
// the programs bind memory themselves: an engine knows of no other that it could be lost.
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
	outside bool   // it has not come yet
	leaving bool   // it leaves, or has left
	down    bool   // it is lost, or gone
	binding bool   // it has come, and waits to be told which memory is replicated; its threads begin then
	moves   uint32 // how often that has changed; the epoch is the sum of all nodes'
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
	n.engine, n.pages, n.ops, n.holds = nil, nil, nil, nil
	for i := range n.threads {
		t := &n.threads[i]
		*t = thread{spec: t.spec, index: t.index, rank: t.rank, state: threadDead}
	}
}

// MembersNote says whether what a ledger notes of members (Ledger.NoteMembers) may be another than before.
func (n *Node) MembersNote(before *Node) bool {
	return n.standing != before.standing || n.handed != before.handed
}

// Down says whether the node is lost, or gone.
func (n *Node) Down() bool { return n.down }

// entered says whether the node works: it is not down, and has entered a view if it was outside.
func (n *Node) entered() bool {
	if n.down || n.outside {
		return false
	}
	epoch, _ := n.engine.Epoch()
	return epoch > 0 || !slices.Contains(n.config.Join, n.self)
}

// Hears says whether a message can arrive at the node. Whoever enters a view tells the others of it before anything else.
func (n *Node) Hears(f *Flight) bool {
	if f.Message.Kind != protocol.EpochMark || n.down {
		return true
	}
	epoch, _ := n.engine.Epoch()
	return epoch >= f.Message.Aux
}

// view is what all nodes would agree on now.
func view(nodes []*Node) (epoch uint32, members, homes []protocol.NodeID) {
	for _, n := range nodes {
		epoch += n.moves
		if n.down || n.outside {
			continue
		}
		members = append(members, n.self)
		if !n.leaving {
			homes = append(homes, n.self)
		}
	}
	return epoch, members, homes
}

// calm says whether some member has recovered in the present view. Then all have entered it.
func calm(nodes []*Node, epoch uint32) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool {
		if !n.entered() {
			return false
		}
		at, recovered := n.engine.Epoch()
		return at == epoch && recovered
	})
}

// allHandedOver says whether all members have handed over what they had to, and homes have what leaving members alone had.
func allHandedOver(nodes []*Node, epoch uint32) bool {
	return !slices.ContainsFunc(nodes, func(n *Node) bool { return !n.down && !n.outside && n.handed != epoch })
}

// leavesNewcomers says whether the loss of a node leaves only members that are about to come, and have not been told what there is. They make a cluster
// in which all memory is new, and the ledger knows only one.
func leavesNewcomers(nodes []*Node, lost *Node) bool {
	left := slices.DeleteFunc(alive(nodes), func(n *Node) bool { return n == lost })
	return len(left) > 0 && !slices.ContainsFunc(left, (*Node).knows)
}

// knows says whether the node was there from the start, or has recovered with the others and been told what memory there is.
func (n *Node) knows() bool {
	if !n.entered() {
		return false
	}
	_, recovered := n.engine.Epoch()
	return recovered && !n.binding || !slices.Contains(n.config.Join, n.self)
}

// Membership appends the actions that change the place of node i among the nodes, or by which it learns who they are. Only who is lost need not wait until
// the others have recovered.
func Membership(nodes []*Node, i int, out []Action) []Action {
	n := nodes[i]
	if n.down {
		return out
	}
	epoch, members, homes := view(nodes)
	if slices.Contains(n.config.Crash, n.self) && n.entered() && !leavesNewcomers(nodes, n) {
		out = append(out, Action{Kind: ActCrash, Node: n.self})
	}
	add := func(kind ActionKind, possible bool) {
		if possible && calm(nodes, epoch) {
			out = append(out, Action{Kind: kind, Node: n.self})
		}
	}
	if n.outside {
		add(ActJoin, true)
		return out
	}
	if at, _ := n.engine.Epoch(); at < epoch {
		return append(out, Action{Kind: ActEpoch, Node: n.self, Epoch: epoch, Left: members, Homes: homes})
	}
	add(ActLeave, !n.leaving && slices.Contains(n.config.Leave, n.self) && n.Done() && len(homes) > 1)
	add(ActDepart, n.leaving && allHandedOver(nodes, epoch))
	return out
}

// lose tells all threads that wait for a page that it is lost: whatever they wanted to do with it, they go on without.
func (n *Node) lose(op *operation, p *page, out *Outcome) {
	if p.access != protocol.None || p.saved || p.stashed {
		out.violate(RuleLost, "node %d is told that %v is lost, and has it", n.self, p.object)
	}
	out.Lost = append(out.Lost, p.object)
	for i := range n.threads {
		t := &n.threads[i]
		if t.state != threadBlocked || t.op().Object() != p.object {
			continue
		}
		out.Retired = append(out.Retired, n.retirement(RetireLost, t, Retirement{}))
		n.advance(t, out)
	}
	op.performed = true
}

// CheckLost checks that a page which a node is told to be lost is on none.
func CheckLost(nodes []*Node, o protocol.ObjectID) *Violation {
	for _, n := range nodes {
		if i, ok := n.search(o); ok && (n.pages[i].access != protocol.None || n.pages[i].saved || n.pages[i].stashed) {
			return violated(RuleLost, "a node is told that %v is lost, and node %d has it", o, n.self)
		}
	}
	return nil
}

// alive are the nodes that are there.
func alive(nodes []*Node) []*Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.down || n.outside })
}

// checkForgotten checks that a page that was written and that nobody has is known to be lost: it would be zeros otherwise.
func checkForgotten(nodes []*Node, home *Node, ledger *Ledger, o protocol.ObjectID) *Violation {
	if o.IsLock() || ledger.Version(o) == 0 {
		return nil
	}
	if entry, ok := home.engine.Entry(o); ok && entry.Backed {
		return ledger.checkBackup(o, nodes[entry.Owner])
	}
	if _, lost := home.engine.Lost(o); !lost {
		return violated(RuleLost, "%v has seen %d writes and is on no node, and its home, node %d, takes it for untouched", o, ledger.Version(o), home.self)
	}
	return nil
}
