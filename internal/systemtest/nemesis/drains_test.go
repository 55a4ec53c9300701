package nemesis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// drains has several hosts leave at once, or all. The last one cannot, says so, and goes on.
type drains struct{}

func (drains) Name() string { return "drains" }
func (drains) strike(c *campaign) (string, func()) {
	all := len(c.staying())
	return c.leaveTogether(2+c.r.IntN(2)*max(0, all-2), all), nil
}

// slowDrains has one host leave, or several at once, and from when they are drained everybody gets
// everything slowly: what they have is under way for long. No host is lost, so nothing of it may
// be.
type slowDrains struct{}

func (slowDrains) Name() string { return "slow-drains" }
func (slowDrains) strike(c *campaign) (string, func()) {
	before := c.of(leaving)
	what := c.leaveTogether(1, len(c.staying())-1)
	for _, h := range c.of(leaving) {
		h.slowly = !slices.Contains(before, h)
	}
	return what, nil
}

// slowDown has everybody get little, for as long as faults last. In a calm, in which a host may be
// drained that was told to leave before, nobody is harmed.
func (c *campaign) slowDown() {
	if !c.stormy || len(c.whole("slow")) < len(c.members()) {
		return
	}
	all := c.members()
	kbit := leastKbit + c.r.IntN(mostKbitOfDrains-leastKbit)
	for _, h := range all {
		h.harmed["slow"] = true
		c.net.Slow(c.t, h.Machine, kbit)
	}
	what := fmt.Sprintf("everybody gets %d kbit/s", kbit)
	c.report.say(what)
	c.harms = append(c.harms, harm{what, time.Now().Add(lastsAtMost), func() {
		for _, h := range all {
			h.harmed["slow"] = false
			c.net.Fast(c.t, h.Machine)
		}
	}})
}

// mostKbitOfDrains is so little that a page takes 10 ms or more.
const mostKbitOfDrains = 3_000

// leaveTogether has some hosts leave at once, least to most of them, and says which; "" if so many
// cannot.
func (c *campaign) leaveTogether(least, most int) string {
	lot := c.staying()
	if least > most || len(lot) < 2 || c.changes() > 0 {
		return ""
	}
	c.r.Shuffle(len(lot), func(i, j int) { lot[i], lot[j] = lot[j], lot[i] })
	lot = lot[:least+c.r.IntN(most-least+1)]
	var names []string
	for _, h := range lot {
		c.leave(h)
		names = append(names, h.Name)
	}
	return "told to leave at once: " + strings.Join(names, ", ")
}

// saysLast is why the last host does not leave.
const saysLast = "nobody to hand it over to"

// cannotLeave reports whether a host was told with reason that it cannot leave: none is left that
// was not told to. Preconditions: its drain has ended.
func (c *campaign) cannotLeave(h *host) bool {
	return strings.Contains(h.drain.Errors(), saysLast) && len(c.staying()) == 0
}

// keepOn has a host go on that could not leave.
func (c *campaign) keepOn(h *host) {
	c.report.say(h.Name + " is the last, and stays")
	h.standing, h.drain = belongs, nil
	for i, w := range c.Workloads {
		if w.Team {
			c.orphaned[i] = true // and replaced
		} else {
			c.startProgram(h, i)
		}
	}
}

// split keeps several hosts, which reach each other, out of the reach of all others until those
// have gone on without them. Their programs go on meanwhile with what is there. It takes four hosts
// or more. Everything else is mended before.
type split struct{}

func (split) Name() string { return "split" }
func (split) strike(c *campaign) (string, func()) {
	c.mendAll()
	c.awaitAgreement(c.Progress)
	lot := c.members()
	if len(lot) < 4 || c.unsettled() {
		return "", nil
	}
	c.r.Shuffle(len(lot), func(i, j int) { lot[i], lot[j] = lot[j], lot[i] })
	off := lot[:2+c.r.IntN(len(lot)/2-1)]
	rest := slices.DeleteFunc(c.members(), func(h *host) bool { return slices.Contains(off, h) })
	if !isQuorum(rest, c.members()) || !c.kept(func(h *host) bool { return slices.Contains(rest, h) }) {
		return "", nil
	}
	since := now()
	var names []string
	for _, a := range off {
		names = append(names, a.Name)
		for _, b := range rest {
			c.sever(a, b)
		}
	}
	what := "nothing passes between " + strings.Join(names, ", ") + " and the others until these go on without them"
	c.report.say("split: " + what)
	for _, h := range off {
		c.lose(h, since)
	}
	c.awaitAgreement(givenUpWithin + c.Progress)
	for _, a := range off {
		for _, b := range rest {
			c.restore(a, b)
		}
	}
	return what, nil
}
