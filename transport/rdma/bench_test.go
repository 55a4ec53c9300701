package rdma

import (
	"testing"

	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// answerer answers each frame with a page, from inside Poll, as the daemon does; at one side, and counts at the other.
type answerer struct {
	tr      transport.Transport
	control []byte
	answers bool
	up      bool
	pages   int
}

func (a *answerer) PeerUp(transport.NodeID)          { a.up = true }
func (a *answerer) PeerDown(transport.NodeID, error) {}

func (a *answerer) Frame(from transport.NodeID, _ []byte, payload transport.Payload) {
	if payload != nil {
		a.pages++
	}
	if !a.answers {
		return
	}
	if err := a.tr.Send(from, a.control, a.tr.Lease(from)); err != nil {
		panic(err)
	}
	a.tr.Flush()
}

// BenchmarkFetch is what this package itself costs in a fetch of a page: the device is a fake, which copies the page.
func BenchmarkFetch(b *testing.B) {
	all := newFakeFabrics(b, false)
	nodes := newCluster(b, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	var ends [2]*answerer
	for i, tr := range nodes {
		ends[i] = &answerer{tr: tr, control: make([]byte, 64), answers: i == 1}
	}
	poll := func() {
		for i, e := range ends {
			if _, err := nodes[i].Poll(e, 64); err != nil {
				b.Fatal(err)
			}
		}
	}
	for !ends[0].up || !ends[1].up {
		poll()
	}
	b.ReportAllocs()
	for b.Loop() {
		want := ends[0].pages + 1
		if err := nodes[0].Send(1, ends[0].control, nil); err != nil {
			b.Fatal(err)
		}
		nodes[0].Flush()
		for ends[0].pages < want {
			poll()
		}
	}
}
