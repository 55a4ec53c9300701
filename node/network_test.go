package node

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"dsmd/transport"
	"dsmd/transport/emulated"
	"dsmd/transport/rdma"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"

	"go.uber.org/zap"
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

// TestDeviceFailsAtStart: a node that has a device of RDMA, and cannot use it, goes on with TCP if
// any transport will do. It tells no peer that it has RDMA. Else it does not start.
func TestDeviceFailsAtStart(t *testing.T) {
	for name, c := range map[string]struct {
		network Network
		starts  bool
	}{
		"auto":           {Network{Transport: transportAuto}, true},
		"rdma":           {Network{Transport: transportRDMA}, false},
		"a named device": {Network{Transport: transportAuto, RDMADevice: "nowhere"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			address := transporttest.Listen(t)
			peers := []string{address.Addr().String(), ""}
			cfg := Config{Self: 0, Nodes: 2, Peers: peers, Listener: address, Network: c.network, Log: zap.NewNop()}
			var device rdma.Device
			device.Info.Name = "nowhere"
			base := tcpConfig(&cfg, 0, os.Getpagesize(), 1<<30)
			n, err := openTransport(&cfg, &base, &device, "")
			if (err == nil) != c.starts {
				t.Fatalf("opened: %v", err)
			}
			if err != nil {
				return
			}
			defer n.Close()
			if n.links != nil || !strings.Contains(n.reason, "nowhere") {
				t.Errorf("it uses RDMA: %v, and says %q", n.links != nil, n.reason)
			}
			other, err := tcp.New(tcp.Config{Self: 1, Peers: peers, PageBytes: os.Getpagesize()})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			connected := make(chan error, 1)
			go func() { connected <- n.connect(ctx) }()
			if err := errors.Join(other.Connect(ctx), <-connected); err != nil {
				t.Fatal(err)
			}
			if heard := (greeted{other}).PeerHello(0); len(heard) > 0 {
				t.Errorf("it has told its peer %q", heard)
			}
		})
	}
}
