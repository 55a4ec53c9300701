package nemesis

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// patience bounds a wait. Time in which somebody waited for a core does not count: on a machine
// that has other work too nobody gets on any faster than the machine lets them.
type patience struct {
	began  time.Time
	queued func() map[string]time.Duration // for how long each thread has waited for a core so far
	before map[string]time.Duration        // when the wait began
	grace  time.Duration                   // what does not count, as far as is known
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
func (c *campaign) queued() map[string]time.Duration {
	queued := map[string]time.Duration{}
	for _, p := range c.logs {
		if !p.Running() {
			continue
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.pid))
		if err != nil {
			continue // it has just ended
		}
		for _, thread := range threads {
			path := fmt.Sprintf("/proc/%d/task/%s/schedstat", p.pid, thread.Name())
			if text, err := os.ReadFile(path); err == nil {
				queued[path] = queuedIn(string(text))
			}
		}
	}
	return queued
}

// queuedIn reads what the kernel says of a thread in schedstat: for how long it has run, for how
// long it has waited, in nanoseconds, and how often.
func queuedIn(schedstat string) time.Duration {
	fields := strings.Fields(schedstat)
	if len(fields) < 2 {
		return 0
	}
	ns, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(ns)
}
