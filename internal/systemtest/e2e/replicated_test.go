package e2e

import (
	"fmt"
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestReplicated kills the daemon that alone had memory, after a barrier, and after that one more,
// after an unlock: what was written before is there, all of it, and of what was written after it
// nothing.
func TestReplicated(t *testing.T) {
	t.Parallel()
	replicated(t, "--survive")
}

// replicated is TestReplicated with daemons of these flags.
func replicated(t *testing.T, flags ...string) {
	t.Helper()
	c := serve(t, 3, 3, flags...)
	first, second, doomed := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 2, 2, 3)
	all := []*testcluster.Process{first, second, doomed}
	for _, p := range all {
		p.Do(t, "ok", "replicate data 300 1")
	}
	if said := first.Ask(t, "alloc data 300"); !strings.Contains(said, "survive") {
		t.Errorf("an allocation of the same memory without backups ends with %q", said)
	}
	doomed.Do(t, "ok", "fill data 1000")
	for _, p := range all {
		p.Say(t, "barrier")
	}
	for _, p := range all {
		p.Expect(t, "ok")
	}
	doomed.Do(t, "ok", "put data 7 1")
	c.Daemons[2].Kill(t)
	for _, d := range c.Daemons[:2] {
		d.AwaitLog(t, "recovery is over")
	}
	first.Do(t, "ok", "check data 1000")
	second.Do(t, "ok", "check data 1000")

	if said := second.Ask(t, "repair door"); said != "ok" && !strings.HasPrefix(said, "repaired after") {
		t.Errorf("a lock is granted with %q", said)
	}
	second.Do(t, "ok", "fill data 2000")
	second.Do(t, "ok", "unlock door")
	c.Daemons[1].Kill(t)
	c.Daemons[0].AwaitLog(t, `"epoch": 2, "members": "0"`)
	first.Do(t, "ok", "check data 2000")
	first.Do(t, "ok", "fill data 3000")
	first.Do(t, "ok", "commit")
	first.Do(t, "ok", "check data 3000")
	first.Succeed(t)
}

// TestReplicatedAgain: when one daemon after another is killed, memory that survives the loss of
// one survives each, and nobody has to touch it between.
func TestReplicatedAgain(t *testing.T) {
	t.Parallel()
	c := serve(t, 3, 3, "--survive")
	first, doomed := join(t, c, 0, 0, 3), join(t, c, 2, 2, 3)
	for _, p := range []*testcluster.Process{first, doomed} {
		p.Do(t, "ok", "replicate data 300 1")
	}
	doomed.Do(t, "ok", "fill data 1000")
	doomed.Do(t, "ok", "commit")
	for _, killed := range []int{2, 1} {
		c.Daemons[killed].Kill(t)
		for _, d := range c.Daemons[:killed] {
			d.AwaitLog(t, fmt.Sprintf(`all is handed over {"epoch": %d}`, 3-killed))
		}
	}
	first.Do(t, "ok", "check data 1000")
	first.Succeed(t)
}
