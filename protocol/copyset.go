package protocol

// copyset is a set of nodes in 16 bytes, whatever the size of the cluster.
//
// Up to exactNodes nodes it is a bitmap. In larger clusters it lists up to pointerCount nodes,
// and when there are more it becomes coarse: one bit for each group of nodes, so that it may name
// nodes that are not in it. Invalidating such a node is harmless; it says that it has no
// copy. (Gupta, Weber and Mowry, "Reducing memory and traffic requirements for scalable
// directory-based cache coherence schemes", 1990.) The size is fixed because a page known to a node
// may cost at most 64 bytes there.
type copyset struct{ w [2]uint64 }

const (
	exactNodes   = 128
	pointerCount = 7
	coarseBits   = 112
	coarseTag    = 0xffff
)

func groupSize(nodes int) int { return (nodes + coarseBits - 1) / coarseBits }

// Large clusters use the words as eight 16-bit fields; the last one counts pointers, or is coarseTag.
func (s *copyset) field(i int) uint16 { return uint16(s.w[i/4] >> (16 * (i % 4))) }
func (s *copyset) setField(i int, v uint16) {
	shift := 16 * (i % 4)
	s.w[i/4] = s.w[i/4]&^(0xffff<<shift) | uint64(v)<<shift
}

// exact says whether the set names its members and nobody else.
func (s *copyset) exact(nodes int) bool {
	return nodes <= exactNodes || s.field(pointerCount) != coarseTag
}

// has says whether n may be a member; if the set is exact, whether it is.
func (s *copyset) has(n NodeID, nodes int) bool {
	if nodes <= exactNodes {
		return s.w[n/64]>>(n%64)&1 != 0
	}
	count := s.field(pointerCount)
	if count == coarseTag {
		g := int(n) / groupSize(nodes)
		return s.w[g/64]>>(g%64)&1 != 0
	}
	for i := range int(count) {
		if s.field(i) == uint16(n) {
			return true
		}
	}
	return false
}

func (s *copyset) add(n NodeID, nodes int) {
	if nodes <= exactNodes {
		s.w[n/64] |= 1 << (n % 64)
		return
	}
	if s.has(n, nodes) {
		return
	}
	count := s.field(pointerCount)
	switch {
	case count == coarseTag:
		g := int(n) / groupSize(nodes)
		s.w[g/64] |= 1 << (g % 64)
	case count < pointerCount:
		s.setField(int(count), uint16(n))
		s.setField(pointerCount, count+1)
	default:
		var old [pointerCount]NodeID
		for i := range old {
			old[i] = NodeID(s.field(i))
		}
		*s = copyset{}
		s.setField(pointerCount, coarseTag)
		for _, m := range old {
			s.add(m, nodes)
		}
		s.add(n, nodes)
	}
}

// only makes n the one member.
func (s *copyset) only(n NodeID, nodes int) {
	*s = copyset{}
	s.add(n, nodes)
}

// appendTo appends the possible members in ascending order where the set is a bitmap, else in the
// order of their joining.
func (s *copyset) appendTo(out []NodeID, nodes int) []NodeID {
	if nodes > exactNodes && s.exact(nodes) {
		for i := range int(s.field(pointerCount)) {
			out = append(out, NodeID(s.field(i)))
		}
		return out
	}
	for n := range nodes {
		if s.has(NodeID(n), nodes) {
			out = append(out, NodeID(n))
		}
	}
	return out
}
