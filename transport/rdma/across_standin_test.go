package rdma_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/netio"
	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/chassis"
	"dsmd/transport/transporttest"
)

// callPatience bounds each call. A Close takes a second.
var callPatience = patience.Or(60 * time.Second)

// A run of the conformance suite with nodes on two machines, or in two processes.
//
// The suite's tests play all nodes, so they run in one process. Another process makes the nodes
// with odd numbers, by serveNodes. Here each of these is a stand-in: a transport.Transport whose
// methods are called there, over a connection of its own. So every frame between an even and an odd
// node crosses the network between the machines, and the tests are those of every other transport.
// What a stand-in checks itself, how a payload may be used, is tested where node 0 does it, which
// is never a stand-in.

// acrossFactory makes clusters whose even nodes are made here and whose odd ones by the serveNodes
// at an address.
func acrossFactory(address string, newNode nodeMaker) transporttest.Factory {
	var clusters atomic.Int64
	return func(t *testing.T, o transporttest.Options) []transport.Transport {
		t.Helper()
		spec := nodeSpec{Nodes: o.Nodes, PageBytes: o.PageBytes, MaxQueuedBytes: o.MaxQueuedBytes, Cluster: fmt.Sprintf("%s %d", t.Name(), clusters.Add(1))}
		var nodes []testNode
		var addresses []string
		for i := range o.Nodes {
			spec.Self = transport.NodeID(i)
			var n testNode
			var err error
			if i%2 == 0 {
				n, err = newNode(spec)
			} else {
				n, err = newStandIn(t, address, spec)
			}
			if err != nil {
				t.Fatalf("node %d: %v", i, err)
			}
			nodes, addresses = append(nodes, n), append(addresses, n.Address())
		}
		transports := make([]transport.Transport, o.Nodes)
		var all sync.WaitGroup
		for i, n := range nodes {
			all.Go(func() {
				var err error
				if transports[i], err = n.Start(addresses); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			t.FailNow()
		}
		return transports
	}
}

// standIn is a transport that is in another process. A call of one method waits for the call of
// another to return.
type standIn struct {
	spec    nodeSpec
	address string
	conn    *connection
	pool    chassis.Pool
	replies chan reply // of the calls, from the goroutine that reads
	ready   *netio.Event
	closed  atomic.Bool // ready stays signalled

	calling sync.Mutex
	// parted are the peers that Disconnect was called for, with the reasons. It belongs to the
	// reactor.
	parted map[transport.NodeID]error
}

// newStandIn makes a stand-in that the end of the test takes away.
func newStandIn(t *testing.T, address string, spec nodeSpec) (*standIn, error) {
	conn, err := net.DialTimeout("tcp", address, callPatience)
	if err != nil {
		return nil, err
	}
	ready, err := netio.NewEvent()
	if err != nil {
		conn.Close()
		return nil, err
	}
	s := &standIn{spec: spec, conn: newConnection(conn), replies: make(chan reply, 1), ready: ready, parted: map[transport.NodeID]error{},
		pool: chassis.Pool{Name: "across", PageBytes: spec.PageBytes}}
	var reading sync.WaitGroup
	reading.Go(s.read)
	t.Cleanup(func() {
		conn.Close()
		reading.Wait()
		ready.Close()
	})
	r := s.call(call{Method: callPrepare, Spec: spec})
	s.address = r.Address
	return s, r.Error.error()
}

// read sorts what comes into replies and wake-ups, until the connection ends.
func (s *standIn) read() {
	defer close(s.replies)
	for {
		var r reply
		if s.conn.Decode(&r) != nil {
			return
		}
		if r.Ready {
			s.ready.Signal()
			continue
		}
		s.replies <- r
	}
}

// call makes a call there. That the other process does not answer is no property of a transport: it
// ends the test run.
func (s *standIn) call(c call) reply {
	s.calling.Lock()
	defer s.calling.Unlock()
	if err := s.conn.Encode(c); err != nil {
		panic(fmt.Sprintf("across: asking the process of node %d: %v", s.spec.Self, err))
	}
	select {
	case r, ok := <-s.replies:
		if !ok {
			panic(fmt.Sprintf("across: the process of node %d has gone", s.spec.Self))
		}
		if r.Panic != "" {
			panic(r.Panic)
		}
		return r
	case <-time.After(callPatience):
		panic(fmt.Sprintf("across: the process of node %d has not answered for %v", s.spec.Self, callPatience))
	}
}

// Address implements testNode.
func (s *standIn) Address() string { return s.address }

// Start implements testNode.
func (s *standIn) Start(peers []string) (transport.Transport, error) {
	return s, s.call(call{Method: callStart, Peers: peers}).Error.error()
}

// Self implements transport.Transport.
func (s *standIn) Self() transport.NodeID { return s.spec.Self }

// Nodes implements transport.Transport.
func (s *standIn) Nodes() int { return s.spec.Nodes }

// PageBytes implements transport.Transport.
func (s *standIn) PageBytes() int { return s.spec.PageBytes }

// Lease implements transport.Transport. The page is leased there when it is sent.
func (s *standIn) Lease(to transport.NodeID) transport.Payload {
	p := s.pool.Get()
	p.Lease(to, p.Own())
	return p
}

// Send implements transport.Transport.
func (s *standIn) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	c := call{Method: callSend, Peer: to, Control: control}
	if p := s.pool.Check(to, payload); p != nil {
		c.Page = p.Page()
		p.Queue()
	}
	return s.call(c).Error.error()
}

// Flush implements transport.Transport.
func (s *standIn) Flush() { s.call(call{Method: callFlush}) }

// Poll implements transport.Transport. Frames of a peer that the handler parts with while there are
// more here are left out.
func (s *standIn) Poll(h transport.Handler, max int) (int, error) {
	r := s.call(call{Method: callPoll, Max: max})
	delivered := 0
	for _, e := range r.Events {
		switch e.Kind {
		case eventUp:
			h.PeerUp(e.Peer)
		case eventDown:
			h.PeerDown(e.Peer, s.reason(e))
		case eventFrame:
			if s.parted[e.Peer] == nil {
				delivered++
				s.deliver(h, e)
			}
		}
	}
	return delivered, r.Error.error()
}

func (s *standIn) deliver(h transport.Handler, e event) {
	if !e.HasPage {
		h.Frame(e.Peer, e.Control, nil)
		return
	}
	lender := chassis.Lender{Pool: &s.pool}
	p := lender.Lend(e.Page)
	h.Frame(e.Peer, e.Control, p)
	lender.Return(p)
}

// reason is why a peer is down: for those that were parted with, what was said then.
func (s *standIn) reason(e event) error {
	if err := s.parted[e.Peer]; err != nil {
		return err
	}
	return fmt.Errorf("node %d, in its process: %s", s.spec.Self, e.Reason)
}

// WaitFD implements transport.Transport.
func (s *standIn) WaitFD() int { return s.ready.FD() }

// Arm implements transport.Transport.
func (s *standIn) Arm() bool {
	// A wake-up that comes from here on is one that this call has asked for, or one too many, which
	// does no harm.
	s.ready.Clear()
	if s.closed.Load() {
		s.ready.Signal()
		return true
	}
	return s.call(call{Method: callArm}).Armed
}

// Disconnect implements transport.Transport.
func (s *standIn) Disconnect(peer transport.NodeID, reason error) {
	s.call(call{Method: callDisconnect, Peer: peer})
	if s.parted[peer] == nil {
		s.parted[peer] = reason
	}
}

// Readmit implements transport.Transport.
func (s *standIn) Readmit(peer transport.NodeID) {
	s.call(call{Method: callReadmit, Peer: peer})
	delete(s.parted, peer)
}

// Stats implements transport.Transport.
func (s *standIn) Stats() transport.Stats { return s.call(call{Method: callStats}).Stats }

// Close implements transport.Transport.
func (s *standIn) Close() error {
	r := s.call(call{Method: callClose})
	s.closed.Store(true)
	s.ready.Signal()
	return r.Error.error()
}
