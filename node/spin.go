package node

import "time"

// spinner decides how long the reactor polls before it sleeps.
//
// Sleeping costs a wake-up when the next event comes; polling costs a core that a program could use. The
// best choice without knowing the future is to poll about as long as a wake-up costs. Better is to learn: when
// sleeps turn out short, polling a little longer would have caught the event, so the budget grows; when polling
// was in vain and the sleep then was long, it shrinks.
//
// After each vain look the reactor offers its core to others. Who takes it says what to do. One that keeps it for long computes: then
// the reactor does not poll for a while. One that takes it at every look polls too, on a core that neither needs half of: then
// the reactor moves to another core. If moving does not help, all cores are in use, and it does not poll for a while either.
type spinner struct {
	max      time.Duration // 0: never poll
	budget   time.Duration
	pausedTo time.Duration // clock reading until which polling is off
	losses   time.Duration // for how long others have had the core, less a part of the time that has passed since
	lastLoss time.Duration // clock reading when that was so

	window    int64         // how many vain looks in a row must have lost the core before it is crowded
	vain      int64         // looks without an event since displaced was read
	displaced int64         // how often somebody had taken the core by then
	settled   time.Duration // clock reading until which to stay on this core
	inVain    int           // moves in a row after which the core was crowded again soon
}

const (
	// DefaultSpin is Config.Spin when none is given: what polling may cost at most, about two wake-ups of an idle virtual core.
	DefaultSpin = 50 * time.Microsecond
	// minSpin is the least budget that is worth polling for: a few empty looks.
	minSpin = 2 * time.Microsecond
	// stolenAfter is the time between two looks after which somebody else must have computed on the core. A look takes 1 to 2 µs, and what a
	// program does between two faults in a row, or another reactor for one message, 5 to 20.
	stolenAfter = 50 * time.Microsecond
	// A pause is for how long polling is off when somebody computes on the core: pausePerLoss times as long as they kept it, so that
	// finding out again costs at most a sixteenth of the time. An interrupt, or a hypervisor that has other guests too, looks the same, but is
	// shorter than a slice of the scheduler: while no more than toleratedLoss is lost, and no more than a sixteenth of the time, polling goes on.
	// To sleep would cost each of the next events a wake-up, and wake-ups bring reactors together on one core.
	toleratedLoss, maxPause, pausePerLoss = 250 * time.Microsecond, 100 * time.Millisecond, 16
	// crowdedLooks is how many vain looks, one after another, must have lost the core to somebody, with or without events between them. A
	// program that runs from one remote fault to the next takes it at one vain look of many. A node waits for rankLooks more looks
	// for each of the nodes before it that may be on this machine, up to fourRanks, so that not all of them leave the same core together.
	crowdedLooks, rankLooks, fourRanks = 3, 2, 4
	// settle is for how long the reactor at least stays on a core to which it moved. A move costs some 10 µs.
	settle = 100 * time.Microsecond
	// movesInVain is after how many moves in a row that did not help the reactor believes that all cores are crowded. One is not enough: two
	// reactors that notice each other at the same time may both move.
	movesInVain = 8
	// crowdedPause is for how long polling is off then.
	crowdedPause = time.Millisecond
)

// newSpinner polls for at most limit; 0 means DefaultSpin, and less than 0 not at all.
func newSpinner(limit time.Duration, rank int) spinner {
	switch {
	case limit < 0:
		limit = 0
	case limit == 0:
		limit = DefaultSpin
	}
	return spinner{max: limit, budget: limit, window: crowdedLooks + rankLooks*int64(rank%fourRanks)}
}

// until returns for how long after the last event to poll.
func (s *spinner) until(now time.Duration) time.Duration {
	if now < s.pausedTo {
		return 0
	}
	return s.budget
}

// looked says that two looks in a row found nothing and were this far apart. It returns whether to move to another core. displaced counts
// how often others have taken the core so far.
func (s *spinner) looked(now, apart time.Duration, displaced func() int64) (move bool) {
	switch s.vain++; s.vain {
	case 1:
		s.displaced = displaced()
	case 1 + s.window:
		s.vain = 0
		if displaced()-s.displaced >= s.window {
			move = s.crowded(now)
		}
	}
	if apart > stolenAfter {
		s.lost(now, apart)
	}
	return move
}

// lost says that somebody has had the core for as long as that.
func (s *spinner) lost(now, kept time.Duration) {
	s.losses = max(s.losses-(now-s.lastLoss)/pausePerLoss, 0) + min(kept, maxPause/pausePerLoss)
	s.lastLoss = now
	if s.losses > toleratedLoss {
		s.pausedTo = now + min(pausePerLoss*s.losses, maxPause)
	}
}

// crowded says that another thread polls on this core. It returns whether to move to another.
func (s *spinner) crowded(now time.Duration) (move bool) {
	switch {
	case now < s.settled && s.inVain < movesInVain:
		return false
	case now < s.settled:
		s.pausedTo = now + crowdedPause
		return false
	case now-s.settled < settle:
		s.inVain++
	default:
		s.inVain = 0
	}
	s.settled = now + settle
	return true
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
