package tcp_test

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

// listenAll opens a loopback listener for each node of a cluster.
func listenAll(t testing.TB, nodes int) ([]net.Listener, []string) {
	t.Helper()
	listeners := make([]net.Listener, nodes)
	addresses := make([]string, nodes)
	for i := range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		listeners[i], addresses[i] = l, l.Addr().String()
	}
	return listeners, addresses
}

// newCluster makes and connects all nodes of a cluster.
func newCluster(t testing.TB, nodes, pageBytes, maxQueuedBytes int) []*tcp.Transport {
	t.Helper()
	listeners, addresses := listenAll(t, nodes)
	transports := make([]*tcp.Transport, nodes)
	for i := range transports {
		tr, err := tcp.New(tcp.Config{
			Self: transport.NodeID(i), Listener: listeners[i], Peers: addresses,
			Cluster: t.Name(), PageBytes: pageBytes, MaxQueuedBytes: maxQueuedBytes,
			Log: func(line string) { t.Log(line) },
		})
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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
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
	transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
		var nodes []transport.Transport
		for _, tr := range newCluster(t, o.Nodes, o.PageBytes, o.MaxQueuedBytes) {
			nodes = append(nodes, tr)
		}
		return nodes
	})
}
