package model

import (
	"slices"

	"dsmd/protocol"
)

// NewNodes makes all nodes of a cluster. If some may crash, all pages are memory that a client of each node has bound beforehand: an engine
// knows of no other that it could be lost.
func NewNodes(config *Config) []*Node {
	var nodes []*Node
	for i := range config.Nodes {
		nodes = append(nodes, NewNode(config, protocol.NodeID(i)))
	}
	if len(config.Crash) > 0 {
		for _, n := range nodes {
			bindAll(nodes[0], n, config.Pages)
		}
	}
	return nodes
}

// bystander is the client that has bound all pages on each node.
const bystander protocol.ClientID = 1 << 31

func bindAll(directory, n *Node, pages uint64) {
	call := protocol.NameCall{Op: protocol.Bind, Client: bystander, Pages: pages, Name: "all"}
	ask := n.engine.Step(protocol.Event{Kind: protocol.EventName, Client: bystander, Ticket: 1, Payload: call.Append(nil)}, nil)
	if n == directory {
		return // it has answered itself
	}
	answer := directory.engine.Step(protocol.Event{Kind: protocol.EventMessage, Message: &ask[0].Message}, nil)
	n.engine.Step(protocol.Event{Kind: protocol.EventMessage, Message: &answer[0].Message}, nil)
}

// crash loses the node.
func (n *Node) crash(out *Outcome) {
	out.Retired = append(out.Retired, Retirement{Kind: RetireCrash, Node: n.self})
	n.down = true
	n.engine, n.pages, n.ops, n.holds = nil, nil, nil, nil
	for i := range n.threads {
		t := &n.threads[i]
		*t = thread{spec: t.spec, index: t.index, rank: t.rank, state: threadDead}
	}
}

// Down says whether the node is lost.
func (n *Node) Down() bool { return n.down }

// NextEpoch is the action by which node i learns who is left; false if it knows.
func NextEpoch(nodes []*Node, i int) (Action, bool) {
	var left []protocol.NodeID
	for _, n := range nodes {
		if !n.down {
			left = append(left, n.self)
		}
	}
	if nodes[i].down || len(left) == len(nodes) {
		return Action{}, false
	}
	lost := uint32(len(nodes) - len(left))
	epoch, _ := nodes[i].engine.Epoch()
	return Action{Kind: ActEpoch, Node: nodes[i].self, Epoch: lost, Left: left}, epoch < lost
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

// alive are the nodes that are not lost.
func alive(nodes []*Node) []*Node {
	return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool { return n.down })
}

// checkForgotten checks that a page that was written and that nobody has is known to be lost: it would be zeros otherwise.
func checkForgotten(home *Node, ledger *Ledger, o protocol.ObjectID) *Violation {
	if o.IsLock() || ledger.Version(o) == 0 {
		return nil
	}
	if _, lost := home.engine.Lost(o); !lost {
		return violated(RuleLost, "%v has seen %d writes and is on no node, and its home, node %d, takes it for untouched", o, ledger.Version(o), home.self)
	}
	return nil
}
