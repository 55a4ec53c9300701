package rdma

import (
	"testing"

	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// TestStatsOfPlainPeer: frames that a peer without RDMA sends and gets are counted once each, those
// too that were sent before it was known what the peer is.
func TestStatsOfPlainPeer(t *testing.T) {
	nodes := newMixed(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, false)
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
	seen := observe(2)
	const each = 3
	send := func(from int) {
		to := transport.NodeID(1 - from)
		for range each {
			for _, payload := range []transport.Payload{nil, nodes[from].Lease(to)} {
				if err := nodes[from].Send(to, []byte("x"), payload); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	send(0)
	pollUntil(t, "early frames", nodes, seen, func() bool { return seen[1].frames[0] == 2*each })
	send(0)
	send(1)
	pollUntil(t, "frames", nodes, seen, func() bool { return seen[1].frames[0] == 4*each && seen[0].frames[1] == 2*each })
	s := nodes[0].Stats()
	if s.FramesSent != 4*each || s.PayloadsSent != 2*each || s.FramesReceived != 2*each || s.PayloadsReceived != each {
		t.Errorf("%+v; want %d frames and %d payloads sent, and half of that received", s, 4*each, 2*each)
	}
}

// meanwhile is a base transport at whose counters somebody looks for so long that something
// happens.
type meanwhile struct {
	*tcp.Transport
	happens func()
}

func (m *meanwhile) Stats() transport.Stats {
	s := m.Transport.Stats()
	m.happens()
	return s
}

// TestStatsMeanwhile: a note that is sent while the counters are read is no frame.
func TestStatsMeanwhile(t *testing.T) {
	bases := newBases(t, 2, 64, always)
	base := &meanwhile{Transport: bases[0]}
	tr, err := newTransport(Config{Base: base, MaxQueuedBytes: 1 << 20}, newFakeFabrics(t, false).device())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { transporttest.CloseAll(t, []transport.Transport{tr, bases[1]}) })
	base.happens = func() {
		if tr.gate.Enter() {
			tr.tellBroken(tr.peers[1], errInjected)
			tr.gate.Leave()
		}
	}
	if s := tr.Stats(); s.FramesSent != 0 {
		t.Errorf("nothing was sent, and %d frames are counted", s.FramesSent)
	}
}
