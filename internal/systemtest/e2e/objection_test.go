package e2e

import (
	"strings"
	"testing"
	"time"

	"dsmd/internal/systemtest/netns"
	"dsmd/internal/systemtest/testcluster"
)

// TestLostObjection: a node is suspected, and what it said last, that it has started or that the
// suspicion is wrong, is lost in the same trouble of the network. When the network is whole again
// it is not taken for dead, though it has no reason to say anything once more.
func TestLostObjection(t *testing.T) {
	long(t)
	t.Parallel()
	once(t)
	const deadAfter = 10 * time.Second
	dsmd := testcluster.Dsmd(t) // before the machines, which then have it
	net := netns.Start(t, "ann", "bob")
	ann, bob := net.Machines[0], net.Machines[1]
	filter := net.Filter(t)
	var daemons []*testcluster.Process
	for _, m := range net.Machines {
		line := m.Line(dsmd, "serve", "--cluster", "objection", "--nodes", "2", "--join", "ann,bob", "--socket", "/run/dsmd.sock", "--insecure",
			"--dead-after", deadAfter.String(), "--log-level", "debug")
		daemons = append(daemons, testcluster.Start(t, testcluster.Command{Name: "the daemon of " + m.Name, Path: line[0], Args: line[1:]}))
	}
	for _, d := range daemons {
		d.AwaitLog(t, "serving")
	}
	filter.Sever(t, bob, ann)
	daemons[0].AwaitLog(t, "node suspected")
	suspected := time.Now()
	// it is asked and told, and what it says is said a few times, in less than that
	time.Sleep(3 * time.Second)
	filter.Restore(t, bob, ann)

	// What must not happen can only be waited for. ann would lose bob after less than deadAfter.
	time.Sleep(time.Until(suspected.Add(deadAfter + time.Second)))
	for i, d := range daemons {
		if !d.Running() || strings.Contains(d.Errors(), "node lost") {
			t.Errorf("the daemon of %s has lost the other, which was out of reach for a moment", net.Machines[i].Name)
		}
	}
}
