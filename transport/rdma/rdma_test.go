package rdma

import (
	"testing"

	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/tcp/tcptest"
	"dsmd/transport/transporttest"
)

// newBases makes and connects transports to put queue pairs on. hello says what each says of
// itself.
func newBases(t testing.TB, nodes, pageBytes int, hello func(i int) []byte) []*tcp.Transport {
	t.Helper()
	configs := tcptest.Configs(t, nodes, pageBytes)
	for i := range configs {
		configs[i].Hello = hello(i)
	}
	return tcptest.Connect(t, configs)
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
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
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
	configs := tcptest.Configs(t, o.Nodes, o.PageBytes)
	for i := range configs {
		configs[i].Hello = Hello
	}
	nodes := asInterface(layerOver(t, tcptest.Connect(t, configs), o, poolBytes, device))
	returned := 0
	return transporttest.Returning{Nodes: nodes, Revive: func(id transport.NodeID) transport.Transport {
		returned++
		plain := returned == 2
		c := configs[id]
		if plain {
			c.Hello = nil
		}
		base := tcptest.Revive(t, c)
		if plain {
			return base
		}
		return layer(t, base, o, poolBytes, device(int(id)))
	}, Found: func(id transport.NodeID) (transport.Transport, <-chan error) {
		base, outcome := tcptest.Restart(t, configs[id])
		return layer(t, base, o, poolBytes, device(int(id))), outcome
	}}
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
