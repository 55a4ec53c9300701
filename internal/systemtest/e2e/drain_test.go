package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestRollingRestart has each of three daemons leave (dsmd drain) and come back (--rejoin), while a
// program on another goes on with its memory and its lock. Nothing is lost, and nothing is said to
// be.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	rollingRestart(t, "--survive")
}

// rollingRestart is TestRollingRestart with daemons of these flags.
func rollingRestart(t *testing.T, flags ...string) {
	t.Helper()
	c := serve(t, 3, 3, flags...)
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
		c.Again(t, leaver, append(flags, "--rejoin")...)
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
	t.Parallel()
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

// TestDrainAll: all nodes are told to leave at once. All but one do, and that one says that it
// cannot, and goes on with all that there was; so it does when it is told to leave again. Two of
// three leave at once.
func TestDrainAll(t *testing.T) {
	long(t)
	t.Parallel()
	for _, nodes := range []int{2, 3} {
		c := serve(t, nodes, nodes, "--survive")
		writer := join(t, c, 0, 0, nodes)
		writer.Do(t, "ok", "keep data 100")
		writer.Do(t, "ok", "fill data 1000")
		writer.Succeed(t)
		for left := range nodes { // each node is the last in turn; the others come back
			stays := drainAll(t, c)
			p := join(t, c, stays, stays, nodes)
			p.Do(t, "ok", "keep data 100")
			p.Do(t, "ok", "check data 1000")
			p.Succeed(t)
			if out, err := c.Drain(t, stays); err == nil || !strings.Contains(out, "nobody") {
				t.Errorf("%d nodes, round %d: node %d, which is left alone, is told to leave again: %v: %s", nodes, left, stays, err, out)
			}
			for i := range nodes {
				if i != stays {
					c.Again(t, i, "--survive", "--rejoin")
					c.Daemons[i].AwaitLog(t, "recovery is over")
				}
			}
		}
	}
}

// drainAll tells all nodes to leave at once, and returns the one that is left.
func drainAll(t *testing.T, c *testcluster.Cluster) (stays int) {
	t.Helper()
	type outcome struct {
		node int
		said string
		err  error
	}
	outcomes := make(chan outcome)
	for i := range c.Daemons {
		go func() {
			said, err := c.Drain(t, i)
			outcomes <- outcome{i, said, err}
		}()
	}
	refused := []int{}
	for range c.Daemons {
		o := <-outcomes
		switch {
		case o.err == nil:
			c.Daemons[o.node].Succeed(t)
		case strings.Contains(o.said, "nobody to hand it over to"):
			refused = append(refused, o.node)
		default:
			t.Errorf("dsmd drain of node %d: %v: %s", o.node, o.err, o.said)
		}
	}
	if len(refused) != 1 || !c.Daemons[refused[0]].Running() {
		t.Fatalf("the nodes %v of %d are left after a drain of all, want one, which runs", refused, len(c.Daemons))
	}
	return refused[0]
}
