package protocol

import "slices"

// In large clusters barriers are trees: what goes to a barrier's home, and what comes from it,
// passes through other nodes, which put together what goes the same way (relay.go). The tree of a
// home is a function of the view alone, so all members have the same one in an epoch: they stand in
// a row that begins with the home and goes round in the order of members, and the one at position p
// > 0 has the one at (p-1)/arity above it.
const (
	// DefaultTreeFrom is Config.TreeFrom when none is given, and DefaultTreeArity is
	// Config.TreeArity: see docs/decisions/0027-barriers-as-trees.md.
	DefaultTreeFrom  = 32
	DefaultTreeArity = 4
	// MaxTreeArity bounds Config.TreeArity: sets of children are bits of one word.
	MaxTreeArity = 64
)

// memberCount is how many members there are.
func (e *env) memberCount() int {
	if e.view.members == nil {
		return e.cfg.Nodes
	}
	return len(e.view.members)
}

// usesTrees reports whether barriers may be trees in the view in force.
func (e *env) usesTrees() bool { return e.memberCount() >= e.cfg.TreeFrom }

// usesTree reports whether a barrier of so many parties is one. With few it would only have longer
// ways.
func (e *env) usesTree(parties int) bool { return parties >= e.cfg.TreeFrom && e.usesTrees() }

// index is a node's place in the order of members; -1 if it is none.
func (e *env) index(n NodeID) int {
	if e.view.members == nil {
		if int(n) < e.cfg.Nodes {
			return int(n)
		}
		return -1
	}
	if i, ok := slices.BinarySearch(e.view.members, n); ok {
		return i
	}
	return -1
}

// tree is the tree of a root, which is a member, without one other node.
type tree struct {
	*env
	root, without NodeID
}

// tree is the tree of a root with all members in it.
func (e *env) tree(root NodeID) tree { return tree{e, root, NoNode} }

// size is how many nodes are in the tree.
func (t tree) size() int {
	if t.without == NoNode {
		return t.memberCount()
	}
	return t.memberCount() - 1
}

// steps is how many steps a member is behind the root in the order of members, going round; -1 if
// one of them is no member.
func (t tree) steps(n NodeID) int {
	i, first := t.index(n), t.index(t.root)
	if i < 0 || first < 0 {
		return -1
	}
	return (i - first + t.memberCount()) % t.memberCount()
}

// position is where a node stands in the tree; -1 if it is not in it.
func (t tree) position(n NodeID) int {
	p := t.steps(n)
	if t.without != NoNode && p >= 0 {
		switch left := t.steps(t.without); {
		case p == left:
			return -1
		case p > left:
			return p - 1
		}
	}
	return p
}

// at is who stands at a position.
func (t tree) at(position int) NodeID {
	if t.without != NoNode && position >= t.steps(t.without) {
		position++
	}
	i := (t.index(t.root) + position) % t.memberCount()
	if t.view.members == nil {
		return NodeID(i)
	}
	return t.view.members[i]
}

// above is the next node on this node's way to the root. Preconditions: this node is in the tree,
// and another than the root.
func (t tree) above() NodeID { return t.at((t.position(t.cfg.Self) - 1) / t.cfg.TreeArity) }

// branch is in which of the branches below this node another node is: from 0; -1 if it is in none.
func (t tree) branch(n NodeID) int {
	self, p, arity := t.position(t.cfg.Self), t.position(n), t.cfg.TreeArity
	if self < 0 {
		return -1
	}
	for p > self {
		next := (p - 1) / arity
		if next == self {
			return (p - 1) % arity
		}
		p = next
	}
	return -1
}

// below is who begins a branch below this node.
func (t tree) below(branch int) NodeID {
	return t.at(t.position(t.cfg.Self)*t.cfg.TreeArity + 1 + branch)
}

// children are those directly below this node.
func (t tree) children() (all []NodeID) {
	first := t.position(t.cfg.Self)*t.cfg.TreeArity + 1
	for p := first; p < min(first+t.cfg.TreeArity, t.size()); p++ {
		all = append(all, t.at(p))
	}
	return all
}

// childOf says in which branch a node is directly below this one; -1 if it is not.
func (t tree) childOf(n NodeID) int {
	if b := t.branch(n); b >= 0 && t.below(b) == n {
		return b
	}
	return -1
}
