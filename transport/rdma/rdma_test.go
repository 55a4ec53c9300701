package rdma

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// newBases makes and connects transports to put queue pairs on. hello says what each says of itself.
func newBases(t testing.TB, nodes, pageBytes int, hello func(i int) []byte) []*tcp.Transport {
	t.Helper()
	listeners, addresses := make([]net.Listener, nodes), make([]string, nodes)
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], addresses[i] = l, l.Addr().String()
	}
	bases := make([]*tcp.Transport, nodes)
	for i := range bases {
		base, err := tcp.New(tcp.Config{
			Self: transport.NodeID(i), Listener: listeners[i], Peers: addresses, Cluster: t.Name(), PageBytes: pageBytes, Hello: hello(i),
		})
		if err != nil {
			t.Fatal(err)
		}
		bases[i] = base
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
	bases := newBases(t, o.Nodes, o.PageBytes, func(int) []byte { return Hello })
	nodes := make([]*Transport, o.Nodes)
	for i, base := range bases {
		tr, err := newTransport(Config{
			Base: base, PoolBytes: poolBytes, MaxQueuedBytes: o.MaxQueuedBytes, Log: func(line string) { t.Logf("node %d: %s", i, line) },
		}, device(i))
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = tr
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

func asInterface(nodes []*Transport) (all []transport.Transport) {
	for _, tr := range nodes {
		all = append(all, tr)
	}
	return all
}

func TestConformance(t *testing.T) {
	for name, slow := range map[string]bool{"Direct": false, "Manager": true} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
				all := newFakeFabrics(t, slow)
				return asInterface(newCluster(t, o, DefaultPoolBytes, func(int) fabric { return all.device() }))
			})
		})
	}
}

func TestCuts(t *testing.T) {
	transporttest.RunCuts(t, func(t *testing.T, o transporttest.Options) ([]transport.Transport, transporttest.Cutter) {
		all, by := newFakeFabrics(t, true), newBreaker()
		return asInterface(newCluster(t, o, DefaultPoolBytes, func(i int) fabric {
			return &breakableFabric{all.device(), by, transport.NodeID(i)}
		})), by
	})
}
