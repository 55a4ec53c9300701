//go:build rdma

package rdma

import (
	"net/netip"
	"testing"

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
