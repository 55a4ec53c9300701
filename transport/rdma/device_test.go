//go:build rdma

package rdma

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/internal/verbs"
	"dsmd/internal/verbs/verbstest"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// smallPool makes windows of pages small, so that they are used up, and the start short, where a
// device is emulated.
const smallPool = 4 << 20

// openDevice opens a device for a node, the machine's devices in turn.
func openDevice(t testing.TB, node int, trusted bool) fabric {
	t.Helper()
	all := verbstest.Require(t)
	d, err := choose(all, all[node%len(all)].Name, netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := openFabric(d, trusted)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

var setups = map[string]bool{"Manager": false, "Direct": true}

func TestDeviceConformance(t *testing.T) {
	for name, trusted := range setups {
		t.Run(name, func(t *testing.T) {
			verbstest.Require(t)
			transporttest.Run(t, func(t *testing.T, o transporttest.Options) []transport.Transport {
				nodes := newCluster(t, o, smallPool, func(i int) fabric { return openDevice(t, i, trusted) })
				return asInterface(nodes)
			})
		})
	}
}

func TestDeviceReturns(t *testing.T) {
	for name, trusted := range setups {
		t.Run(name, func(t *testing.T) {
			verbstest.Require(t)
			transporttest.RunReturns(t, func(t *testing.T, o transporttest.Options) transporttest.Returning {
				return newReturning(t, o, smallPool, func(i int) fabric { return openDevice(t, i, trusted) })
			})
		})
	}
}

func TestDeviceCuts(t *testing.T) {
	for name, trusted := range setups {
		t.Run(name, func(t *testing.T) {
			verbstest.Require(t)
			transporttest.RunCuts(t, func(t *testing.T, o transporttest.Options) ([]transport.Transport, transporttest.Cutter) {
				by := newBreaker()
				return asInterface(newCluster(t, o, smallPool, func(i int) fabric {
					return &breakableFabric{openDevice(t, i, trusted), by, transport.NodeID(i)}
				})), by
			})
		})
	}
}

// breakDown brings the queue pair into the state that a device brings it into when it fails.
func (q *queuePair) breakDown() { _ = q.qp.Fail() }

// TestDeviceOverflow: a completion queue overflows, of which the device tells by an event alone.
// The device is no longer used from then on, and TCP takes over.
func TestDeviceOverflow(t *testing.T) {
	verbstest.Require(t)
	var f *device
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, smallPool, func(i int) fabric {
		opened := openDevice(t, i, true).(*device)
		if i == 0 {
			f = opened
		}
		return opened
	})
	seen := observe(2)
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return nodes[0].LinkStats().Links == 1 && nodes[1].LinkStats().Links == 1 })
	var ends [2]endpoint
	for i := range ends {
		var err error
		if ends[i], err = f.endpoint(); err != nil {
			t.Fatal(err)
		}
	}
	for i, e := range ends {
		if err := e.accept(ends[1-i].describe()); err != nil {
			t.Fatal(err)
		}
	}
	slots := nodes[0].recvSlots
	write := []verbs.SendRequest{{Op: verbs.OpWrite, Flags: verbs.Signaled, SGEs: 1, SGE: [verbs.MaxSGE]verbs.SGE{slots.sge(0, 1)}, RemoteAddr: slots.addr, RKey: slots.rkey}}
	deadline := time.Now().Add(patience.Or(20 * time.Second))
	for posted := 0; posted < 4*nodes[0].Sizes().Completions; {
		if ends[0].post(write) == nil {
			posted++
		} else if time.Now().After(deadline) { // else the queue pair has to complete some first
			t.Fatalf("%d requests were taken", posted)
		}
	}
	pollUntil(t, "the end of the device", asInterface(nodes), seen, func() bool { return nodes[0].broken != nil })
	if why := nodes[0].broken.Error(); !strings.Contains(why, "the device says: ") {
		t.Errorf("the device is no longer used: %s", why)
	}
	for from, tr := range nodes {
		if err := tr.Send(transport.NodeID(1-from), []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	pollUntil(t, "frames by TCP", asInterface(nodes), seen, func() bool { return seen[0].frames[1] == 1 && seen[1].frames[0] == 1 })
}

// TestDeviceInfiniBand: the address of an InfiniBand port is none that librdmacm could listen at,
// and nodes are connected without it. Here an address of the same kind stands in for it.
func TestDeviceInfiniBand(t *testing.T) {
	all := verbstest.Require(t)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, smallPool, func(int) fabric {
		d, err := choose(all, all[0].Name, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range d.Port.GIDs {
			if g.Addr.IsLinkLocalUnicast() {
				d.GID, d.Port.Link = g, verbs.LinkInfiniBand
			}
		}
		f, err := openFabric(d, false)
		if err != nil {
			t.Fatal(err)
		}
		return f
	})
	seen := observe(2)
	pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	if err := nodes[0].Send(1, []byte("x"), nodes[0].Lease(1)); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, "a page", asInterface(nodes), seen, func() bool { return seen[1].frames[0] == 1 })
	if s := nodes[0].LinkStats(); s.PayloadsSent != 1 {
		t.Errorf("%+v; want a page by RDMA", s)
	}
}
