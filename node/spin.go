package node

import "time"

// spinner decides how long the reactor polls before it sleeps.
//
// Sleeping costs a wake-up when the next event comes; polling costs a core that a program could use. The
// best choice without knowing the future is to poll about as long as a wake-up costs. Better is to learn: when
// sleeps turn out short, polling a little longer would have caught the event, so the budget grows; when polling
// was in vain and the sleep then was long, it shrinks.
// When the reactor finds that it was off its core while it polled, somebody else needs the core: then it
// does not poll for a while.
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
	// stolenAfter is the time between two looks after which somebody else must have had the core.
	stolenAfter = 30 * time.Microsecond
	// spinPause is for how long polling is off then: some scheduler slices.
	spinPause = 10 * time.Millisecond
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
