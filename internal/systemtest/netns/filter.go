package netns

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// LossPercent is how much of what goes a way that loses is lost.
const LossPercent = 20

// filterRules are the switch's rules for frames from one of its ports to another.
var filterRules = fmt.Sprintf(`table bridge filter {
	set severed { type ifname . ifname; }
	set losing { type ifname . ifname; }
	chain forward {
		type filter hook forward priority 0;
		iifname . oifname @severed drop
		iifname . oifname @losing numgen random mod 100 < %d drop
	}
}`, LossPercent)

// Filter makes ways through the switch worse than a cable that is pulled: one way between two
// machines, while all others are as before. The machines themselves notice nothing but silence. Its
// methods belong to the goroutine of the test.
type Filter struct{ n *Network }

// Filter sets up the switch's packet filter, once for each network. It lets everything pass. It
// needs the program nft (nftables).
func (n *Network) Filter(t testing.TB) Filter {
	t.Helper()
	needs(t, "nft")
	f := Filter{n}
	f.nft(t, filterRules)
	return f
}

// Sever loses everything that one machine sends another.
func (f Filter) Sever(t testing.TB, from, to *Machine) {
	t.Helper()
	f.nft(t, f.element("add", "severed", from, to))
}

// Lose loses LossPercent of it, by chance.
func (f Filter) Lose(t testing.TB, from, to *Machine) {
	t.Helper()
	f.nft(t, f.element("add", "losing", from, to))
}

// Restore lets everything pass that one machine sends another.
func (f Filter) Restore(t testing.TB, from, to *Machine) {
	t.Helper()
	script := ""
	for _, set := range []string{"severed", "losing"} {
		// Deleting what is not there would fail, adding what is there does nothing.
		script += f.element("add", set, from, to) + f.element("delete", set, from, to)
	}
	f.nft(t, script)
}

// element is the command that adds the way between two machines to a set, or deletes it.
func (f Filter) element(verb, set string, from, to *Machine) string {
	way := port(slices.Index(f.n.Machines, from)) + " . " + port(slices.Index(f.n.Machines, to))
	return fmt.Sprintf("%s element bridge filter %s { %s }\n", verb, set, way)
}

// nft has nft(8) carry out a script, all of it or nothing.
func (f Filter) nft(t testing.TB, script string) {
	t.Helper()
	cmd := f.n.onSwitch("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("netns: nft: %v\n%s\n%s", err, out, script)
	}
}

// slowBurst and slowQueue are what the switch lets through at once, and for how long it keeps the
// rest before it drops it.
const (
	slowBurst = "10kb"
	slowQueue = "300ms"
)

// Slow bounds what reaches a machine to so many kbit/s. What does not fit waits in the switch, and
// is lost when too much waits.
func (n *Network) Slow(t testing.TB, m *Machine, kbit int) {
	t.Helper()
	n.shape(t, "replace", m, "tbf", "rate", strconv.Itoa(kbit)+"kbit", "burst", slowBurst, "latency", slowQueue)
}

// Fast takes the bound of Slow away. Preconditions: there is one.
func (n *Network) Fast(t testing.TB, m *Machine) { t.Helper(); n.shape(t, "delete", m) }

// shape changes in which order and how fast what waits for a machine leaves the switch.
func (n *Network) shape(t testing.TB, verb string, m *Machine, discipline ...string) {
	t.Helper()
	args := slices.Concat([]string{"qdisc", verb, "dev", port(slices.Index(n.Machines, m)), "root"}, discipline)
	if out, err := n.onSwitch("tc", args...).CombinedOutput(); err != nil {
		t.Fatalf("netns: shaping what %s gets: %v\n%s", m.Name, err, out)
	}
}
