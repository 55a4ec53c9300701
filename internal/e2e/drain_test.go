package e2e

import (
	"strings"
	"testing"
)

// TestRollingRestart has each of three daemons leave (dsmd drain) and come back (--rejoin), while a program on another goes on with its memory and
// its lock. Nothing is lost, and nothing is said to be.
func TestRollingRestart(t *testing.T) {
	c := serve(t, 3, 3, "--survive")
	values := 1000
	first := join(t, c, 0, 0, 3)
	first.Do(t, "ok", "alloc data 100")
	first.Do(t, "ok", "fill data 1000")
	stays := first
	for round, leaver := range []int{1, 2, 0} {
		if leaver == 0 { // whose program has to go before, and another takes over
			stays = join(t, c, 1, 1, 3)
			stays.Do(t, "ok", "alloc data 100")
			first.Succeed(t)
		}
		if out, err := c.Drain(t, leaver); err != nil || !strings.Contains(out, "has left") {
			t.Fatalf("round %d: dsmd drain: %v: %s", round, err, out)
		}
		c.Daemons[leaver].Succeed(t)
		stays.Do(t, "ok", "check data %d", values)
		values += 1000
		stays.Do(t, "ok", "fill data %d", values)
		stays.Do(t, "ok", "lock door")
		c.Again(t, leaver, "--survive", "--rejoin")
		stays.Do(t, "ok", "unlock door")
		c.Daemons[leaver].AwaitLog(t, "recovery is over")
		fresh := join(t, c, leaver, 2, 3)
		fresh.Do(t, "ok", "alloc data 100")
		fresh.Do(t, "ok", "check data %d", values)
		values += 1000
		fresh.Do(t, "ok", "fill data %d", values)
		fresh.Do(t, "ok", "lock door")
		stays.Do(t, "ok", "check data %d", values)
		fresh.Do(t, "ok", "unlock door")
		fresh.Succeed(t)
	}
	stays.Succeed(t)
	for i, d := range c.Daemons {
		if !d.Running() {
			t.Errorf("daemon %d has ended", i)
		}
	}
}

// TestDrainIsRefused says why where a node cannot leave, and then it goes on.
func TestDrainIsRefused(t *testing.T) {
	c := serve(t, 2, 2, "--survive")
	p := join(t, c, 1, 1, 2)
	p.Do(t, "ok", "alloc data 10")
	p.Do(t, "ok", "fill data 5")
	if out, err := c.Drain(t, 1); err == nil || !strings.Contains(out, "programs are attached") {
		t.Errorf("a node with a program: %v: %s", err, out)
	}
	p.Do(t, "ok", "check data 5")
	if out, err := c.Drain(t, 0); err != nil {
		t.Errorf("the other node: %v: %s", err, out)
	}
	p.Do(t, "ok", "check data 5")
	p.Succeed(t)
	if out, err := c.Drain(t, 1); err == nil || !strings.Contains(out, "last node") {
		t.Errorf("the last node: %v: %s", err, out)
	}
	if out, err := serve(t, 2, 2).Drain(t, 0); err == nil || !strings.Contains(out, "--survive") {
		t.Errorf("a node of a cluster that does not survive losses: %v: %s", err, out)
	}
}
