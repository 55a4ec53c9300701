package tcp_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

func TestMain(m *testing.M) { transporttest.Main(m) }

// listenAll opens a loopback listener for each node of a cluster.
func listenAll(t testing.TB, nodes int) ([]net.Listener, []string) {
	t.Helper()
	listeners := make([]net.Listener, nodes)
	addresses := make([]string, nodes)
	for i := range nodes {
		l := transporttest.Listen(t)
		listeners[i], addresses[i] = l, l.Addr().String()
	}
	return listeners, addresses
}

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
	listeners, addresses := listenAll(t, nodes)
	return connectAll(t, func(i int) tcp.Config {
		c := tcp.Config{Self: transport.NodeID(i), Listener: listeners[i], Peers: addresses, PageBytes: pageBytes, MaxQueuedBytes: maxQueuedBytes}
		secure(&c)
		return c
	}, nodes)
}

// newProxiedCluster makes and connects the nodes of a cluster with proxies between them.
func newProxiedCluster(t testing.TB, nodes, pageBytes, maxQueuedBytes int, secure security) ([]*tcp.Transport, transporttest.Cutter) {
	t.Helper()
	var transports []*tcp.Transport
	proxies := transporttest.NewProxies(t, func(a, b transport.NodeID) { transports[a].Break(b) })
	configs := proxiedConfigs(t, proxies, nodes, secure)
	transports = connectAll(t, func(i int) tcp.Config {
		c := configs[i]
		c.PageBytes, c.MaxQueuedBytes = pageBytes, maxQueuedBytes
		return c
	}, nodes)
	return transports, proxies
}

// proxiedConfigs are the configurations of nodes that reach each other through proxies.
func proxiedConfigs(t testing.TB, proxies *transporttest.Proxies, nodes int, secure security) (configs []tcp.Config) {
	t.Helper()
	listeners, addresses := listenAll(t, nodes)
	for i := range nodes {
		seen := make([]string, nodes)
		for j := range seen {
			if j != i {
				seen[j] = proxies.Between(transport.NodeID(i), transport.NodeID(j), addresses[j])
			}
		}
		c := tcp.Config{Self: transport.NodeID(i), Listener: listeners[i], Peers: seen, GiveUp: time.Minute}
		secure(&c)
		configs = append(configs, c)
	}
	return configs
}

// connectAll makes the nodes of a cluster from their configurations, whose Self, Cluster and Log it
// sets, and connects them.
func connectAll(t testing.TB, config func(i int) tcp.Config, nodes int) []*tcp.Transport {
	t.Helper()
	transports := make([]*tcp.Transport, nodes)
	for i := range transports {
		c := config(i)
		c.Self, c.Cluster, c.Log = transport.NodeID(i), t.Name(), func(line string) { t.Log(line) }
		tr, err := tcp.New(c)
		if err != nil {
			t.Fatal(err)
		}
		transports[i] = tr
	}
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, tr := range transports {
			all.Go(func() { tr.Close() }) // Each waits for the others to take leave.
		}
		all.Wait()
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience.Or(10*time.Second))
	defer cancel()
	var all sync.WaitGroup
	for _, tr := range transports {
		all.Go(func() {
			if err := tr.Connect(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return transports
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
		secure := secure(t)
		listeners, addresses := listenAll(t, o.Nodes)
		var configs []tcp.Config
		for i, l := range listeners {
			c := tcp.Config{Self: transport.NodeID(i), Listener: l, Peers: addresses}
			secure(&c)
			configs = append(configs, c)
		}
		return newReturning(t, o, configs)
	}, transporttest.Beside)
}

func TestReturnsCut(t *testing.T) {
	transporttest.RunReturnsCut(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		proxies := transporttest.NewProxies(t, nil)
		r := newReturning(t, o, proxiedConfigs(t, proxies, o.Nodes, plain))
		r.Cutter = proxies
		return r
	})
}

// newReturning makes and connects a cluster whose nodes can end, and be started anew at their
// addresses.
func newReturning(t *testing.T, o transporttest.Options, configs []tcp.Config) transporttest.Returning {
	for i := range configs {
		configs[i].PageBytes, configs[i].MaxQueuedBytes = o.PageBytes, o.MaxQueuedBytes
	}
	transports := connectAll(t, func(i int) tcp.Config { return configs[i] }, len(configs))
	return transporttest.Returning{
		Nodes: asInterface(transports),
		Kill:  func(id transport.NodeID) { transports[id].Kill() },
		Revive: func(id transport.NodeID) transport.Transport {
			transports[id] = revive(t, configs[id])
			return transports[id]
		},
		Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
			tr, outcome := again(t, configs[id])
			transports[id] = tr
			return tr, outcome
		},
	}
}

// revive starts a node anew, at the address of the one that has ended.
func revive(t *testing.T, c tcp.Config) *tcp.Transport {
	t.Helper()
	c.Joining = true
	tr, outcome := again(t, c)
	t.Cleanup(func() {
		if err := <-outcome; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, transport.ErrClosed) {
			t.Errorf("node %d, started anew: %v", c.Self, err)
		}
	})
	return tr
}

// again starts a node at the address of the one that has ended. The channel gets the outcome of
// Connect.
func again(t *testing.T, c tcp.Config) (*tcp.Transport, <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", c.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Listener, c.Cluster, c.Log = l, t.Name(), func(line string) { t.Log(line) }
	tr, err := tcp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	var connecting sync.WaitGroup
	connecting.Go(func() { outcome <- tr.Connect(t.Context()) })
	t.Cleanup(connecting.Wait)
	return tr, outcome
}

func asInterface(transports []*tcp.Transport) (nodes []transport.Transport) {
	for _, tr := range transports {
		nodes = append(nodes, tr)
	}
	return nodes
}

// TestHello: each node learns what the others say of themselves.
func TestHello(t *testing.T) {
	listeners, addresses := listenAll(t, 3)
	hellos := [][]byte{[]byte("I am 0"), nil, []byte("I am 2")}
	transports := connectAll(t, func(i int) tcp.Config {
		return tcp.Config{Listener: listeners[i], Peers: addresses, PageBytes: 64, Hello: hellos[i]}
	}, 3)
	for i, tr := range transports {
		for peer, want := range hellos {
			if got := tr.PeerHello(transport.NodeID(peer)); peer != i && !bytes.Equal(got, want) {
				t.Errorf("node %d has heard %q from node %d, want %q", i, got, peer, want)
			}
		}
	}
}
