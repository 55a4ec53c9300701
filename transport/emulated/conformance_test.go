package emulated

import (
	"testing"
	"time"

	"dsmd/transport"
	"dsmd/transport/sim"
	"dsmd/transport/tcp"
	"dsmd/transport/tcp/tcptest"
	"dsmd/transport/transporttest"
)

func TestMain(m *testing.M) { transporttest.Main(m) }

// The networks that the suites run on: one where frames wait for the latency, and one where they
// queue for the card as well.
var (
	far    = Link{Latency: 150 * time.Microsecond}
	narrow = Link{Latency: 20 * time.Microsecond, Bandwidth: 2e9}
)

// over makes a transport over a base.
func over(t testing.TB, base transport.Transport, link Link, maxQueued int) *Transport {
	t.Helper()
	tr, err := New(Config{Base: base, Link: link, MaxQueuedBytes: maxQueued})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// overAll does that with all nodes of a cluster.
func overAll(t testing.TB, bases []*tcp.Transport, link Link, maxQueued int) (nodes []transport.Transport) {
	t.Helper()
	for _, base := range bases {
		nodes = append(nodes, over(t, base, link, maxQueued))
	}
	return nodes
}

// configs are those of the bases of a cluster.
func configs(t testing.TB, o transporttest.Options) []tcp.Config {
	t.Helper()
	all := tcptest.Configs(t, o.Nodes, o.PageBytes)
	for i := range all {
		all[i].MaxQueuedBytes = o.MaxQueuedBytes
	}
	return all
}

func TestConformance(t *testing.T) {
	for name, link := range map[string]Link{"Far": far, "Narrow": narrow} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
				return overAll(t, tcptest.Connect(t, configs(t, o)), link, o.MaxQueuedBytes)
			}, transporttest.Beside)
		})
	}
}

// simulated makes a network in memory, and transports over it.
func simulated(t testing.TB, o transporttest.Options) (*sim.Network, []transport.Transport) {
	t.Helper()
	network := sim.NewNetwork(o.Nodes, o.PageBytes, sim.Options{Seed: 1, MaxQueuedBytes: o.MaxQueuedBytes})
	nodes := make([]transport.Transport, o.Nodes)
	for i := range nodes {
		nodes[i] = over(t, network.Node(i), narrow, o.MaxQueuedBytes)
	}
	return network, nodes
}

// TestConformanceOverSim: nothing depends on what the base is.
func TestConformanceOverSim(t *testing.T) {
	t.Parallel()
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		_, nodes := simulated(t, o)
		return nodes
	}, transporttest.Beside)
}

// TestReturnsOverSim has nodes end without a word, too.
func TestReturnsOverSim(t *testing.T) {
	t.Parallel()
	transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		network, nodes := simulated(t, o)
		return transporttest.Returning{
			Nodes: nodes, Kill: network.Crash,
			Revive: func(id transport.NodeID) transport.Transport {
				return over(t, network.Restart(id), narrow, o.MaxQueuedBytes)
			},
			Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
				base, outcome := network.Found(id)
				return over(t, base, narrow, o.MaxQueuedBytes), outcome
			},
		}
	}, transporttest.Beside)
}

func TestCuts(t *testing.T) {
	transporttest.RunCuts(t, func(t *testing.T, o transporttest.Options) ([]transport.Transport, transporttest.Cutter) {
		proxies := transporttest.NewProxies(t, nil)
		all := configs(t, o)
		for i := range all {
			seen := make([]string, len(all))
			for j, other := range all {
				if j != i {
					seen[j] = proxies.Between(transport.NodeID(i), transport.NodeID(j), other.Listener.Addr().String())
				}
			}
			all[i].Peers, all[i].GiveUp = seen, time.Minute
		}
		return overAll(t, tcptest.Connect(t, all), far, o.MaxQueuedBytes), proxies
	})
}

func TestReturns(t *testing.T) {
	t.Parallel()
	transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		all := configs(t, o)
		return transporttest.Returning{
			Nodes: overAll(t, tcptest.Connect(t, all), far, o.MaxQueuedBytes),
			Revive: func(id transport.NodeID) transport.Transport {
				return over(t, tcptest.Revive(t, all[id]), far, o.MaxQueuedBytes)
			},
			Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
				base, outcome := tcptest.Restart(t, all[id])
				return over(t, base, far, o.MaxQueuedBytes), outcome
			},
		}
	}, transporttest.Beside)
}
