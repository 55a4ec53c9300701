package node

import "time"

// spinner decides how long the reactor polls before it sleeps.
//
// Sleeping costs a wake-up when the next event comes; polling costs a core that a program could use. The
// best choice without knowing the future is to poll about as long as a wake-up costs. Better is to learn: when
// sleeps turn out short, polling a little longer would have caught the event, so the budget grows; when polling
// was in vain and the sleep then was long, it shrinks.
// After each vain look the reactor offers its core to others. When it gets it back late, somebody else has a use for it, a program that
// computes or another reactor that polls; then it does not poll for a while, and the next wake-up can find it a better core.
type spinner struct {
	max      time.Duration // 0: never poll
	budget   time.Duration
	pausedTo time.Duration // clock reading until which polling is off
}

const (
	// defaultSpin is what polling may cost at most, about two wake-ups of an idle virtual core.
	defaultSpin = 50 * time.Microsecond
	// minSpin is the least budget that is worth polling for: a few empty looks.
	minSpin = 2 * time.Microsecond
	// stolenAfter is the time between two looks after which somebody else must have had the core: a look takes 1 to 2 µs, and two
	// reactors that poll on one core in turn see each other after 4 or more.
	stolenAfter = 5 * time.Microsecond
	// spinPause is for how long polling is off then. Short, because an interrupt looks the same, and each remote page that is waited for
	// asleep costs several wake-ups; long beside the few microseconds that finding out again costs.
	spinPause = 200 * time.Microsecond
)

func newSpinner(limit time.Duration) spinner {
	switch {
	case limit < 0:
		limit = 0
	case limit == 0:
		limit = defaultSpin
	}
	return spinner{max: limit, budget: limit}
}

// until returns for how long after the last event to poll.
func (s *spinner) until(now time.Duration) time.Duration {
	if now < s.pausedTo {
		return 0
	}
	return s.budget
}

// looked says that two looks in a row without an event were this far apart.
func (s *spinner) looked(now, apart time.Duration) {
	if apart > stolenAfter {
		s.pausedTo = now + spinPause
	}
}

// slept says how long the reactor slept after it had polled in vain.
func (s *spinner) slept(d time.Duration) {
	switch {
	case s.max == 0:
	case d < s.max:
		s.budget = min(max(2*s.budget, minSpin), s.max)
	case d > 4*s.max:
		if s.budget /= 2; s.budget < minSpin {
			s.budget = 0
		}
	}
}
