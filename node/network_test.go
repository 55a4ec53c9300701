package node

import (
	"testing"
	"time"

	"dsmd/transport"
	"dsmd/transport/emulated"
)

// TestEmulatedNetwork: what goes to another node and comes back takes the latency twice, and pages
// arrive as they were sent.
func TestEmulatedNetwork(t *testing.T) {
	const latency = 2 * time.Millisecond
	c := start(t, setup{nodes: 2, wrap: func(_ int, base transport.Transport) transport.Transport {
		slow, err := emulated.New(emulated.Config{Base: base, Link: emulated.Link{Latency: latency}, MaxQueuedBytes: 1 << 30})
		if err != nil {
			t.Fatal(err)
		}
		return slow
	}})
	a, b := c.members[0].join(), c.members[1].join()
	page := a.bind("x", 4)
	b.bind("x", 4)
	for round := range uint64(3) {
		a.store(page, 0, round)
		began := time.Now()
		if got := b.load(page, 0); got != round {
			t.Errorf("node 1 reads %d, want %d", got, round)
		}
		if took := time.Since(began); took < 2*latency {
			t.Errorf("a page came in %v from another node, over a network with a latency of %v", took, latency)
		}
	}
}
