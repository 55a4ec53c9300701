package water

import "dsmd/bench/kernel"

// A sheet is a page of forces, which one lock guards while they are added to.
type sheet struct {
	on [lockSpan]vectors
	_  [pageBytes - lockSpan*9*8]byte
}

// sheetsFor is how many sheets so many molecules take.
func sheetsFor(molecules int) int { return (molecules + lockSpan - 1) / lockSpan }

// forces are those on one thread's molecules, from number lo on. They are on sheets of their own,
// since the owner sets them without a lock.
type forces struct {
	lo     int
	sheets []sheet
	locks  []kernel.Mutex // by sheet
}

func (f forces) on(mol int) *vectors {
	i := mol - f.lo
	return &f.sheets[i/lockSpan].on[i%lockSpan]
}

// lock is the one that guards the forces on a molecule.
func (f forces) lock(mol int) kernel.Mutex { return f.locks[(mol-f.lo)/lockSpan] }

// shareForces allocates the forces of all threads, of n molecules.
func shareForces(t *kernel.Team, n int) []forces {
	all := make([]forces, t.Total)
	count := 0
	for thread := range all {
		lo, hi := t.Block(n, thread)
		count += sheetsFor(hi - lo)
	}
	sheets, locks := kernel.Share[sheet](t, "water/forces", count), t.Mutexes("water/forces", count)
	if sheets == nil {
		return all // The team has the error.
	}
	for thread := range all {
		lo, hi := t.Block(n, thread)
		count := sheetsFor(hi - lo)
		all[thread] = forces{lo, sheets[:count], locks[:count]}
		sheets, locks = sheets[count:], locks[count:]
	}
	return all
}
