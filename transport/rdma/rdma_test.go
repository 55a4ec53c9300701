package rdma

import (
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

// newBases makes and connects transports to put queue pairs on. hello says what each says of
// itself.
func newBases(t testing.TB, nodes, pageBytes int, hello func(i int) []byte) []*tcp.Transport {
	t.Helper()
	return connectBases(t, baseConfigs(t, nodes, pageBytes), hello)
}

// baseConfigs are the configurations of transports that reach each other.
func baseConfigs(t testing.TB, nodes, pageBytes int) []tcp.Config {
	t.Helper()
	configs, addresses := make([]tcp.Config, nodes), make([]string, nodes)
	for i := range configs {
		l := transporttest.Listen(t)
		addresses[i] = l.Addr().String()
		configs[i] = tcp.Config{Self: transport.NodeID(i), Listener: l, Peers: addresses, Cluster: t.Name(), PageBytes: pageBytes}
	}
	return configs
}

func connectBases(t testing.TB, configs []tcp.Config, hello func(i int) []byte) []*tcp.Transport {
	t.Helper()
	bases := make([]*tcp.Transport, len(configs))
	for i, c := range configs {
		c.Hello = hello(i)
		base, err := tcp.New(c)
		if err != nil {
			t.Fatal(err)
		}
		bases[i] = base
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.Or(10*time.Second))
	defer cancel()
	var all sync.WaitGroup
	for _, base := range bases {
		all.Go(func() {
			if err := base.Connect(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return bases
}

// newCluster makes nodes with the devices that are given.
func newCluster(t testing.TB, o transporttest.Options, poolBytes int, device func(i int) fabric) []*Transport {
	t.Helper()
	return layerOver(t, newBases(t, o.Nodes, o.PageBytes, always), o, poolBytes, device)
}

// always is what a node says of itself that has a device.
func always(int) []byte { return Hello }

// layerOver makes nodes of connected bases.
func layerOver(t testing.TB, bases []*tcp.Transport, o transporttest.Options, poolBytes int, device func(i int) fabric) []*Transport {
	t.Helper()
	nodes := make([]*Transport, len(bases))
	for i, base := range bases {
		nodes[i] = layer(t, base, o, poolBytes, device(i))
	}
	t.Cleanup(func() {
		var all sync.WaitGroup
		for _, tr := range nodes {
			all.Go(func() { tr.Close() }) // Each waits for the others to take leave.
		}
		all.Wait()
	})
	return nodes
}

func layer(t testing.TB, base *tcp.Transport, o transporttest.Options, poolBytes int, device fabric) *Transport {
	t.Helper()
	tr, err := newTransport(Config{
		Base: base, PoolBytes: poolBytes, MaxQueuedBytes: o.MaxQueuedBytes, Log: func(line string) { t.Logf("node %d: %s", base.Self(), line) },
	}, device)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func asInterface(nodes []*Transport) (all []transport.Transport) {
	for _, tr := range nodes {
		all = append(all, tr)
	}
	return all
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]bool{"Direct": false, "Manager": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
				all := newFakeFabrics(t, slow)
				return asInterface(newCluster(t, o, DefaultPoolBytes, func(int) fabric { return all.device() }))
			}, transporttest.Beside)
		})
	}
}

func TestReturns(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]bool{"Direct": false, "Manager": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
				all := newFakeFabrics(t, slow)
				return newReturning(t, o, DefaultPoolBytes, func(int) fabric { return all.device() })
			}, transporttest.Beside)
		})
	}
}

func TestReturnsCut(t *testing.T) {
	t.Parallel()
	transporttest.RunReturnsCut(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
		all, by := newFakeFabrics(t, true), newBreaker()
		r := newReturning(t, o, DefaultPoolBytes, func(i int) fabric { return &breakableFabric{all.device(), by, transport.NodeID(i)} })
		r.Cutter = by
		return r
	}, transporttest.Beside)
}

// newReturning makes a cluster whose nodes come back: the second time without RDMA, the others with
// it.
func newReturning(t *testing.T, o transporttest.Options, poolBytes int, device func(i int) fabric) transporttest.Returning {
	configs := baseConfigs(t, o.Nodes, o.PageBytes)
	nodes := asInterface(layerOver(t, connectBases(t, configs, always), o, poolBytes, device))
	returned := 0
	return transporttest.Returning{Nodes: nodes, Revive: func(id transport.NodeID) transport.Transport {
		returned++
		plain := returned == 2
		c := configs[id]
		if !plain {
			c.Hello = Hello
		}
		base := reviveBase(t, c)
		if plain {
			return base
		}
		return layer(t, base, o, poolBytes, device(int(id)))
	}, Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
		c := configs[id]
		c.Hello = Hello
		base, outcome := startBase(t, c)
		return layer(t, base, o, poolBytes, device(int(id))), outcome
	}}
}

// reviveBase starts a node anew, at the address of the one that has ended.
func reviveBase(t *testing.T, c tcp.Config) *tcp.Transport {
	t.Helper()
	c.Joining = true
	base, outcome := startBase(t, c)
	t.Cleanup(func() {
		if err := <-outcome; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, transport.ErrClosed) {
			t.Errorf("node %d, started anew: %v", c.Self, err)
		}
	})
	return base
}

// startBase starts a node at the address of the one that has ended. The channel gets the outcome of
// Connect.
func startBase(t *testing.T, c tcp.Config) (*tcp.Transport, <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", c.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Listener = l
	base, err := tcp.New(c)
	if err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	var connecting sync.WaitGroup
	connecting.Go(func() { outcome <- base.Connect(t.Context()) })
	t.Cleanup(connecting.Wait)
	return base, outcome
}

func TestCuts(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]bool{"Direct": false, "Manager": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			transporttest.RunCuts(t, func(t *testing.T, o transporttest.Options) ([]transport.Transport, transporttest.Cutter) {
				all, by := newFakeFabrics(t, slow), newBreaker()
				return asInterface(newCluster(t, o, DefaultPoolBytes, func(i int) fabric {
					return &breakableFabric{all.device(), by, transport.NodeID(i)}
				})), by
			})
		})
	}
}
