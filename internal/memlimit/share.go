package memlimit

// Bounds of what a Share leaves free.
const (
	leastReserve = 32 << 20
	mostReserve  = 1 << 30
)

// Share is how much memory a node takes for pages: what it was told to, or less while others leave
// it less. It follows what is left, and does so in steps, because several nodes of one machine see
// the same.
type Share struct {
	full, now uint64
	reserve   uint64 // what is to be left free: others may want more soon
}

// NewShare returns a share of so many bytes, as long as they are there.
func NewShare(full uint64) *Share {
	return &Share{full: full, now: full, reserve: min(max(full/8, leastReserve), mostReserve)}
}

// Next says how many bytes the node may have for pages from now on, of which it has used so many,
// when so many are left beside them, and whether that is another number than before. It is never
// less than least.
func (s *Share) Next(used, left, least uint64) (bytes uint64, changed bool) {
	before := s.now
	switch {
	case left < s.reserve:
		used = min(used, s.now)
		s.now = max(used-min(used, s.reserve-left), min(least, s.full))
	case s.now < s.full && left > 2*s.reserve:
		s.now = min(s.full, s.now+(left-2*s.reserve)/2)
	}
	return s.now, s.now != before
}

// IsFull is whether the node has all that it was told to take.
func (s *Share) IsFull() bool { return s.now == s.full }
