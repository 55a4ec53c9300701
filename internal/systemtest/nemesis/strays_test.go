package nemesis

import (
	"fmt"
	"slices"
	"strings"
)

// plainRestart kills a daemon with SIGKILL, and starts it again soon as all are started at first,
// without --rejoin. That is what a service manager does.
type plainRestart struct{}

func (plainRestart) Name() string { return "plain-restart" }
func (plainRestart) strike(c *campaign) (string, func()) {
	if !c.listed {
		return "", nil
	}
	h, _, ok := c.doomed(false)
	if !ok {
		return "", nil
	}
	life, stay := c.life, h.stays
	d := c.killDaemonOf(h)
	return d.name + " is killed, and will be started again plainly", func() {
		if life == c.life && h.standing == away && h.stays == stay {
			c.startPlainly(h)
		}
	}
}

// stray is a daemon that was started plainly where the others have gone on, and the programs that
// attach there. It must end, and say why. No program may do anything there: what it did would be in
// another cluster.
type stray struct {
	*process
	programs []*resident
	patience *patience // since it was started
	ended    *patience // since the harness has seen its end; nil: it has not
}

// saysGoneOn is in the last line of a daemon that was left out.
const saysGoneOn = "go on without this one"

// startPlainly starts the daemon of a host that was lost as if there were no cluster, and programs.
func (c *campaign) startPlainly(h *host) {
	c.t.Helper()
	c.evict(h)
	h.stays++
	name := fmt.Sprintf("plain daemon of %s, life %d, stay %d", h.Name, c.life, h.stays)
	h.stray = &stray{process: startOn(c.t, h.Machine, name, nil, c.serve(h, socket)...), patience: c.patience()}
	c.logs = append(c.logs, h.stray.process)
	for i, w := range c.Workloads {
		if !w.Team {
			c.startProgram(h, i)
			h.stray.programs = append(h.stray.programs, h.programs[i])
			h.programs[i] = nil
		}
	}
}

// chase looks what becomes of daemons that were started plainly.
func (c *campaign) chase() {
	for _, h := range c.hosts {
		if h.stray != nil {
			c.chaseOn(h, h.stray)
		}
	}
}

func (c *campaign) chaseOn(h *host, s *stray) {
	for _, p := range s.programs {
		if err := p.history.follow(); err != nil {
			c.violate("%w", err)
		}
		if len(p.history.last) > 0 {
			c.violate("%s works at the %s, without which the others have gone on", p.name, s.name)
			return
		}
	}
	if s.Running() {
		if limit := givenUpWithin + 2*c.Progress; s.patience.over(limit) {
			c.violate("the %s has not ended within %v, and the others have gone on without it", s.name, limit)
		}
		return
	}
	if s.ended == nil {
		s.ended = c.patience()
		if status := s.Wait(c.t); status != 1 || !strings.Contains(s.Errors(), saysGoneOn) {
			c.violate("the %s has ended with status %d and does not say that the others %s: %s", s.name, status, saysGoneOn, lastLines(s.Errors()))
		}
	}
	if !slices.ContainsFunc(s.programs, func(p *resident) bool { return p.Running() }) {
		c.report.say("the " + s.name + " was turned away")
		h.stray = nil
	} else if s.ended.over(c.Progress) {
		c.violate("programs have not ended within %v of the end of the %s", c.Progress, s.name)
	}
}

// disperse kills daemons that were started plainly: the cluster ends.
func (c *campaign) disperse() {
	for _, h := range c.hosts {
		if h.stray != nil {
			h.stray.kill()
			for _, p := range h.stray.programs {
				p.kill()
			}
			h.stray = nil
		}
	}
}
