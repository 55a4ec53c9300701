package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestReturnToJoinedCluster: a daemon of a cluster whose nodes have found each other is killed, and
// started again at once with --rejoin; then another one is drained and comes back too, as soon as
// that is done. Nothing that the others had is lost.
func TestReturnToJoinedCluster(t *testing.T) {
	t.Parallel()
	l, c := joined(t, 3, "--survive")
	stays := join(t, c, 0, 0, 3)
	stays.Do(t, "ok", "alloc data 100")
	stays.Do(t, "ok", "fill data 1000")
	again := func(place int) *testcluster.Process {
		c.Daemons[place] = l.Daemon(t, place, "--survive", "--rejoin", "--join", l.IP((place+1)%3))
		c.Daemons[place].AwaitLog(t, "recovery is over")
		p := join(t, c, place, place, 3)
		p.Do(t, "ok", "alloc data 100")
		return p
	}

	doomed := join(t, c, 2, 2, 3)
	doomed.Do(t, "ok", "alloc data 100")
	doomed.Do(t, "ok", "check data 1000")
	c.Daemons[2].Kill(t)
	doomed.Wait(t)
	second := again(2)
	second.Do(t, "ok", "check data 1000")
	second.Do(t, "ok", "fill data 2000")
	stays.Do(t, "ok", "check data 2000")

	leaves := c.Daemons[1]
	if out, err := c.Drain(t, 1); err != nil {
		t.Fatalf("dsmd drain: %v: %s", err, out)
	}
	third := again(1) // at once, where the other was
	leaves.Succeed(t)
	third.Do(t, "ok", "check data 2000")
	third.Do(t, "ok", "fill data 3000")
	for _, p := range []*testcluster.Process{stays, second} {
		p.Do(t, "ok", "check data 3000")
	}
	for _, p := range []*testcluster.Process{stays, second, third} {
		p.Succeed(t)
	}
	for i, d := range c.Daemons {
		if !d.Running() || strings.Contains(d.Errors(), "go on without this one") {
			t.Errorf("the daemon of node %d was lost", i)
		}
	}
}
