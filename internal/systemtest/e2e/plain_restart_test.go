package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestPlainRestart: a daemon of a cluster that has gone on without it is started again as it was at
// first. It does not serve alone: it ends, and says what brings it back, and what it says does. A
// program that waits there never sees memory or locks of another cluster.
func TestPlainRestart(t *testing.T) {
	t.Parallel()
	for _, doomed := range []int{0, 1, 2} {
		// By their numbers one is called by all, one calls and is called, one calls all.
		c := serve(t, 3, 3, "--survive")
		stays := join(t, c, (doomed+1)%3, (doomed+1)%3, 3)
		stays.Do(t, "ok", "alloc data 10")
		stays.Do(t, "ok", "fill data 1")
		stays.Do(t, "ok", "lock door")
		c.Daemons[doomed].Kill(t)
		for i, d := range c.Daemons {
			if i != doomed {
				d.AwaitLog(t, "recovery is over")
			}
		}
		stays.Do(t, "ok", "fill data 7")

		c.Again(t, doomed, "--survive")
		daemon, early := c.Daemons[doomed], c.Program(t, console, doomed, testcluster.AnyRank)
		testcluster.Eventually(t, "the program is let in, or not", func() bool { return !early.Running() || early.Pending() })
		if early.Pending() && strings.HasPrefix(early.Hear(t), "rank") {
			early.Do(t, "ok", "alloc data 10")
			early.Do(t, "ok", "check data 7")
			early.Do(t, "too late", "lock door 500")
			t.Fatalf("node %d: a daemon that was started plainly has let a program in", doomed)
		}
		if status := early.Wait(t); status == 0 {
			t.Errorf("node %d: the program that has waited there ended with status 0", doomed)
		}
		if status, line := daemon.Wait(t), lastLine(daemon); status != 1 || !strings.Contains(line, "go on without this one") || !strings.HasSuffix(line, "--survive --rejoin") {
			t.Errorf("node %d: the daemon ended with status %d and %q", doomed, status, line)
		}

		c.Again(t, doomed, "--survive", "--rejoin")
		late := join(t, c, doomed, doomed, 3)
		late.Do(t, "ok", "alloc data 10")
		late.Do(t, "ok", "check data 7")
		late.Do(t, "too late", "lock door 100")
		stays.Do(t, "ok", "unlock door")
		late.Do(t, "ok", "lock door")
		late.Succeed(t)
		stays.Succeed(t)
	}
}

// TestPlainRestartReturns: with --return such a daemon comes in by itself, as one that knows
// nothing.
func TestPlainRestartReturns(t *testing.T) {
	long(t)
	t.Parallel()
	flags := []string{"--survive", "--return"}
	static := serve(t, 3, 3, flags...)
	lan, found := joined(t, 3, flags...)
	for name, test := range map[string]struct {
		c     *testcluster.Cluster
		again func()
	}{
		"listed": {static, func() { static.Again(t, 0, flags...) }},
		"joined": {found, func() { found.Daemons[0] = lan.Daemon(t, 0, append(flags, "--join", lan.IP(1))...) }},
	} {
		t.Run(name, func(t *testing.T) {
			stays := join(t, test.c, 1, 1, 3)
			stays.Do(t, "ok", "alloc data 10")
			stays.Do(t, "ok", "fill data 1")
			test.c.Daemons[0].Kill(t)
			for _, d := range test.c.Daemons[1:] {
				d.AwaitLog(t, "recovery is over")
			}
			stays.Do(t, "ok", "fill data 7")
			test.again()
			test.c.Daemons[0].AwaitLog(t, "this daemon comes back")
			test.c.Daemons[0].AwaitLog(t, "recovery is over")
			late := join(t, test.c, 0, 0, 3)
			late.Do(t, "ok", "alloc data 10")
			late.Do(t, "ok", "check data 7")
			late.Succeed(t)
			stays.Succeed(t)
		})
	}
}

// TestPlainRestartOfJoined: where nodes find each other a daemon that is started again plainly ends
// as well, and says how it comes back.
func TestPlainRestartOfJoined(t *testing.T) {
	t.Parallel()
	l, c := joined(t, 3, "--survive")
	c.Daemons[0].Kill(t)
	again := l.Daemon(t, 0, "--survive", "--join", l.IP(1))
	if status := again.Wait(t); status != 1 || !strings.Contains(lastLine(again), "is started with --rejoin") {
		t.Errorf("the daemon ended with status %d and %q", status, lastLine(again))
	}
}

// TestAllStartedAgain: daemons that have all ended found another cluster, although one of them has
// looked for the former one: there is none.
func TestAllStartedAgain(t *testing.T) {
	t.Parallel()
	flags := []string{"--survive", "--return"}
	c := serve(t, 3, 3, flags...)
	for _, d := range c.Daemons {
		d.AwaitLog(t, "serving")
	}
	for _, d := range c.Daemons {
		d.Kill(t)
	}
	c.Again(t, 1, append(flags, "--rejoin")...)
	c.Again(t, 0, flags...)
	c.Again(t, 2, flags...)
	for i, d := range c.Daemons {
		d.AwaitLog(t, "serving")
		p := join(t, c, i, i, 3)
		p.Do(t, "ok", "alloc data 10")
		p.Do(t, "ok", "fill data 7")
		p.Succeed(t)
	}
}
