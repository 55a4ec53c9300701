package nemesis

import (
	"slices"
	"time"

	"dsmd/internal/systemtest/testcluster"
)

// Hosts that leave, and hosts that come back. A host leaves in three steps, which take as long as
// other faults let them: its programs are told to leave, as is every team that has a rank there;
// then dsmd drain is run there, and when that and the daemon have ended as they should, it is gone,
// and nothing with it. A host comes back as a new daemon with --rejoin, and its programs begin when
// the others have let it in.

// leave has a host leave. Preconditions: it is a member, and not the only one.
func (c *campaign) leave(h *host) {
	c.t.Helper()
	h.standing, h.drain, h.slowly, h.asked = leaving, nil, false, time.Now()
	for i, w := range c.Workloads {
		hosts := []*host{h}
		if w.Team {
			hosts = c.members()
		}
		for _, host := range hosts {
			if p := host.programs[i]; p != nil && !p.told && p.Running() {
				p.told = true
				p.Say(c.t, sayFinish)
			}
		}
	}
}

// seeOff goes on with those that leave.
func (c *campaign) seeOff() {
	for _, h := range c.members() {
		for i, p := range h.programs {
			if p != nil && !p.Running() && c.hasLeft(p) {
				h.programs[i] = nil
				c.orphaned[i] = p.workload.Team
			}
		}
	}
	for _, h := range c.of(leaving) {
		switch {
		case slices.ContainsFunc(h.programs, func(p *resident) bool { return p != nil }):
		case h.drain == nil:
			if h.slowly {
				c.slowDown()
			}
			h.drain = startOn(c.t, h.Machine, "drain of "+h.daemon.name, nil, testcluster.Dsmd(c.t), "drain", "--socket", socket)
			h.drained = now()
			c.logs = append(c.logs, h.drain)
		case !h.drain.Running() && h.drain.Wait(c.t) != 0 && c.cannotLeave(h):
			c.keepOn(h)
		case !h.drain.Running() && h.drain.Wait(c.t) != 0:
			c.violate("the %s has not left: %s", h.daemon.name, lastLines(h.drain.Errors()))
		case !h.daemon.Running() && h.daemon.Wait(c.t) != 0:
			c.violate("the %s has ended with status %d when it was to leave: %s", h.daemon.name, h.daemon.Wait(c.t), lastLines(h.daemon.Errors()))
		case !h.daemon.Running() && !h.drain.Running():
			h.standing = away
			past := &c.past[c.life]
			past.departures = append(past.departures, &death{host: h.rank, stay: h.stays, at: h.drained, settled: now(), inOrder: true})
			c.report.left(h.Name, time.Since(h.asked))
		}
	}
}

// hasLeft reports whether a program has ended as it was told. Preconditions: it has ended.
func (c *campaign) hasLeft(p *resident) bool { return p.told && p.Wait(c.t) == 0 }

// comeBack starts the daemon of a host that is away, so that it comes. Preconditions: nothing of it
// is left there.
func (c *campaign) comeBack(h *host) {
	c.t.Helper()
	h.standing, h.asked = coming, time.Now()
	c.startDaemon(h, "--rejoin")
}

// settleIn starts the programs of a host that was let in.
func (c *campaign) settleIn(h *host) {
	c.t.Helper()
	h.standing, h.since = belongs, h.epoch
	c.report.came(h.Name, time.Since(h.asked))
	for i, w := range c.Workloads {
		if !w.Team { // teams go on, and have a rank there when they are replaced
			c.startProgram(h, i)
		}
	}
}

// returning are the hosts that are away and may come back: nothing is left there.
func (c *campaign) returning() []*host {
	return slices.DeleteFunc(c.of(away), func(h *host) bool {
		return !c.listed || h.stray != nil || slices.ContainsFunc(c.past[c.life].deaths, func(d *death) bool { return d.host == h.rank && d.daemon.Running() })
	})
}

// replenish makes the cluster one of all hosts again: those that are away come back, or all of it
// is ended and started anew.
func (c *campaign) replenish() {
	c.t.Helper()
	back := c.returning()
	if len(back) < len(c.of(away)) || c.r.IntN(3) == 0 {
		c.renew()
		return
	}
	for _, h := range back {
		c.report.say(h.Name + " is started again")
		c.comeBack(h)
	}
	c.calm()
}
