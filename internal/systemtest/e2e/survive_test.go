package e2e

import (
	"strings"
	"testing"

	"dsmd/internal/systemtest/testcluster"
)

// TestSurvivors kills two of three daemons, one after the other has been recovered from: programs
// of the others go on with their memory, also where its homes were lost, with locks and with new
// allocations, and are told at a barrier that it cannot be passed any more. The daemon that is left
// says who is.
func TestSurvivors(t *testing.T) {
	t.Parallel()
	c := serve(t, 3, 3, "--survive")
	first, second, doomed := join(t, c, 0, 0, 3), join(t, c, 1, 1, 3), join(t, c, 2, 2, 3)
	for _, p := range []*testcluster.Process{first, second, doomed} {
		p.Do(t, "ok", "alloc data 100")
	}
	first.Do(t, "ok", "fill data 1000")
	doomed.Do(t, "ok", "check data 1000")
	doomed.Do(t, "ok", "lock door")
	first.Say(t, "barrier")
	second.Say(t, "lock door")
	c.Daemons[2].Kill(t)

	if said := second.Hear(t); !strings.HasPrefix(said, "owner died") {
		t.Errorf("who waits for the lock of a program that is lost is told %q", said)
	}
	if said := second.Ask(t, "repair door"); !strings.HasPrefix(said, "repaired after") {
		t.Errorf("the lock of a program that is lost is granted with %q", said)
	}
	second.Do(t, "ok", "unlock door")
	if said := first.Hear(t); !strings.Contains(said, "with rank 2") {
		t.Errorf("the barrier ends with %q", said)
	}
	second.Do(t, "ok", "check data 1000")
	second.Do(t, "ok", "fill data 2000")
	first.Do(t, "ok", "check data 2000")
	first.Do(t, "ok", "alloc more 50")
	first.Do(t, "ok", "fill more 1")
	for _, d := range c.Daemons[:2] {
		d.AwaitLog(t, "recovery is over")
	}

	c.Daemons[1].Kill(t)
	c.Daemons[0].AwaitLog(t, `"epoch": 2, "members": "0"`)
	first.Do(t, "ok", "check data 2000")
	first.Do(t, "ok", "fill data 3000")
	first.Do(t, "ok", "check more 1")
	// The lock stayed at the node that is lost: whether it was held there is not known any more,
	// and the program is told so.
	if said := first.Ask(t, "lock door"); !strings.HasPrefix(said, "owner died") {
		t.Errorf("who wants a lock that stayed at a node which is lost is told %q", said)
	}
	if said := first.Ask(t, "repair door"); !strings.HasPrefix(said, "repaired after") {
		t.Errorf("a lock that stayed at a node which is lost is granted with %q", said)
	}
	first.Succeed(t)
	if !c.Daemons[0].Running() {
		t.Error("the last daemon has ended")
	}
}
