package protocol

import "fmt"

// Limits on what an engine remembers for programs and peers. Pages need none: a region has so many and no more. Everything else that
// somebody can make up (names, tickets) is bounded here, far above what jobs use, so that neither a broken program nor
// a peer that lies makes a daemon eat the machine's memory.
const (
	// MaxLocks bounds the locks that a node knows, as user or home: 200 MB. More are refused: a program is told StatusNoSpace, a peer is
	// parted with.
	MaxLocks = 1 << 22
	// MaxHeld bounds the locks that one program holds or waits for, each as often as it does. More are answered by StatusNoSpace.
	MaxHeld = 1 << 18
	// MaxPending bounds the objects with something under way for which a home takes requests: 300 MB. A peer that wants more is parted with.
	MaxPending = 1 << 20
	// MaxArrivals bounds the arrivals that wait at one home of barriers. More are answered by StatusNoSpace.
	MaxArrivals = 1 << 18
	// MaxNames bounds the names of allocations, those that are being freed included: 300 MB if all have the longest signature. More are
	// answered by StatusNoSpace.
	MaxNames = 1 << 16
	// MaxUses bounds the uses of names, each by a program. More are answered by StatusNoSpace.
	MaxUses = 1 << 20
)

// limits are the constants above, but in tests, which reach them sooner.
type limits struct{ locks, held, pending, arrivals, names, uses int }

var allLimits = limits{MaxLocks, MaxHeld, MaxPending, MaxArrivals, MaxNames, MaxUses}

// holder counts what a client holds or waits for.
type holder struct {
	client ClientID
	held   int
}

// count adds d to what a client holds, and returns the sum.
func (e *Engine) count(c ClientID, d int) int {
	for i := range e.holders {
		if h := &e.holders[i]; h.client == c {
			if h.held += d; h.held == 0 {
				e.holders[i] = e.holders[len(e.holders)-1]
				e.holders = e.holders[:len(e.holders)-1]
				return 0
			}
			return h.held
		}
	}
	if d == 0 {
		return 0
	}
	e.holders = append(e.holders, holder{c, d})
	return d
}

// noLock says why a client cannot have one more lock: "" if it can.
func (e *Engine) noLock(id ObjectID, c ClientID) string {
	switch {
	case e.count(c, 0) >= e.limits.held:
		return fmt.Sprintf("this program holds or waits for %d locks already; give some back", e.limits.held)
	case !e.knowsOrCan(id):
		return fmt.Sprintf("this node knows %d locks already; use fewer names", e.limits.locks)
	}
	return ""
}

// knowsOrCan says whether an object is known, or is a page, or can become known.
func (e *Engine) knowsOrCan(id ObjectID) bool {
	return !id.IsLock() || e.objects.locks < e.limits.locks || e.objects.find(id) != nil
}
