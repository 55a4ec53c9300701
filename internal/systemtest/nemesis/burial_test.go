package nemesis

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"dsmd/dsm"
)

const (
	// blocks is the policy of daemons that keep their programs waiting where too few are left. By
	// the other policy they end.
	blocks = "block"
	// saysBlocked is in the log of a daemon that does.
	saysBlocked = "nothing is granted any more"
)

// bury checks what must follow when a loss has left too few hosts to go on, and no other fault is
// left. By the policy "end" all programs end, within the limit of progress, with dsm.ExitLost, and
// say which node was lost, and all daemons end with an error. By "block" the daemons say that they
// grant nothing any more; then bury kills them and their programs. In the end it starts the cluster
// anew.
func (c *campaign) bury() {
	c.t.Helper()
	began := time.Now()
	c.disperse()
	last := c.hosts[c.past[c.life].last().host]
	for _, h := range c.of(coming) { // which cannot be let in
		h.daemon.kill()
		h.standing = away
	}
	for _, h := range c.members() {
		if c.policy == blocks {
			c.buryBlocked(h, last)
		} else {
			c.buryEnded(h, last)
		}
	}
	for _, d := range c.past[c.life].deaths {
		if !c.within(c.Progress, func() bool { c.mourn(); return !d.inhabited() }) {
			c.violate("programs of %s have not ended within %v of its loss", c.hosts[d.host].Name, c.Progress)
		}
	}
	c.report.buried(time.Since(began))
	if len(c.wrong) == 0 {
		c.begin()
		return
	}
	c.showStacks()
}

// within waits until something is so, or something is wrong, or a limit is over, and reports
// whether it is so.
func (c *campaign) within(limit time.Duration, is func() bool) bool {
	for p := c.patience(); !is(); time.Sleep(tick) {
		if len(c.wrong) > 0 || p.over(limit) {
			return false
		}
	}
	return true
}

// buryBlocked ends a host that is left where too few are, and has nobody end.
func (c *campaign) buryBlocked(h, last *host) {
	if !c.within(c.Progress, func() bool { return strings.Contains(h.daemon.Errors(), saysBlocked) }) {
		c.violate("the %s does not say within %v of the loss of %s that it blocks", h.daemon.name, c.Progress, last.Name)
		return
	}
	for _, p := range h.programs {
		if p != nil && !p.Running() && !c.isBereaved(p) { // of an earlier loss
			c.violate("%s has ended with status %d after the loss of %s: %s", p.name, p.Wait(c.t), last.Name, lastLines(p.Errors()))
		} else if p != nil {
			p.kill()
		}
	}
	h.daemon.kill()
}

// blames reports whether a program that has ended has said that the last host is lost, or, if it
// has ended because its team has lost a rank, which loss that was.
func (c *campaign) blames(p *resident, last *host) bool {
	lost := []int{last.rank}
	if c.isBereaved(p) {
		for _, d := range c.lossesSince(p) {
			lost = append(lost, d.host)
		}
	}
	return slices.ContainsFunc(lost, func(rank int) bool {
		return strings.Contains(p.Errors(), fmt.Sprintf("node %d ", rank))
	})
}

// buryEnded waits for the end of a host that is left where too few are, and says so.
func (c *campaign) buryEnded(h, last *host) {
	for _, p := range h.programs {
		if p == nil {
			continue
		}
		if !c.within(c.Progress, func() bool { return !p.Running() }) {
			c.violate("%s has not ended within %v of the loss of %s", p.name, c.Progress, last.Name)
			return
		}
		status, said := p.Wait(c.t), p.Errors()
		if status != dsm.ExitLost && !(status == exitBereaved && p.workload.Team) {
			c.violate("%s has ended with status %d, not %d, after the loss of %s: %s", p.name, status, dsm.ExitLost, last.Name, lastLines(said))
		}
		if p.joined() && !c.blames(p, last) {
			c.violate("%s does not say that node %d is lost: %s", p.name, last.rank, lastLines(said))
		}
	}
	if !c.within(c.Progress, func() bool { return !h.daemon.Running() }) {
		c.violate("the %s has not ended within %v of the loss of %s", h.daemon.name, c.Progress, last.Name)
		return
	}
	if status := h.daemon.Wait(c.t); status != 1 {
		c.violate("the %s has ended with status %d, not 1, after the loss of %s: %s", h.daemon.name, status, last.Name, lastLines(h.daemon.Errors()))
	}
}
