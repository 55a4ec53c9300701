// Package tcptest makes clusters for the tests of transport/tcp and of what is built on it: nodes
// of one process that reach each other, end, and are started anew.
package tcptest

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

// Configs are the configurations of nodes that reach each other.
func Configs(t testing.TB, nodes, pageBytes int) []tcp.Config {
	t.Helper()
	configs, addresses := make([]tcp.Config, nodes), make([]string, nodes)
	for i := range configs {
		l := transporttest.Listen(t)
		addresses[i] = l.Addr().String()
		configs[i] = tcp.Config{
			Self: transport.NodeID(i), Listener: l, Peers: addresses, Cluster: t.Name(), PageBytes: pageBytes,
			Log: func(line string) { t.Log(line) },
		}
	}
	return configs
}

// Connect makes the nodes of a cluster and connects them. The end of the test closes them.
func Connect(t testing.TB, configs []tcp.Config) []*tcp.Transport {
	t.Helper()
	nodes := make([]*tcp.Transport, len(configs))
	for i, c := range configs {
		tr, err := tcp.New(c)
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = tr
	}
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
	ctx, cancel := context.WithTimeout(context.Background(), patience.Or(10*time.Second))
	defer cancel()
	var all sync.WaitGroup
	for _, tr := range nodes {
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
	return nodes
}

// Revive starts a node that joins the others, at the address of the one that has ended.
func Revive(t *testing.T, c tcp.Config) *tcp.Transport {
	t.Helper()
	c.Joining = true
	tr, outcome := Restart(t, c)
	t.Cleanup(func() {
		if err := <-outcome; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, transport.ErrClosed) {
			t.Errorf("node %d, started anew: %v", c.Self, err)
		}
	})
	return tr
}

// Restart starts a node at the address of the one that has ended. The channel gets the outcome of
// Connect.
func Restart(t *testing.T, c tcp.Config) (*tcp.Transport, <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", c.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.Listener = l
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
