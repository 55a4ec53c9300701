package nemesis

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sayOver is what a daemon says when it goes on with a view: its epoch, and its members.
var sayOver = regexp.MustCompile(`recovery is over.*"epoch": ([0-9]+), "members": "([0-9,]*)"`)

// sayHanded is what it says when it has handed over, in that epoch, all that others keep since
// then.
var sayHanded = regexp.MustCompile(`all is handed over.*"epoch": ([0-9]+)`)

// follow notes with whom the daemons go on, and who is one of them now.
func (c *campaign) follow() {
	for _, h := range c.of(belongs, leaving, coming) {
		c.listen(h)
	}
	c.settle()
	c.renewView()
}

// renewView keeps the view with which all members go on, if they agree.
func (c *campaign) renewView() {
	if c.agree() {
		c.view = c.members()
	}
}

// listen reads what a daemon has said since it was last listened to.
func (c *campaign) listen(h *host) {
	said := h.daemon.Errors()
	whole := strings.LastIndexByte(said, '\n') + 1
	for _, match := range sayOver.FindAllStringSubmatch(said[h.heard:whole], -1) {
		h.epoch = c.epoch(h, match[1])
		c.note(h, h.epoch, match[2])
		if h.standing == coming {
			c.settleIn(h)
		}
	}
	for _, match := range sayHanded.FindAllStringSubmatch(said[h.heard:whole], -1) {
		h.handed = c.epoch(h, match[1])
	}
	h.heard = whole
}

// epoch reads the number of one.
func (c *campaign) epoch(h *host, text string) int {
	epoch, err := strconv.Atoi(text)
	if err != nil {
		c.violate("the %s speaks of epoch %s: %w", h.daemon.name, text, err)
	}
	return epoch
}

// note compares a view with what others say of the same epoch.
func (c *campaign) note(h *host, epoch int, list string) {
	var members []int
	for text := range strings.SplitSeq(list, ",") {
		rank, err := strconv.Atoi(text)
		if err != nil {
			c.violate("the %s goes on with members %q: %w", h.daemon.name, list, err)
			return
		}
		members = append(members, rank)
	}
	if others, known := c.views[epoch]; known && !slices.Equal(others, members) {
		c.violate("two views of epoch %d: %v, and, to the %s, %v", epoch, others, h.daemon.name, members)
	}
	c.views[epoch] = members
}

// agree reports whether all members go on with the same view, which has no others.
func (c *campaign) agree() bool {
	members := c.members()
	if len(members) == 0 {
		return false
	}
	var ranks []int
	for _, h := range members {
		if h.epoch != members[0].epoch {
			return false
		}
		ranks = append(ranks, h.rank)
	}
	return slices.Equal(c.views[members[0].epoch], ranks)
}

// unsettled reports whether who the members are is about to change, or has just changed and some
// may not know it.
func (c *campaign) unsettled() bool {
	return c.changes() > 0 || !c.agree()
}

// changes is how many hosts are about to come, to leave, or to be gone on without.
func (c *campaign) changes() int {
	count := len(c.of(leaving, coming))
	for _, d := range c.past[c.life].deaths {
		if d.settled == unknown {
			count++
		}
	}
	return count
}

// settle notes when all members go on without those that are lost.
func (c *campaign) settle() {
	for _, d := range c.past[c.life].deaths {
		if d.settled == unknown && c.without(d) {
			d.settled = now()
			c.report.settled(c.hosts[d.host].Name, time.Since(d.noted))
		}
	}
}

// without reports whether all members go on with a view that came after the loss of a host. No host
// comes back before such a view.
func (c *campaign) without(d *death) bool {
	first := -1
	for epoch, members := range c.views {
		if epoch > d.since && !slices.Contains(members, d.host) && (first < 0 || epoch < first) {
			first = epoch
		}
	}
	return first >= 0 && !slices.ContainsFunc(c.members(), func(h *host) bool { return h.epoch < first })
}
