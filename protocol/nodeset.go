package protocol

// nodeSet is an exact set of nodes, one bit for each. For the few places that need one: a page's
// copyset is smaller.
type nodeSet []uint64

// allNodes has the nodes below n.
func allNodes(n int) nodeSet {
	s := make(nodeSet, (n+63)/64)
	for i := range n {
		s[i/64] |= 1 << (i % 64)
	}
	return s
}

// has reports whether a node is in.
func (s nodeSet) has(n NodeID) bool { return s[n/64]>>(n%64)&1 != 0 }

// remove takes out a node and says whether it was in.
func (s nodeSet) remove(n NodeID) bool {
	word, bit := &s[n/64], uint64(1)<<(n%64)
	was := *word&bit != 0
	*word &^= bit
	return was
}

func (s nodeSet) empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}
