//go:build rdma

package rdma_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/internal/verbs/verbstest"
	"dsmd/transport"
	"dsmd/transport/rdma"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

var (
	serve = flag.String("across.serve", "", "run no tests, but nodes for the tests of another machine, at this `address`")
	peer  = flag.String("across.peer", "", "the `address` of a machine that runs with -across.serve; without it, this process is both")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *serve == "" {
		transporttest.Main(m)
	}
	listener, err := net.Listen("tcp", *serve)
	if err == nil {
		err = serveNodes(listener, newDeviceNode)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// deviceNode is a node at the address of this machine's device. RDMA is not required: connecting
// takes seconds where both ends are emulated, and what is sent meanwhile takes the base transport.
type deviceNode struct {
	spec     nodeSpec
	device   rdma.Device
	listener net.Listener
}

func newDeviceNode(spec nodeSpec) (testNode, error) {
	device, err := rdma.Probe("", netip.Addr{})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(device.GID.Addr.Unmap(), 0).String())
	return &deviceNode{spec, device, listener}, err
}

// Address implements testNode.
func (n *deviceNode) Address() string { return n.listener.Addr().String() }

// Start implements testNode.
func (n *deviceNode) Start(peers []string) (transport.Transport, error) {
	base, err := tcp.New(tcp.Config{Self: n.spec.Self, Listener: n.listener, Peers: peers, Cluster: n.spec.Cluster, PageBytes: n.spec.PageBytes,
		MaxQueuedBytes: n.spec.MaxQueuedBytes, Hello: rdma.Hello})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience.Or(20*time.Second))
	defer cancel()
	if err := base.Connect(ctx); err != nil {
		return nil, errors.Join(err, base.Close())
	}
	tr, err := rdma.New(rdma.Config{Base: base, Device: n.device, PoolBytes: acrossPool, MaxQueuedBytes: n.spec.MaxQueuedBytes})
	if err != nil {
		return nil, errors.Join(err, base.Close())
	}
	return &counted{Transport: tr}, nil
}

// pages counts those that this process's nodes have received, in all and by RDMA.
var pages, pagesByRDMA atomic.Uint64

// counted counts what a node has received when it is closed.
type counted struct {
	*rdma.Transport
	once sync.Once
}

// Close implements transport.Transport.
func (c *counted) Close() error {
	err := c.Transport.Close()
	c.once.Do(func() {
		pages.Add(c.Stats().PayloadsReceived)
		pagesByRDMA.Add(c.LinkStats().PayloadsReceived)
	})
	return err
}

// acrossPool is small, so that the start is short where a device is emulated, and holds the suite's
// seven nodes.
const acrossPool = 4 << 20

// TestAcross is the conformance suite with nodes on two machines.
//
//	transport/rdma/testbed/test --wired
func TestAcross(t *testing.T) {
	verbstest.Require(t)
	address := *peer
	if address == "" {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- serveNodes(listener, newDeviceNode) }()
		defer func() {
			listener.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		address = listener.Addr().String()
	}
	transporttest.Run(t, acrossFactory(address, newDeviceNode))
	t.Logf("%d of %d pages came by RDMA", pagesByRDMA.Load(), pages.Load())
	if pagesByRDMA.Load() < pages.Load()/2 {
		t.Error("most pages took the base transport")
	}
}
