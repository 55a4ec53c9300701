package e2e

import (
	"flag"
	"fmt"
	"testing"
	"time"
)

var many = flag.Int("many", 6, "daemons of TestLargeCluster")

// TestLargeCluster: a cluster of more nodes than others have, with a program on each, goes through
// a start, barriers, pages that all read, the loss of a node, a drain, and the return of both. What
// each took is logged.
//
//	go test ./internal/systemtest/e2e -run LargeCluster -v -many 64
func TestLargeCluster(t *testing.T) {
	t.Parallel()
	began := time.Now()
	done := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	n := *many
	lost, leaver := n-1, n-2
	all, c := engageAt(t, n, n, "--survive", "--region", "64MiB")
	done("all programs have joined")
	all.do(t, "ok", "alloc data 100")
	done("all have allocated")
	for range 10 {
		all.do(t, "ok", "barrier all")
	}
	done("10 barriers")
	all[0].Do(t, "ok", "fill data 1000")
	all.do(t, "ok", "check data 1000")
	done("100 pages that all have read")
	all[1].Do(t, "ok", "fill data 2000")
	done("they are written by another")

	c.Daemons[lost].Kill(t)
	all[lost].Kill(t)
	left := all[:lost]
	for _, d := range c.Daemons[:lost] {
		d.AwaitLog(t, "recovery is over")
	}
	done("a node is lost")
	left.do(t, "ok", "check data 2000")
	done("all have read again")

	all[leaver].Succeed(t)
	if out, err := c.Drain(t, leaver); err != nil {
		t.Fatalf("dsmd drain: %v: %s", err, out)
	}
	c.Daemons[leaver].Succeed(t)
	done("another has left")
	for _, i := range []int{leaver, lost} {
		c.Again(t, i, "--survive", "--rejoin", "--region", "64MiB")
		c.Daemons[i].AwaitLog(t, "recovery is over")
		fresh := join(t, c, i, i, n)
		fresh.Do(t, "ok", "alloc data 100")
		fresh.Do(t, "ok", "check data 2000")
		fresh.Succeed(t)
		done(fmt.Sprintf("node %d has come back", i))
	}
	all[:leaver].do(t, "ok", "check data 2000")
	all[:leaver].end(t)
	done("all have read and ended")
}
