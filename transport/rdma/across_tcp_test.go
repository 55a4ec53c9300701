package rdma_test

import (
	"context"
	"net"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// tcpNode is a node of the transport that every machine has.
type tcpNode struct {
	spec     nodeSpec
	listener net.Listener
}

func newTCPNode(spec nodeSpec) (testNode, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	return &tcpNode{spec, l}, err
}

func (n *tcpNode) Address() string { return n.listener.Addr().String() }

func (n *tcpNode) Start(peers []string) (transport.Transport, error) {
	tr, err := tcp.New(tcp.Config{Self: n.spec.Self, Listener: n.listener, Peers: peers, Cluster: n.spec.Cluster,
		PageBytes: n.spec.PageBytes, MaxQueuedBytes: n.spec.MaxQueuedBytes})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.Or(10*time.Second))
	defer cancel()
	return tr, tr.Connect(ctx)
}

// TestStandIns: stand-ins for nodes of a transport that conforms do conform.
func TestStandIns(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- serveNodes(listener, newTCPNode) }()
	transporttest.Run(t, acrossFactory(listener.Addr().String(), newTCPNode))
	listener.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
