package protocol

// copyset is a set of nodes in 16 bytes, whatever the size of the cluster. It belongs to a
// directory entry, so the node that keeps it is the home.
//
// Up to Config.ExactNodes nodes it is a bitmap. In larger clusters it lists up to Config.Pointers
// nodes, and when there are more it becomes coarse: one bit for each group of Config.GroupNodes
// nodes, so that it may name nodes that are not in it. Invalidating such a node is harmless; it
// says that it has no copy. Who is no member would say nothing: see sharersOf. Who has the only
// copy is always known exactly, so that nobody is told to give up a copy that it has not, while it
// is told so for the writer before. (Gupta, Weber and Mowry, "Reducing memory and traffic
// requirements for scalable directory-based cache coherence schemes", 1990.) Of the home it is
// certain even then, by a bit of its own: a home that knows that it has a copy supplies all readers
// itself. The size is fixed because a page known to a node may cost at most 64 bytes there.
type copyset struct{ w [2]uint64 }

// Large clusters use the low 60 bits of both words, either for pointers or as one array of bits,
// and the high bits of the second word as a tag: how many pointers there are, or coarseTag.
const (
	// DefaultExactNodes is Config.ExactNodes when none is given, and DefaultPointers is
	// Config.Pointers: as many as there is room for.
	DefaultExactNodes = 128
	DefaultPointers   = 2 * pointersPerWord

	pointerBits = 10             // as many as a NodeID below MaxNodes needs
	coarseBits  = 2*wordBits - 1 // of groups; the last bit is the home's
	coarseTag   = 1<<(64-wordBits) - 1

	wordBits        = 60
	pointersPerWord = wordBits / pointerBits
)

// Does not compile unless the tag tells all numbers of pointers from coarseTag, and a pointer tells
// all nodes apart.
var _ = [1]struct{}{}[(DefaultPointers/coarseTag)+(MaxNodes-1)>>pointerBits]

// smallestGroup is how many nodes a group has at least, so that there is a bit for each group.
func (c *Config) smallestGroup() int { return (c.Nodes + coarseBits - 1) / coarseBits }

// isLarge reports whether copysets may be coarse.
func (c *Config) isLarge() bool { return c.Nodes > c.ExactNodes }

func (s *copyset) tag() int { return int(s.w[1] >> wordBits) }
func (s *copyset) setTag(t int) {
	s.w[1] = s.w[1]&(1<<wordBits-1) | uint64(t)<<wordBits
}

func (s *copyset) pointer(i int) NodeID {
	return NodeID(s.w[i/pointersPerWord] >> (i % pointersPerWord * pointerBits) & (1<<pointerBits - 1))
}

// addPointer appends a node. Preconditions: there are less than DefaultPointers, so that the place
// is free and zero.
func (s *copyset) addPointer(n NodeID) {
	i := s.tag()
	s.w[i/pointersPerWord] |= uint64(n) << (i % pointersPerWord * pointerBits)
	s.setTag(i + 1)
}

// coarseBit is the place of a node's bit in a coarse set: the word and the mask.
func coarseBit(n NodeID, c *Config) (word int, mask uint64) {
	bit := coarseBits
	if n != c.Self {
		bit = int(n) / c.GroupNodes
	}
	return bit / wordBits, 1 << (bit % wordBits)
}

// exact reports whether the set names its members and nobody else.
func (s *copyset) exact(c *Config) bool { return !c.isLarge() || s.tag() != coarseTag }

// certain reports whether n is a member for sure.
func (s *copyset) certain(n NodeID, c *Config) bool {
	return s.has(n, c) && (s.exact(c) || n == c.Self)
}

// has reports whether n may be a member; if the set is exact or n is the home, whether it is.
func (s *copyset) has(n NodeID, c *Config) bool {
	if !c.isLarge() {
		return s.w[n/64]>>(n%64)&1 != 0
	}
	if s.tag() == coarseTag {
		word, mask := coarseBit(n, c)
		return s.w[word]&mask != 0
	}
	for i := range s.tag() {
		if s.pointer(i) == n {
			return true
		}
	}
	return false
}

func (s *copyset) add(n NodeID, c *Config) {
	if !c.isLarge() {
		s.w[n/64] |= 1 << (n % 64)
		return
	}
	if s.has(n, c) {
		return
	}
	switch t := s.tag(); {
	case t == coarseTag:
		word, mask := coarseBit(n, c)
		s.w[word] |= mask
	case t < c.Pointers:
		s.addPointer(n)
	default:
		old := *s
		*s = copyset{}
		s.setTag(coarseTag)
		for i := range t {
			s.add(old.pointer(i), c)
		}
		s.add(n, c)
	}
}

// only makes n the one member.
func (s *copyset) only(n NodeID, c *Config) {
	*s = copyset{}
	s.add(n, c)
}

// appendTo appends the possible members in ascending order where the set is a bitmap, else in the
// order of their joining.
func (s *copyset) appendTo(out []NodeID, c *Config) []NodeID {
	if c.isLarge() && s.exact(c) {
		for i := range s.tag() {
			out = append(out, s.pointer(i))
		}
		return out
	}
	for n := range c.Nodes {
		if s.has(NodeID(n), c) {
			out = append(out, NodeID(n))
		}
	}
	return out
}
