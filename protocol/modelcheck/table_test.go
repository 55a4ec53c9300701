package modelcheck

import "slices"

// stateTable numbers states, which are vectors of numbers, in the order in which they are added. It
// compares whole vectors, never only their hashes: a collision would silently leave a part of the
// states unvisited.
type stateTable struct {
	words []uint32 // all vectors, one behind the other
	start []uint64 // of each state, where its vector begins; one more entry at the end
	slots []slot   // open addressing; length a power of two
}

// slot is 1 + the number of a state, or 0, and a part of its hash, by which most others are told
// apart without a look at their vectors.
type slot struct{ state, hash uint32 }

func (t *stateTable) len() int { return max(0, len(t.start)-1) }

// get returns the vector of a state. It is valid until the next add.
func (t *stateTable) get(id uint32) []uint32 { return t.words[t.start[id]:t.start[id+1]] }

// add returns the number of a state, and whether it is new.
func (t *stateTable) add(state []uint32) (uint32, bool) {
	if t.len()*2 >= len(t.slots) {
		t.grow()
	}
	hash := hashWords(state)
	mask := uint32(len(t.slots) - 1)
	i := hash & mask
	for ; t.slots[i].state != 0; i = (i + 1) & mask {
		if id := t.slots[i].state - 1; t.slots[i].hash == hash && slices.Equal(t.get(id), state) {
			return id, false
		}
	}
	t.words = append(t.words, state...)
	t.start = append(t.start, uint64(len(t.words)))
	t.slots[i] = slot{uint32(t.len()), hash}
	return uint32(t.len() - 1), true
}

func (t *stateTable) grow() {
	if t.start == nil {
		t.start = []uint64{0}
	}
	old := t.slots
	t.slots = make([]slot, max(1024, 2*len(old)))
	mask := uint32(len(t.slots) - 1)
	for _, s := range old {
		if s.state == 0 {
			continue
		}
		i := s.hash & mask
		for t.slots[i].state != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

func hashWords(words []uint32) uint32 {
	h := uint64(len(words))
	for _, w := range words {
		h = (h ^ uint64(w)) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return uint32(h)
}
