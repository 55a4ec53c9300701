package nemesis

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// Fault is a kind of what the nemesis does.
type Fault interface {
	// Name is by what the kind is chosen.
	Name() string
	// strike harms somebody by chance, and says what it has done; "" if there was nobody whom it
	// could harm. mend ends it; nil if that cannot be: a host is lost then, see campaign.lose.
	strike(c *campaign) (what string, mend func())
}

// Faults are all kinds. One more is one more entry.
var Faults = []Fault{cut{}, oneWay{}, isolate{}, lose{}, slow{}, pauseDaemon{}, pauseProgram{}, killProgram{}, killDaemon{}, restart{}, plainRestart{}, drain{}, drains{}, slowDrains{},
	join{}, stranger{}, expel{}, split{}}

// Brief are the kinds that take seconds.
var Brief = Faults[:len(Faults)-2]

// allFaults stands for the names of all kinds.
const allFaults = "all"

// Choose finds kinds by their names, separated by commas; "all" are all.
func Choose(names string) (chosen []Fault, err error) {
	if names == allFaults {
		return Faults, nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(Faults, func(f Fault) bool { return f.Name() == name })
		if i < 0 {
			return nil, fmt.Errorf("nemesis: there is no fault %q; there are %s", name, Names(Faults))
		}
		chosen = append(chosen, Faults[i])
	}
	return chosen, nil
}

// Names are the names of kinds, separated by commas.
func Names(kinds []Fault) string {
	names := make([]string, len(kinds))
	for i, f := range kinds {
		names[i] = f.Name()
	}
	return strings.Join(names, ",")
}

// whole are the hosts to which a kind of harm is not done at the moment.
func (c *campaign) whole(kind string) []*host {
	return slices.DeleteFunc(c.members(), func(h *host) bool { return h.harmed[kind] })
}

// harm does a kind of harm to a host that does not have it, and mends it later.
func (c *campaign) harm(kind string, do func(h *host) (what string, mend func())) (string, func()) {
	h, ok := pick(c.r, c.whole(kind))
	if !ok {
		return "", nil
	}
	h.harmed[kind] = true
	what, mend := do(h)
	return what, func() {
		h.harmed[kind] = false
		mend()
	}
}

// two are two hosts, in any order, if there are any.
func (c *campaign) two() (a, b *host, ok bool) {
	left := c.members()
	if len(left) < 2 {
		return nil, nil, false
	}
	i := c.r.IntN(len(left))
	return left[i], left[(i+1+c.r.IntN(len(left)-1))%len(left)], true
}

// cut loses everything between two hosts.
type cut struct{}

func (cut) Name() string { return "cut" }
func (cut) strike(c *campaign) (string, func()) {
	a, b, ok := c.two()
	if !ok {
		return "", nil
	}
	c.sever(a, b)
	return fmt.Sprintf("nothing passes between %s and %s", a.Name, b.Name), func() { c.restore(a, b) }
}

// sever loses everything between two hosts.
func (c *campaign) sever(a, b *host) {
	c.filter.Sever(c.t, a.Machine, b.Machine)
	c.filter.Sever(c.t, b.Machine, a.Machine)
}

// restore lets everything pass between two hosts, whatever was done to it.
func (c *campaign) restore(a, b *host) {
	c.filter.Restore(c.t, a.Machine, b.Machine)
	c.filter.Restore(c.t, b.Machine, a.Machine)
}

// oneWay loses everything that one host sends another.
type oneWay struct{}

func (oneWay) Name() string { return "oneway" }
func (oneWay) strike(c *campaign) (string, func()) {
	a, b, ok := c.two()
	if !ok {
		return "", nil
	}
	c.filter.Sever(c.t, a.Machine, b.Machine)
	return fmt.Sprintf("nothing passes from %s to %s", a.Name, b.Name), func() { c.restore(a, b) }
}

// isolate pulls a host's cable.
type isolate struct{}

func (isolate) Name() string { return "isolate" }
func (isolate) strike(c *campaign) (string, func()) {
	return c.harm("isolate", func(h *host) (string, func()) {
		c.net.Disconnect(c.t, h.Machine)
		return h.Name + " has no cable", func() { c.net.Connect(c.t, h.Machine) }
	})
}

// lose loses some of what two hosts send each other.
type lose struct{}

func (lose) Name() string { return "lose" }
func (lose) strike(c *campaign) (string, func()) {
	a, b, ok := c.two()
	if !ok {
		return "", nil
	}
	c.filter.Lose(c.t, a.Machine, b.Machine)
	c.filter.Lose(c.t, b.Machine, a.Machine)
	return fmt.Sprintf("frames between %s and %s are lost", a.Name, b.Name), func() { c.restore(a, b) }
}

// slow bounds what reaches a host.
type slow struct{}

// Slow lines have between leastKbit and mostKbit: a page takes between 1 and 60 ms.
const leastKbit, mostKbit = 500, 30_000

func (slow) Name() string { return "slow" }
func (slow) strike(c *campaign) (string, func()) {
	return c.harm("slow", func(h *host) (string, func()) {
		kbit := leastKbit + c.r.IntN(mostKbit-leastKbit)
		c.net.Slow(c.t, h.Machine, kbit)
		return fmt.Sprintf("%s gets %d kbit/s", h.Name, kbit), func() { c.net.Fast(c.t, h.Machine) }
	})
}

// pauseDaemon stops a daemon with SIGSTOP.
type pauseDaemon struct{}

func (pauseDaemon) Name() string { return "pause" }
func (pauseDaemon) strike(c *campaign) (string, func()) {
	return c.harm("pause", func(h *host) (string, func()) {
		d := h.daemon
		d.signal(syscall.SIGSTOP)
		return d.name + " is paused", func() { d.signal(syscall.SIGCONT) }
	})
}

// pauseProgram stops a program.
type pauseProgram struct{}

func (pauseProgram) Name() string { return "pause-program" }
func (pauseProgram) strike(c *campaign) (string, func()) {
	p, ok := pick(c.r, c.present())
	if !ok {
		return "", nil
	}
	p.signal(syscall.SIGSTOP)
	return p.name + " is paused", func() { p.signal(syscall.SIGCONT) }
}

// killProgram kills a program with SIGKILL. Another takes its place later; where ranks need each
// other, all of them are replaced.
type killProgram struct{}

func (killProgram) Name() string { return "kill-program" }
func (killProgram) strike(c *campaign) (string, func()) {
	p, ok := pick(c.r, c.present())
	if !ok {
		return "", nil
	}
	victims := []*resident{p}
	if p.workload.Team {
		victims = slices.DeleteFunc(c.present(), func(other *resident) bool { return other.workload != p.workload })
	}
	for _, v := range victims {
		v.kill()
		v.host.programs[v.history.who.Workload] = nil
	}
	life := c.life
	return p.name + " is killed", func() {
		if life != c.life {
			return // everything was started anew meanwhile
		}
		if p.workload.Team {
			c.replace(p.history.who.Workload)
			return
		}
		if h := p.host; h.standing == belongs && h.programs[p.history.who.Workload] == nil {
			c.startProgram(h, p.history.who.Workload)
		}
	}
}

// killDaemon kills a daemon with SIGKILL.
type killDaemon struct{}

func (killDaemon) Name() string { return "kill" }
func (killDaemon) strike(c *campaign) (string, func()) {
	h, goesOn, ok := c.doomed(true)
	if !ok {
		return "", nil
	}
	c.tooFew = !goesOn
	d := c.killDaemonOf(h)
	return d.name + " is killed", nil
}

// killDaemonOf has a host lost by the end of its daemon.
func (c *campaign) killDaemonOf(h *host) *process {
	since, d := now(), h.daemon
	d.kill()
	c.lose(h, since)
	return d
}

// restart kills a daemon with SIGKILL, and starts it again soon, perhaps before anybody has
// noticed.
type restart struct{}

func (restart) Name() string { return "restart" }
func (restart) strike(c *campaign) (string, func()) {
	if !c.listed {
		return "", nil
	}
	h, _, ok := c.doomed(false)
	if !ok {
		return "", nil
	}
	life := c.life
	d := c.killDaemonOf(h)
	return d.name + " is killed, and will be started again", func() {
		if life == c.life && h.standing == away {
			c.comeBack(h)
		}
	}
}

// drain has a host leave in order. What else is done to the cluster meanwhile may hold that up.
type drain struct{}

func (drain) Name() string { return "drain" }
func (drain) strike(c *campaign) (string, func()) {
	h, ok := pick(c.r, c.staying())
	if !ok || len(c.staying()) == 1 || c.changes() > 1 {
		return "", nil
	}
	c.leave(h)
	return h.Name + " leaves", nil
}

// join has a host come back that was lost or has left.
type join struct{}

func (join) Name() string { return "join" }
func (join) strike(c *campaign) (string, func()) {
	h, ok := pick(c.r, c.returning())
	if !ok {
		return "", nil
	}
	c.comeBack(h)
	return h.Name + " is started again", nil
}

// expel keeps a host out of the others' reach until they have gone on without it. It has no cable,
// or one of the others does not reach it; then it is not known before which of the two is left out.
// Everything else is mended before.
type expel struct{}

func (expel) Name() string { return "expel" }
func (expel) strike(c *campaign) (string, func()) {
	c.mendAll()
	c.awaitAgreement(c.Progress)
	h, _, ok := c.doomed(false)
	if !ok {
		return "", nil
	}
	since := now()
	if left := c.members(); len(left) > 2 && c.r.IntN(2) == 0 {
		a, b, _ := c.two()
		what := fmt.Sprintf("nothing passes between %s and %s until one is left out", a.Name, b.Name)
		c.report.say("expel: " + what)
		c.sever(a, b)
		c.awaitExpulsion(since, a, b)
		c.restore(a, b)
		return what, nil
	}
	what := fmt.Sprintf("%s has no cable until it is left out", h.Name)
	c.report.say("expel: " + what)
	c.net.Disconnect(c.t, h.Machine)
	c.lose(h, since)
	c.awaitAgreement(givenUpWithin + c.Progress)
	c.net.Connect(c.t, h.Machine)
	return what, nil
}
