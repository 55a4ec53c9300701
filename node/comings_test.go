package node

import (
	"fmt"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/transport"
	"dsmd/transport/sim"
)

// drainNode tells a node to leave and waits until it has.
func (c *cluster) drainNode(m *member) {
	c.Helper()
	conn := m.dial()
	defer conn.Close()
	if _, refused := greet(m, conn, hello(attach.NoRank)); refused != nil {
		c.Fatal(refused.Reason)
	}
	write(m, conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpDrain, Ticket: 1}))
	f, err := conn.ReadFrame()
	if err != nil {
		c.Fatalf("node %d has not answered: %v; it has ended with %v", m.node.cfg.Self, err, m.ended())
	}
	if f.Kind != attach.KindReply {
		c.Fatalf("node %d answers with %v", m.node.cfg.Self, f.Kind)
	}
	r, err := attach.DecodeReply(f.Body)
	if err != nil || r.Status != attach.StatusOK {
		c.Fatalf("node %d does not leave: %v %q, %v", m.node.cfg.Self, r.Status, r.Payload, err)
	}
	if err := m.ended(); err != nil {
		c.Fatalf("node %d has left, and ends with %v", m.node.cfg.Self, err)
	}
}

// comeBack starts a node anew, in the place of one that has ended, and waits until all are in.
func (c *cluster) comeBack(i int, s setup) *member {
	c.Helper()
	restarted := c.net.Restart(transport.NodeID(i))
	s.wrap = func(int, transport.Transport) transport.Transport { return restarted }
	change := s.change
	s.change = func(cfg *Config) { change(cfg); cfg.Rejoin = true }
	m := c.startNode(i, s)
	c.members[i] = m
	return m
}

// inView waits until all nodes are in the view of an epoch.
func (c *cluster) inView(epoch uint64, members ...int) {
	c.Helper()
	for _, i := range members {
		m := c.members[i]
		eventually(c, fmt.Sprintf("node %d is in epoch %d with %d members", i, epoch, len(members)), func() bool {
			return m.counter("epoch") == epoch && m.counter("members") == uint64(len(members))
		})
	}
}

// TestRollingRestart: each node leaves in turn and comes back, as a process that knows nothing, and nothing is lost: pages, whoever had them and wherever
// they had their homes, names that stay, and locks.
func TestRollingRestart(t *testing.T) {
	s := surviving(3, sim.Options{})
	c := start(t, s)
	c.lossy = true
	const pages = 6 * HomeStripe
	writer := c.members[0].join()
	first := writer.bind("x", pages)
	writer.ok(nameCall(attach.OpKeep, "x"))
	for i := range pagetable.Page(pages) {
		writer.store(first+i, 8, uint64(i)+1)
	}
	writer.leave()
	for round, leaver := range []int{0, 1, 2, 1} {
		away := c.members[leaver]
		eventually(t, "the programs have left", func() bool { return away.counter("programs") == 0 })
		c.drainNode(away)
		others := []int{0, 1, 2}
		others = append(others[:leaver], others[leaver+1:]...)
		c.inView(uint64(3*round+2), others...)
		a, b := c.members[others[0]].join(), c.members[others[1]].join()
		for _, p := range []*prog{a, b} {
			if got := p.bind("x", pages); got != first {
				t.Fatalf("round %d: the memory is at page %d now, and was at %d", round, got, first)
			}
		}
		for i := range pagetable.Page(pages) {
			a.wantLoad(first+i, 8, uint64(i)+1)
			if round > 0 {
				b.wantLoad(first+i, 16, uint64(round))
			}
			b.store(first+i, 16, uint64(round)+1)
		}
		if r := a.acquire(5, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("round %d: the lock is granted with %v", round, r.Status)
		}
		a.release(5, attach.Write)
		c.comeBack(leaver, s)
		c.inView(uint64(3*round+3), 0, 1, 2)
		fresh := c.members[leaver].join()
		if got := fresh.bind("x", pages); got != first {
			t.Fatalf("round %d: the memory is at page %d on the node that has come, and was at %d", round, got, first)
		}
		for i := range pagetable.Page(pages) {
			fresh.wantLoad(first+i, 16, uint64(round)+1)
			if i%2 == 0 {
				fresh.store(first+i, 8, uint64(i)+1)
			}
		}
		if r := fresh.acquire(5, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("round %d: the lock is granted with %v on the node that has come", round, r.Status)
		}
		fresh.release(5, attach.Write)
		for _, p := range []*prog{a, b, fresh} {
			p.leave()
		}
		for _, m := range c.members {
			m.programs = nil
			m.want(map[string]uint64{"nodes_lost": 0, "pages_lost": 0, "no_quorum": 0})
		}
	}
	c.quiet()
}
