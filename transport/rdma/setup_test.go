package rdma

import (
	"testing"

	"dsmd/transport/transporttest"
)

// TestOffersToStopped: a peer that is stopped for long finds one offer when it goes on, and then
// there is a queue pair.
func TestOffersToStopped(t *testing.T) {
	t.Parallel()
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	seen, caller := observe(2), nodes[1]
	p := caller.peers[0]
	pollUntil(t, "an offer", asInterface(nodes[1:]), seen[1:], func() bool { return p.link != nil })
	for range 50 { // as if so much time had passed
		caller.gate.Enter()
		if !p.due.IsZero() {
			caller.overdue(p)
		}
		caller.gate.Leave()
	}
	if tried := caller.LinkStats().LinksTried; tried != 1 {
		t.Errorf("a peer that says nothing was made %d offers", tried)
	}
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return nodes[0].LinkStats().Links == 1 && caller.LinkStats().Links == 1 })
}
