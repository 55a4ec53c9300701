package tcp_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/tcp/tcptest"
	"dsmd/transport/transporttest"
)

func TestMain(m *testing.M) { transporttest.Main(m) }

// newCluster makes and connects all nodes of a cluster.
func newCluster(t testing.TB, nodes, pageBytes, maxQueuedBytes int) []*tcp.Transport {
	t.Helper()
	return newClusterWith(t, nodes, pageBytes, maxQueuedBytes, plain)
}

// security gives a node what it proves that it belongs to the others with.
type security func(*tcp.Config)

// plain gives all nodes one secret.
func plain(c *tcp.Config) { c.Secret = bytes.Repeat([]byte{42}, tcp.SecretBytes) }

// underTLS gives all nodes certificates of one authority.
func underTLS(t testing.TB) security {
	authority := tcp.NewAuthority(t, "the cluster's authority")
	return func(c *tcp.Config) { c.TLS, c.VerifyPeer = authority.Node(c.Self), tcp.VerifyName }
}

func newClusterWith(t testing.TB, nodes, pageBytes, maxQueuedBytes int, secure security) []*tcp.Transport {
	t.Helper()
	return tcptest.Connect(t, configsWith(t, nodes, pageBytes, maxQueuedBytes, secure))
}

func configsWith(t testing.TB, nodes, pageBytes, maxQueuedBytes int, secure security) []tcp.Config {
	t.Helper()
	configs := tcptest.Configs(t, nodes, pageBytes)
	for i := range configs {
		configs[i].MaxQueuedBytes = maxQueuedBytes
		secure(&configs[i])
	}
	return configs
}

// newProxiedCluster makes and connects the nodes of a cluster with proxies between them.
func newProxiedCluster(t testing.TB, nodes, pageBytes, maxQueuedBytes int, secure security) ([]*tcp.Transport, transporttest.Cutter) {
	t.Helper()
	var transports []*tcp.Transport
	proxies := transporttest.NewProxies(t, func(a, b transport.NodeID) { transports[a].Break(b) })
	configs := configsWith(t, nodes, pageBytes, maxQueuedBytes, secure)
	between(proxies, configs)
	transports = tcptest.Connect(t, configs)
	return transports, proxies
}

// between has nodes reach each other through proxies.
func between(proxies *transporttest.Proxies, configs []tcp.Config) {
	for i := range configs {
		seen := make([]string, len(configs))
		for j, other := range configs {
			if j != i {
				seen[j] = proxies.Between(transport.NodeID(i), transport.NodeID(j), other.Listener.Addr().String())
			}
		}
		configs[i].Peers, configs[i].GiveUp = seen, time.Minute
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		return asInterface(newCluster(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes))
	}, transporttest.Beside)
}

func TestConformanceUnderTLS(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		return asInterface(newClusterWith(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes, underTLS(t)))
	}, transporttest.Beside)
}

// Tests with cuts have the machine to themselves: a connection must be made faster than it is cut.

func TestCuts(t *testing.T) {
	testCuts(t, func(testing.TB) security { return plain })
}

func TestCutsUnderTLS(t *testing.T) {
	testCuts(t, underTLS)
}

func testCuts(t *testing.T, secure func(testing.TB) security) {
	transporttest.RunCuts(t, func(t *testing.T, o transporttest.Options) ([]transport.Transport, transporttest.Cutter) {
		nodes, cutter := newProxiedCluster(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes, secure(t))
		return asInterface(nodes), cutter
	})
}

func TestReturns(t *testing.T) {
	t.Parallel()
	testReturns(t, func(testing.TB) security { return plain })
}

func TestReturnsUnderTLS(t *testing.T) {
	t.Parallel()
	testReturns(t, underTLS)
}

func testReturns(t *testing.T, secure func(testing.TB) security) {
	transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		return newReturning(t, configsWith(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes, secure(t)))
	}, transporttest.Beside)
}

func TestReturnsCut(t *testing.T) {
	transporttest.RunReturnsCut(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		proxies := transporttest.NewProxies(t, nil)
		configs := configsWith(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes, plain)
		between(proxies, configs)
		r := newReturning(t, configs)
		r.Cutter = proxies
		return r
	})
}

// newReturning makes and connects a cluster whose nodes can end, and be started anew at their
// addresses.
func newReturning(t *testing.T, configs []tcp.Config) transporttest.Returning {
	transports := tcptest.Connect(t, configs)
	return transporttest.Returning{
		Nodes: asInterface(transports),
		Kill:  func(id transport.NodeID) { transports[id].Kill() },
		Revive: func(id transport.NodeID) transport.Transport {
			transports[id] = tcptest.Revive(t, configs[id])
			return transports[id]
		},
		Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
			tr, outcome := tcptest.Restart(t, configs[id])
			transports[id] = tr
			return tr, outcome
		},
	}
}

func asInterface(transports []*tcp.Transport) (nodes []transport.Transport) {
	for _, tr := range transports {
		nodes = append(nodes, tr)
	}
	return nodes
}

// TestHelloTooLong: who sets what no greeting has room for is told so at once, and not when a peer
// is called.
func TestHelloTooLong(t *testing.T) {
	tr, err := tcp.New(tcptest.Configs(t, 2, 64)[0])
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tr.SetHello(make([]byte, tcp.MaxHelloBytes))
	defer func() {
		if what := fmt.Sprint(recover()); what != "tcp: SetHello with 65 bytes; at most 64 are possible" {
			t.Errorf("it panics with %q", what)
		}
	}()
	tr.SetHello(make([]byte, tcp.MaxHelloBytes+1))
}

// TestHello: each node learns what the others say of themselves.
func TestHello(t *testing.T) {
	configs := tcptest.Configs(t, 3, 64)
	hellos := [][]byte{[]byte("I am 0"), nil, []byte("I am 2")}
	for i := range configs {
		configs[i].Hello = hellos[i]
	}
	for i, tr := range tcptest.Connect(t, configs) {
		for peer, want := range hellos {
			if got := tr.PeerHello(transport.NodeID(peer)); peer != i && !bytes.Equal(got, want) {
				t.Errorf("node %d has heard %q from node %d, want %q", i, got, peer, want)
			}
		}
	}
}

// counter is a Handler that counts frames and what else it is told.
type counter struct{ frames, up, down int }

func (c *counter) PeerUp(transport.NodeID)                           { c.up++ }
func (c *counter) PeerDown(transport.NodeID, error)                  { c.down++ }
func (c *counter) Frame(transport.NodeID, []byte, transport.Payload) { c.frames++ }

// TestReadAhead: a connection is made again while frames of the one before lie unread. What its
// handshake has read of those that follow is delivered behind them, although nothing more comes.
func TestReadAhead(t *testing.T) {
	nodes, cutter := newProxiedCluster(t, 2, 4096, 1<<20, underTLS(t))
	from, to := &counter{}, &counter{} // node 1 calls, and node 0 reads what it has said
	random := rand.New(rand.NewPCG(1, 1))
	poll := func(n *tcp.Transport, h *counter, max int) {
		if _, err := n.Poll(h, max); err != nil {
			t.Fatal(err)
		}
		n.Flush()
	}
	want := 0
	send := func(frames int) {
		for range frames {
			if err := nodes[1].Send(0, []byte("frame"), nil); err != nil {
				t.Fatal(err)
			}
		}
		nodes[1].Flush()
		want += frames
	}
	await := func(frames int) {
		t.Helper()
		for deadline := time.Now().Add(patience.Or(20 * time.Second)); to.frames < frames || from.up == 0; poll(nodes[1], from, 64) {
			if poll(nodes[0], to, 1); time.Now().After(deadline) {
				t.Fatalf("%d frames have come, of %d", to.frames, want)
			}
		}
	}
	await(0)
	for range 30 {
		send(32)
		await(want - 31)
		cutter.Cut(0, 1, random)
		send(1)
		// long enough for a new connection, which node 0 does not look at yet
		for over := time.Now().Add(20 * time.Millisecond); time.Now().Before(over); {
			poll(nodes[1], from, 64)
		}
		await(want)
	}
	if to.down+from.down > 0 {
		t.Error("somebody is lost")
	}
}
