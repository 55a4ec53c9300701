package node

import (
	"time"

	"dsmd/internal/spin"
)

// spinner decides for how long the reactor polls before it sleeps (spin.Budget), and on which core.
//
// After each vain look the reactor offers its core to others. Who takes it says what to do. One
// that keeps it for long computes: then the reactor does not poll for a while. One that takes it at
// every look polls too, on a core that neither needs half of: then the reactor moves to another
// core. If moving does not help, all cores are in use, and it does not poll for a while either.
type spinner struct {
	spin.Budget

	window    int64         // vain looks in a row that must have lost the core before it is crowded
	vain      int64         // looks without an event since displaced was read
	displaced int64         // how often somebody had taken the core by then
	stayUntil time.Duration // when the core may be left
	inVain    int           // moves in a row after which the core was crowded again soon
}

const (
	// DefaultSpin is Core.Spin when none is given: what polling may cost at most.
	DefaultSpin = spin.Most
	// crowdedLooks is how many vain looks, one after another, must have lost the core to somebody,
	// with or without events between them. A program that runs from one remote fault to the next
	// takes it at one vain look of many. A node waits for rankLooks more looks for each of the
	// nodes before it that may be on this machine, up to fourRanks, so that not all of them leave
	// the same core together.
	crowdedLooks, rankLooks, fourRanks = 3, 2, 4
	// leastStay is how long the reactor at least stays on a core to which it moved. A move costs
	// some 10 µs.
	leastStay = 100 * time.Microsecond
	// movesInVain is after how many moves in a row that did not help the reactor believes that all
	// cores are crowded. One is not enough: two reactors that notice each other at the same time
	// may both move.
	movesInVain = 8
	// crowdedPause is for how long polling is off then.
	crowdedPause = time.Millisecond
)

// newSpinner polls for at most limit; 0 means DefaultSpin, and less than 0 not at all.
func newSpinner(limit time.Duration, rank int) spinner {
	return spinner{Budget: spin.ForReactor(limit), window: crowdedLooks + rankLooks*int64(rank%fourRanks)}
}

// looked notes two vain looks in a row, this far apart. It returns whether to move to another core.
// displaced counts how often others have taken the core so far. With wanted, a program of this node
// polls for a reply at the same time. Then it may be the one that takes the core, which the two can
// share.
func (s *spinner) looked(now, apart time.Duration, wanted bool, displaced func() int64) (move bool) {
	s.Looked(now, apart)
	if wanted {
		s.vain = 0
		return false
	}
	switch s.vain++; s.vain {
	case 1:
		s.displaced = displaced()
	case 1 + s.window:
		s.vain = 0
		if displaced()-s.displaced >= s.window {
			move = s.crowded(now)
		}
	}
	return move
}

// crowded notes that another thread polls on this core. It returns whether to move to another.
func (s *spinner) crowded(now time.Duration) (move bool) {
	switch {
	case now < s.stayUntil && s.inVain < movesInVain:
		return false
	case now < s.stayUntil:
		s.Pause(now + crowdedPause)
		return false
	case now-s.stayUntil < leastStay:
		s.inVain++
	default:
		s.inVain = 0
	}
	s.stayUntil = now + leastStay
	return true
}
