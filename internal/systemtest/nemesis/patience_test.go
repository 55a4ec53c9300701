package nemesis

import (
	"time"

	"github.com/prometheus/procfs"
)

// patience bounds a wait. Time in which somebody waited for a core does not count: on a machine
// that has other work too nobody gets on any faster than the machine lets them.
type patience struct {
	began  time.Time
	queued func() map[int]time.Duration // for how long each thread has waited for a core so far
	before map[int]time.Duration        // when the wait began
	grace  time.Duration                // what does not count, as far as is known
}

// patience begins a wait.
func (c *campaign) patience() *patience {
	return &patience{began: time.Now(), queued: c.queued, before: c.queued()}
}

// over reports whether a limit is.
func (p *patience) over(limit time.Duration) bool {
	if time.Since(p.began) <= limit+p.grace {
		return false
	}
	for thread, waited := range p.queued() {
		p.grace = max(p.grace, waited-p.before[thread])
	}
	return time.Since(p.began) > limit+p.grace
}

// queued is for how long each thread of all processes has waited for a core so far.
func (c *campaign) queued() map[int]time.Duration {
	queued := map[int]time.Duration{}
	for _, p := range c.logs {
		if !p.Running() {
			continue
		}
		threads, _ := procfs.AllThreads(p.pid) // none: it has just ended
		for _, thread := range threads {
			if stat, err := thread.Schedstat(); err == nil {
				queued[thread.PID] = time.Duration(stat.WaitingNanoseconds)
			}
		}
	}
	return queued
}
