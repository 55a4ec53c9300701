package nemesis

import (
	"fmt"
	"strings"
	"time"

	"dsmd/dsm"
)

// bury is what follows the death of a daemon, c.dead, when no other fault is left. This is the one place that knows what the system promises then, and what is asked
// of it today: nobody hangs. Within the limit of progress all programs end with dsm.ExitLost, those of other hosts say which node was lost, and all
// other daemons end with an error. Then the cluster is started anew, with memory that has nothing of the old one.
//
// Where survivors go on after a death it has to start the dead host's daemon again, and its programs, and to ask nothing of the others: calm
// finds out whether they get on.
func (c *campaign) bury() {
	c.t.Helper()
	began := time.Now()
	left := func() time.Duration { return max(0, c.Progress-time.Since(began)) }
	for _, p := range c.present() {
		if !p.endsWithin(left()) {
			c.violate("%s has not ended within %v of the death of the %s", p.name, c.Progress, c.dead.daemon.name)
			c.showStacks()
			return
		}
		status, said := p.Wait(c.t), p.Errors()
		if status != dsm.ExitLost {
			c.violate("%s has ended with status %d, not %d, after the death of the %s: %s", p.name, status, dsm.ExitLost, c.dead.daemon.name, lastLines(said))
		}
		if names := fmt.Sprintf("node %d ", c.dead.rank); p.host != c.dead && p.joined() && !strings.Contains(said, names) {
			c.violate("%s does not say that %sis lost: %s", p.name, names, lastLines(said))
		}
	}
	for _, h := range c.hosts {
		if h == c.dead {
			continue
		}
		if !h.daemon.endsWithin(left()) {
			c.violate("the %s has not ended within %v of the death of the %s", h.daemon.name, c.Progress, c.dead.daemon.name)
			c.showStacks()
			return
		}
		if status := h.daemon.Wait(c.t); status != 1 {
			c.violate("the %s has ended with status %d, not 1, after the death of the %s: %s", h.daemon.name, status, c.dead.daemon.name, lastLines(h.daemon.Errors()))
		}
	}
	c.report.buried(time.Since(began))
	c.life++
	c.startAll()
}
