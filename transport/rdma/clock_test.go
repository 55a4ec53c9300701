package rdma

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/transport/transporttest"
)

// TestLateRing: the clock sets its flag, the reactor does what is due, and only then the signal
// comes. When there is no more to do the reactor sleeps all the same.
func TestLateRing(t *testing.T) {
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	seen := observe(2)
	pollUntil(t, "PeerUp", asInterface(nodes), seen, func() bool { return seen[0].up[1] > 0 && seen[1].up[0] > 0 })
	tr := nodes[0]
	tr.clock.event.Signal()
	polls := 0
	for deadline := time.Now().Add(patience.Or(2 * time.Second)); time.Now().Before(deadline); polls++ {
		if _, err := tr.Poll(seen[0], 64); err != nil {
			t.Fatal(err)
		}
		if tr.Arm() {
			continue
		}
		fds := []unix.PollFd{{Fd: int32(tr.WaitFD()), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 10); n == 0 && err == nil {
			return
		}
	}
	t.Errorf("nothing is due, and it has polled %d times", polls)
}
