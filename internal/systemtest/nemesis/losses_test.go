package nemesis

import (
	"slices"
	"strings"
	"time"

	"dsmd/dsm"
)

// What is asked when a host is lost. Its programs end, with dsm.ExitLost, within the limit of
// progress after the end of its daemon. Those that are left agree on who they are and go on: calm
// finds out whether they do. Only programs of a team end, because ranks are lost that they need,
// and a team of those that are left takes their place.

// doomed is a host that may be lost now, by chance, and reports whether those that are left go on
// without it. There is none if that is not certain, or if those that are left could not and the
// fault should not end all.
func (c *campaign) doomed(mayEndAll bool) (h *host, goesOn, ok bool) {
	h, ok = pick(c.r, c.members())
	if !ok {
		return nil, false, false
	}
	if goesOn, ok = c.goesOnWithout(h); !ok || !goesOn {
		return h, false, ok && mayEndAll && !c.unsettled()
	}
	if !c.kept(func(other *host) bool { return other != h }) {
		return nil, false, false
	}
	return h, true, true
}

// kept reports whether the memory of all workloads has programs on certain hosts. Memory that is
// kept is gone if nobody has it when the host with the names is lost.
func (c *campaign) kept(on func(h *host) bool) bool {
	for i, w := range c.Workloads {
		if !w.Team && !slices.ContainsFunc(c.present(), func(p *resident) bool {
			return on(p.host) && p.history.who.Workload == i && !p.told && p.joined()
		}) {
			return false
		}
	}
	return true
}

// goesOnWithout reports whether those that are left go on if a host is lost now, and whether that
// is certain.
func (c *campaign) goesOnWithout(h *host) (goesOn, certain bool) {
	views := c.possibleViews()
	rest := slices.DeleteFunc(c.of(belongs, leaving, coming), func(other *host) bool { return other == h })
	going := 0
	for _, view := range views {
		if isQuorum(slices.DeleteFunc(slices.Clone(rest), func(other *host) bool { return !slices.Contains(view, other) }), view) {
			going++
		}
	}
	return going > 0, len(views) > 0 && (going == 0 || going == len(views))
}

// possibleViews are the hosts that count in each view with which somebody may go on at the moment;
// none if too much changes at once to tell.
func (c *campaign) possibleViews() [][]*host {
	c.renewView() // a host may have left since
	if !c.unsettled() {
		return [][]*host{c.view}
	}
	if c.changes() != 1 {
		return nil
	}
	stay := func(view []*host) []*host {
		return slices.DeleteFunc(slices.Clone(view), func(h *host) bool { return h.standing == leaving })
	}
	next := c.of(belongs, leaving, coming)
	return [][]*host{c.view, stay(c.view), next, stay(next)}
}

// isQuorum reports whether those that are left of some hosts go on: more than half, or half with
// the first.
func isQuorum(left, of []*host) bool {
	return 2*len(left) > len(of) || 2*len(left) == len(of) && len(left) > 0 && left[0] == of[0]
}

// lose notes that a host is lost since a time.
func (c *campaign) lose(h *host, since int64) {
	for i, w := range c.Workloads {
		// What ranks of a team had not joined when one of them was lost, nobody knows: the others
		// would wait for it for ever. A rank that has joined at a host that was out of reach is
		// known there alone; when it has got on, all know it, for a step takes all ranks.
		if w.Team && slices.ContainsFunc(c.present(), func(p *resident) bool { return p.workload == w && !(p.joined() && c.getsOn(p, p.start)) }) {
			c.disband(i)
		}
	}
	ranks := make([]bool, len(c.Workloads))
	for i, p := range h.programs {
		ranks[i] = p != nil
	}
	now := &c.past[c.life]
	now.deaths = append(now.deaths, &death{
		host: h.rank, stay: h.stays, since: h.since, at: since, settled: unknown,
		noted: time.Now(), daemon: h.daemon, programs: h.programs, ranks: ranks, patience: c.patience(),
	})
	h.standing, h.daemon, h.programs = away, nil, make([]*resident, len(c.Workloads))
}

// mourn deals with what follows from losses.
func (c *campaign) mourn() {
	for _, d := range c.past[c.life].deaths {
		if d.inhabited() {
			c.mournOn(d)
		}
	}
	for i, w := range c.Workloads {
		if w.Team {
			c.mournIn(i)
		}
	}
}

// lossesSince are the hosts of whose loss a program may hear that it did not know when it was
// started: then some of the others had not gone on without them.
func (c *campaign) lossesSince(p *resident) deaths {
	return slices.DeleteFunc(slices.Clone(c.past[c.life].deaths), func(d *death) bool { return d.settled < p.start })
}

// inhabited reports whether there is anything on the host that has not ended since it was lost.
func (d *death) inhabited() bool {
	return d.daemon.Running() || slices.ContainsFunc(d.programs, func(p *resident) bool { return p != nil })
}

// blocked reports whether the host's daemon keeps its programs waiting.
func (d *death) blocked() bool { return strings.Contains(d.daemon.Errors(), saysBlocked) }

// mournOn looks whether what is on a lost host ends as it should. A daemon that blocks is killed
// when those that are left have gone on without it.
func (c *campaign) mournOn(d *death) {
	if d.daemon.Running() {
		switch limit := givenUpWithin + 2*c.Progress; {
		case c.policy == blocks && d.blocked() && d.settled != unknown:
			d.daemon.kill()
		case d.patience.over(limit):
			c.violate("the %s has neither ended nor blocked within %v of the loss of the host", d.daemon.name, limit)
		}
		return
	}
	if d.ended == nil {
		d.ended = c.patience()
	}
	for i, p := range d.programs {
		switch {
		case p == nil:
		case p.Running() && d.ended.over(c.Progress):
			p.kill()
			c.violate("%s has not ended within %v of the end of the %s", p.name, c.Progress, d.daemon.name)
		case !p.Running():
			// It may have been told to leave, and a program of a team may have heard before of the
			// loss of another host.
			if status := p.Wait(c.t); status != dsm.ExitLost && !c.hasLeft(p) && !(status == exitBereaved && len(c.lossesSince(p)) > 1) {
				c.violate("%s has ended with status %d, not %d, after the end of the %s: %s", p.name, status, dsm.ExitLost, d.daemon.name, lastLines(p.Errors()))
			}
			d.programs[i] = nil
		}
	}
}

// mournIn replaces a team when all of it that is left has ended because of a loss. All do, if a
// rank was lost; if only a page was, a rank that has met it ends, and the others wait for it:
// nobody is lost.
func (c *campaign) mournIn(index int) {
	bereaved, others, ranks := false, false, false
	for _, h := range c.members() {
		p := h.programs[index]
		switch {
		case p == nil:
		case !p.Running() && c.isBereaved(p):
			ranks = ranks || slices.ContainsFunc(c.lossesSince(p), func(d *death) bool { return d.ranks[index] })
			h.programs[index], bereaved = nil, true
		default:
			others = true
		}
	}
	c.orphaned[index] = c.orphaned[index] || bereaved
	if bereaved && others && !ranks {
		c.disband(index)
		return
	}
	if c.orphaned[index] && !others {
		c.replace(index)
	}
}

// isBereaved reports whether a program has ended because its team has lost a rank, and may have.
// Preconditions: it has ended.
func (c *campaign) isBereaved(p *resident) bool {
	return p.workload.Team && len(c.lossesSince(p)) > 0 && p.Wait(c.t) == exitBereaved
}

// disband kills what there is of a team, so that it is replaced.
func (c *campaign) disband(index int) {
	for _, h := range c.members() {
		if p := h.programs[index]; p != nil {
			p.kill()
			h.programs[index] = nil
		}
	}
	c.orphaned[index] = true
}

// replace starts a team anew, unless that was done.
func (c *campaign) replace(index int) {
	for _, h := range c.members() {
		if h.programs[index] != nil {
			return
		}
	}
	c.orphaned[index] = false
	c.teams[c.Workloads[index]]++
	for _, h := range c.staying() {
		c.startProgram(h, index)
	}
}

// awaitAgreement waits until all that are left go on together, without those that are lost.
func (c *campaign) awaitAgreement(limit time.Duration) {
	if !c.within(limit, func() bool { c.watch(); return !c.unsettled() }) {
		c.violate("those that are left have not gone on within %v", limit)
		c.showStacks()
	}
}

// awaitExpulsion waits until one of two hosts has been told that the others go on without it.
func (c *campaign) awaitExpulsion(since int64, pair ...*host) {
	limit := givenUpWithin + c.Progress
	out := -1
	if !c.within(limit, func() bool {
		out = slices.IndexFunc(pair, func(h *host) bool {
			return !h.daemon.Running() && strings.Contains(h.daemon.Errors(), saysGoneOn)
		})
		return out >= 0
	}) {
		c.violate("neither %s nor %s was left out within %v of when they could not reach each other any more", pair[0].Name, pair[1].Name, limit)
		c.showStacks()
		return
	}
	c.report.say(pair[out].Name + " was left out")
	c.lose(pair[out], since)
	c.awaitAgreement(c.Progress)
}

// renew ends what is left of the cluster in order, and starts it anew with all hosts.
func (c *campaign) renew() {
	c.t.Helper()
	c.finish()
	if len(c.wrong) == 0 {
		c.begin()
	}
}

// begin starts another life of the cluster, with memory that has nothing of the one before.
func (c *campaign) begin() {
	c.t.Helper()
	c.life++
	c.startAll()
}
