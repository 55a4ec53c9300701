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

// position is where a node stands in the tree of a home; -1 if one of them is no member.
func (e *env) position(n, root NodeID) int {
	i, first := e.index(n), e.index(root)
	if i < 0 || first < 0 {
		return -1
	}
	return (i - first + e.memberCount()) % e.memberCount()
}

// at is who stands at a position in the tree of a home that is a member.
func (e *env) at(position int, root NodeID) NodeID {
	i := (e.index(root) + position) % e.memberCount()
	if e.view.members == nil {
		return NodeID(i)
	}
	return e.view.members[i]
}

// above is the next node on this node's way to a home. Preconditions: the home is a member, and
// another node.
func (e *env) above(root NodeID) NodeID {
	return e.at((e.position(e.cfg.Self, root)-1)/e.cfg.TreeArity, root)
}

// branch is in which of the branches below this node another node is, in the tree of a home: from
// 0; -1 if it is in none.
func (e *env) branch(n, root NodeID) int {
	self, p, arity := e.position(e.cfg.Self, root), e.position(n, root), e.cfg.TreeArity
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
func (e *env) below(branch int, root NodeID) NodeID {
	return e.at(e.position(e.cfg.Self, root)*e.cfg.TreeArity+1+branch, root)
}

// childOf says in which branch a node is directly below this one; -1 if it is not.
func (e *env) childOf(n, root NodeID) int {
	if b := e.branch(n, root); b >= 0 && e.below(b, root) == n {
		return b
	}
	return -1
}
