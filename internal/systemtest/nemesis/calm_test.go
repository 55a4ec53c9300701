package nemesis

import (
	"slices"
	"syscall"
	"time"

	"dsmd/internal/systemtest/testcluster"
)

// calm waits until every thread makes progress, now that all faults are over.
func (c *campaign) calm() {
	c.t.Helper()
	if len(c.wrong) > 0 {
		return
	}
	mended, began, patience := now(), time.Now(), c.patience()
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	last := "nobody"
	for {
		c.watch()
		late := c.late(mended)
		took := time.Since(began)
		switch {
		case len(c.wrong) > 0:
			return
		case len(late) == 0:
			c.report.calmed(took, last)
			return
		case patience.over(c.Progress):
			for _, complaint := range late {
				c.violate("%s within %v of the last fault", complaint, c.Progress)
			}
			c.showStacks()
			return
		}
		last = late[0]
		<-ticks.C
	}
}

// late are complaints about all that was not done yet since a time.
func (c *campaign) late(since int64) (complaints []string) {
	for _, p := range c.present() {
		if !c.getsOn(p, since) {
			complaints = append(complaints, p.name+" has got nothing done")
		}
	}
	for _, h := range c.of(leaving) {
		complaints = append(complaints, h.Name+" has not left")
	}
	for _, h := range c.hosts {
		if h.stray != nil {
			complaints = append(complaints, "the "+h.stray.name+" has not ended with all its programs")
		}
	}
	for _, h := range c.of(coming) {
		complaints = append(complaints, h.Name+" was not let in")
	}
	if c.unsettled() {
		complaints = append(complaints, "those that are left have not gone on")
	}
	for i, w := range c.Workloads {
		if c.orphaned[i] {
			complaints = append(complaints, "what is left of the team of "+w.Name+" has not ended")
		}
	}
	for _, d := range c.past[c.life].deaths {
		if d.inhabited() {
			complaints = append(complaints, "not all has ended on "+c.hosts[d.host].Name+", which was lost,")
		}
	}
	return complaints
}

// getsOn reports whether every thread of a program has done something since.
func (c *campaign) getsOn(p *resident, since int64) bool {
	if err := p.history.follow(); err != nil {
		c.violate("%w", err)
		return true
	}
	for thread := range p.workload.Threads {
		if p.history.last[thread] <= since {
			return false
		}
	}
	return true
}

// joined reports whether a program is there.
func (p *resident) joined() bool {
	if !p.begun && p.Pending() {
		p.Expect(p.t, sayBegun)
		p.begun = true
	}
	return p.begun
}

// showStacks has everything say what the daemons count and where all goroutines are, for the logs,
// of which all ends.
func (c *campaign) showStacks() {
	for _, h := range c.hosts {
		out, err := h.Try("timeout 5 " + testcluster.Dsmd(c.t) + " status --json --socket " + socket)
		c.report.say("status of " + h.Name + ": " + out)
		if err != nil {
			c.report.say(err.Error())
		}
	}
	// The end of one must not end another before that has said where it is. So all are stopped when
	// they are asked, and the daemons are asked last.
	daemons := map[*process]bool{}
	for _, h := range c.hosts {
		daemons[h.daemon] = true
	}
	for _, last := range []bool{false, true} {
		asked := slices.DeleteFunc(slices.Clone(c.logs), func(p *process) bool { return daemons[p] != last })
		for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGQUIT, syscall.SIGCONT} {
			for _, p := range asked {
				p.signal(signal)
			}
		}
		for _, p := range asked {
			p.endsWithin(stacksWithin)
		}
	}
}

// stacksWithin is how long a process may take to print its stacks.
const stacksWithin = 5 * time.Second

// goOnWithout reports whether hosts go on without another.
func (c *campaign) goOnWithout(h *host, left []*host) bool {
	return !slices.ContainsFunc(left, func(o *host) bool {
		c.listen(o)
		return slices.Contains(c.views[o.epoch], h.rank)
	})
}

// finish has all programs read everything once more and leave, and all daemons end in order.
func (c *campaign) finish() {
	c.t.Helper()
	c.disperse()
	for _, p := range c.present() {
		p.Say(c.t, sayFinish)
	}
	for _, p := range c.present() {
		if status := p.Wait(c.t); status != 0 {
			c.violate("%s has ended with status %d when it was told to leave: %s", p.name, status, lastLines(p.Errors()))
		}
	}
	// The highest number first, one after the other: then those that are left can always go on, by
	// whatever losses there were before, and none ends for want of the others before it has heard
	// that it should. Each time those that are left must have agreed: else the next one that ends
	// is one too many to them.
	members := c.members()
	for i, h := range slices.Backward(members) {
		h.daemon.signal(syscall.SIGTERM)
		if status := h.daemon.Wait(c.t); status != 0 {
			c.violate("the %s has ended with status %d when it was told to: %s", h.daemon.name, status, lastLines(h.daemon.Errors()))
		}
		if left := members[:i]; len(left) > 1 {
			testcluster.Eventually(c.t, "the others go on without "+h.Name, func() bool { return c.goOnWithout(h, left) })
		}
	}
}
