package controlpage

// Slots is how many words a page has. Two locks with the same place cannot be published together,
// so there are many more than programs commonly have locks; those that are never used take up no
// memory.
const Slots = 1 << slotBits

const slotBits = 12

// The states of a word. The hash of the lock's name fills the bits above them; those below are
// given by the place.
const (
	none   uint64 = 0 // the whole word is 0: nothing is published here
	free   uint64 = 1 // published, and the program may take it
	held   uint64 = 2 // a goroutine of the program has taken it
	wanted uint64 = 3 // the same, and who gives it back tells the daemon
)

// Slot is the place of a lock, by the hash of its name.
func Slot(hash uint64) int { return int(hash & (Slots - 1)) }

func word(hash, state uint64) uint64 { return hash&^(Slots-1) | state }

// cell is the place of a word: *atomic.Uint64, and in tests one that is watched.
type cell interface {
	Load() uint64
	Store(uint64)
	Swap(uint64) (old uint64)
	CompareAndSwap(old, new uint64) (swapped bool)
}

// take is the program's: it takes the lock if it is published and free.
func take(c cell, hash uint64) bool {
	return c.CompareAndSwap(word(hash, free), word(hash, held))
}

// isHeld is the program's: whether one of its goroutines has the lock by way of its word.
func isHeld(c cell, hash uint64) bool {
	return isHeldWord(c.Load(), hash)
}

func isHeldWord(w, hash uint64) bool { return w == word(hash, held) || w == word(hash, wanted) }

// GivenBack is what GiveBack has done.
type GivenBack int

const (
	NotTaken GivenBack = iota // the lock is not held by way of its word
	Freed                     // it can be taken again
	Recalled                  // the daemon wants it and waits to be told (attach.OpRelease)
)

// giveBack is the program's.
func giveBack(c cell, hash uint64) GivenBack {
	switch {
	case c.CompareAndSwap(word(hash, held), word(hash, free)):
		return Freed
	case c.CompareAndSwap(word(hash, wanted), none):
		return Recalled
	}
	return NotTaken
}

// publish is the daemon's. Preconditions: it has published nothing in the place.
func publish(c cell, hash uint64) { c.Store(word(hash, free)) }

// Found is what Recall has found.
type Found int

const (
	FoundFree Found = iota // nobody has the lock. Nothing is published here any more
	FoundHeld              // the program has it, and will say when it gives it back
	// the program has written here what no operation writes. Nothing is published here any more
	FoundWrong
)

// recall is the daemon's. Preconditions: it has published the lock, and not recalled it.
func recall(c cell, hash uint64) Found {
	if c.CompareAndSwap(word(hash, free), none) {
		return FoundFree
	}
	switch c.Swap(word(hash, wanted)) {
	case word(hash, held):
		return FoundHeld
	case word(hash, free): // given back between the two
		c.Store(none)
		return FoundFree
	}
	c.Store(none)
	return FoundWrong
}

// withdraw is the daemon's, for a program that has ended, or has said that it gives the lock back.
// It reports whether the lock was published and free.
func withdraw(c cell, hash uint64) bool { return c.Swap(none) == word(hash, free) }

// Word is a word that lies in no page, for models of a program and its daemon: the same steps, none
// of which anybody interrupts.
type Word uint64

func (w *Word) Load() uint64   { return uint64(*w) }
func (w *Word) Store(v uint64) { *w = Word(v) }
func (w *Word) Swap(v uint64) (old uint64) {
	old, *w = uint64(*w), Word(v)
	return old
}
func (w *Word) CompareAndSwap(old, new uint64) (swapped bool) {
	if uint64(*w) != old {
		return false
	}
	*w = Word(new)
	return true
}

// Take is Page.Take, and so on.
func (w *Word) Take(hash uint64) bool          { return take(w, hash) }
func (w *Word) GiveBack(hash uint64) GivenBack { return giveBack(w, hash) }
func (w *Word) Publish(hash uint64)            { publish(w, hash) }
func (w *Word) Recall(hash uint64) Found       { return recall(w, hash) }
func (w *Word) Withdraw(hash uint64) bool      { return withdraw(w, hash) }

// Free reports whether the program can take the lock.
func (w *Word) Free(hash uint64) bool { return uint64(*w) == word(hash, free) }
