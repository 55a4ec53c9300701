package spin

import "time"

// Budget decides for how long to poll before sleeping. It is not safe for concurrent use; times are
// readings of any one clock of the caller's.
//
// Sleeping costs a wake-up when the next event comes; polling costs a core that a program could
// use. The best choice without knowing the future is to poll about as long as a wake-up costs. It
// is better to learn. When sleeps turn out short, polling a little longer would have caught the
// event, so the budget grows. When polling was in vain, and the sleep after it was long, the budget
// shrinks.
//
// Between two looks the caller offers its core to others. A thread that keeps the core for long
// computes. Then there is no polling for a while.
type Budget struct {
	max         time.Duration // 0: never poll
	short, long time.Duration // sleeps of less make the budget grow, and of more make it shrink
	budget      time.Duration
	pausedTo    time.Duration // clock reading until which polling is off
	// losses is for how long others have had the core, less a part of the time that has passed
	// since.
	losses   time.Duration
	lastLoss time.Duration // clock reading when that was so
}

const (
	// Most is what polling may cost at most, about two wake-ups of an idle virtual core, where
	// nothing else is said.
	Most = 50 * time.Microsecond
	// Least is the least budget that is worth polling for: a few empty looks.
	Least = 2 * time.Microsecond
	// StolenAfter is the time between two looks after which somebody else must have computed on the
	// core. A look takes 1 to 2 µs, and what a program does between two faults in a row, or another
	// reactor for one message, 5 to 20.
	StolenAfter = 50 * time.Microsecond
	// Polling pauses when somebody computes on the core: PausePerLoss times as long as they kept
	// it, so that finding out again costs at most a sixteenth of the time. An interrupt, or a
	// hypervisor with other guests, looks the same, but is shorter than a slice of the scheduler.
	// So polling goes on while no more than ToleratedLoss is lost, and no more than a sixteenth of
	// the time. To sleep would cost each of the next events a wake-up, and wake-ups bring those who
	// poll together on one core.
	ToleratedLoss, MaxPause, PausePerLoss = 250 * time.Microsecond, 100 * time.Millisecond, 16
)

// ForReactor is the budget of a daemon, which polls for at most limit: 0 means Most, and less than
// 0 not at all. Events come from other nodes at any time, and the daemon's own sleep may make them
// late. So it gives polling up only after sleeps that are much longer.
func ForReactor(limit time.Duration) Budget {
	switch {
	case limit < 0:
		limit = 0
	case limit == 0:
		limit = Most
	}
	return Budget{max: limit, budget: limit, short: limit, long: 4 * limit}
}

// ForReply is the budget of a program that waits for its daemon. Where more threads are ready to
// run than there are cores, replies take longer than polling lasts, and a thread that polls takes
// time from those that have something to do. There the program sleeps at once.
func ForReply() Budget { return Budget{max: Most, budget: Most, short: 2 * Most, long: 2 * Most} }

// Until returns for how long after the last event to poll.
func (b *Budget) Until(now time.Duration) time.Duration {
	if now < b.pausedTo {
		return 0
	}
	return b.budget
}

// Looked notes that two looks in a row found nothing, and how far apart they were.
func (b *Budget) Looked(now, apart time.Duration) {
	if apart > StolenAfter {
		b.lost(now, apart)
	}
}

// lost notes for how long somebody else has had the core.
func (b *Budget) lost(now, kept time.Duration) {
	b.losses = max(b.losses-(now-b.lastLoss)/PausePerLoss, 0) + min(kept, MaxPause/PausePerLoss)
	b.lastLoss = now
	if b.losses > ToleratedLoss {
		b.Pause(now + min(PausePerLoss*b.losses, MaxPause))
	}
}

// Pause turns polling off until the clock reads until.
func (b *Budget) Pause(until time.Duration) { b.pausedTo = until }

// Slept notes how long the caller slept after it had polled in vain.
func (b *Budget) Slept(d time.Duration) {
	switch {
	case b.max == 0:
	case d < b.short:
		b.budget = min(max(2*b.budget, Least), b.max)
	case d > b.long:
		if b.budget /= 2; b.budget < Least {
			b.budget = 0
		}
	}
}
