package nemesis

import (
	"strings"
	"testing"
	"time"

	"dsmd/internal/systemtest/netns"
)

// trio is a campaign of three hosts, of which nothing runs.
func trio() *campaign {
	c := &campaign{views: map[int][]int{0: {0, 1, 2}}, past: []past{{}}}
	for rank := range 3 {
		c.hosts = append(c.hosts, &host{Machine: &netns.Machine{Name: hostNames[rank]}, rank: rank, daemon: &process{name: "daemon of " + hostNames[rank]}})
	}
	c.view = c.hosts
	return c
}

// TestViews: who goes on with whom is put together from what daemons say.
func TestViews(t *testing.T) {
	c := trio()
	if c.unsettled() {
		t.Error("nothing has happened, and something changes")
	}
	eve := c.hosts[2]
	d := &death{host: 2, settled: unknown}
	c.past[0].deaths = deaths{d}
	eve.standing = away
	say := func(h *host, epoch int, members string) {
		h.epoch = epoch
		c.note(h, epoch, members)
	}
	say(c.hosts[0], 1, "0,1")
	if c.settle(); !c.unsettled() || d.settled != unknown {
		t.Error("one host goes on without another, and all are said to")
	}
	say(c.hosts[1], 1, "0,1")
	if c.settle(); c.unsettled() || d.settled == unknown {
		t.Error("all go on without a host, and it is not noticed")
	}
	eve.standing, eve.epoch = belongs, 2
	if !c.unsettled() {
		t.Error("a host has come, and the others need not know it")
	}
	for _, h := range c.hosts {
		say(h, 2, "0,1,2")
	}
	if c.unsettled() || len(c.wrong) > 0 {
		t.Errorf("a host has come back, all go on with it, and it is not noticed: %v", c.wrong)
	}
	if say(eve, 2, "0,2"); len(c.wrong) != 1 || !strings.Contains(c.wrong[0].Error(), "two views of epoch 2") {
		t.Errorf("two views of an epoch are noticed as %v", c.wrong)
	}
}

// TestDoomed: a host is lost only if it is certain whether the others go on.
func TestDoomed(t *testing.T) {
	for _, test := range []struct {
		name      string
		standings [3]standing
		view      int // how many are in the last one
		goesOn    [3]bool
		certain   [3]bool
	}{
		{"all are there", [3]standing{}, 3, [3]bool{true, true, true}, [3]bool{true, true, true}},
		{"one is away", [3]standing{2: away}, 2, [3]bool{false, true}, [3]bool{true, true}},
		{"one has left since the last view was heard", [3]standing{1: away}, 3, [3]bool{2: true}, [3]bool{0: true, 2: true}},
		{"one comes back", [3]standing{2: coming}, 2, [3]bool{false, true}, [3]bool{false, true}},
		{"one leaves", [3]standing{2: leaving}, 3, [3]bool{false, true, true}, [3]bool{false, true, true}},
	} {
		c := trio()
		c.view = c.hosts[:test.view]
		members := []int{}
		for i, s := range test.standings {
			if c.hosts[i].standing = s; s == belongs || s == leaving {
				members = append(members, i)
			}
		}
		c.views[0] = members
		for _, i := range members {
			goesOn, certain := c.goesOnWithout(c.hosts[i])
			if certain != test.certain[i] || certain && goesOn != test.goesOn[i] {
				t.Errorf("%s, and %s is lost: the others go on: %v, certain: %v", test.name, hostNames[i], goesOn, certain)
			}
		}
	}
}

// TestPatience: what does not count is the longest that any thread has waited for a core meanwhile.
func TestPatience(t *testing.T) {
	queued := map[int]time.Duration{1: 40 * time.Second, 2: 2 * time.Second}
	p := &patience{began: time.Now().Add(-time.Minute), queued: func() map[int]time.Duration { return queued }, before: map[int]time.Duration{1: 35 * time.Second}}
	if p.over(time.Hour) {
		t.Error("an hour is over after a minute")
	}
	if !p.over(50 * time.Second) {
		t.Error("of a minute 5 s do not count, and 50 s are not over")
	}
	queued[3] = 20 * time.Second
	if p.over(45*time.Second) || !p.over(35*time.Second) {
		t.Error("of a minute 20 s do not count")
	}
}
