package node

import (
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/transport/sim"
)

// countersOfBackups are what moves only where memory is replicated.
var countersOfBackups = []string{"commit_calls", "backups_sent", "backups", "backups_restored"}

// TestReplicatedMemorySurvives: of nodes that keep backups one leaves and comes back, knowing
// nothing, and then the one that has written is lost. What it had committed is there.
func TestReplicatedMemorySurvives(t *testing.T) {
	s := surviving(4, sim.Options{})
	c := start(t, s)
	c.lossy = true
	const pages = 8 * HomeStripe
	bind := bindCall("x", pages*512)
	bind.Replicas = 1
	writer, reader := c.members[1].join(), c.members[2].join()
	first, _, err := attach.DecodePages(writer.ok(bind).Payload)
	if err != nil {
		t.Fatal(err)
	}
	reader.ok(bind)
	for i := range pagetable.Page(pages) {
		writer.store(pagetable.Page(first)+i, 8, uint64(i)+1)
	}
	writer.ok(attach.Call{Op: attach.OpCommit})
	moved := map[string]bool{}
	look := func() {
		for _, m := range c.members {
			for name, value := range m.ask() {
				moved[name] = moved[name] || value > 0
			}
		}
	}
	look()
	c.drainNode(c.members[0])
	c.inView(2, 1, 2, 3)
	c.comeBack(0, s)
	c.inView(3, 0, 1, 2, 3)
	c.sever(1)
	c.inView(4, 0, 2, 3)
	c.without(1)
	for i := range pagetable.Page(pages) {
		reader.wantLoad(pagetable.Page(first)+i, 8, uint64(i)+1)
	}
	look()
	for _, m := range c.members {
		m.want(map[string]uint64{"pages_lost": 0})
	}
	for _, name := range countersOfBackups {
		if !moved[name] {
			t.Errorf("nothing moves %s", name)
		}
	}
}
