//go:build rdma

package rdma

import (
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"dsmd/internal/require"
	"dsmd/internal/verbs/verbstest"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// setLink takes a network interface down, or up.
func setLink(t *testing.T, name string, up bool) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		t.Fatal(err)
	}
	flags := request.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		t.Fatal(err)
	}
}

// requireSpareLink returns two devices and the network interface of the second, if this machine is
// one whose links may be taken down: the test bed, which says so.
func requireSpareLink(t *testing.T) (names [2]string, netdev string) {
	t.Helper()
	all := verbstest.Require(t)
	if len(all) < 2 || os.Getenv("RDMA_VM_DEV2") == "" {
		require.Missing(t, "rdma-link", "needs two devices whose links may be taken down; transport/rdma/testbed/run makes a machine that has them")
	}
	_, gid, _ := all[1].UsablePort()
	return [2]string{all[0].Name, all[1].Name}, gid.NetDev
}

// TestDeviceLinkDown: while a link is down frames travel by TCP, and when it is up again by RDMA;
// none is lost or doubled.
func TestDeviceLinkDown(t *testing.T) {
	for name, trusted := range setups {
		t.Run(name, func(t *testing.T) {
			names, netdev := requireSpareLink(t)
			open := func(i int) fabric {
				d, err := Probe(names[i], netip.Addr{})
				if err != nil {
					t.Fatal(err)
				}
				f, err := openFabric(d, trusted)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 4096, MaxQueuedBytes: 1 << 20}, smallPool, open)
			seen := observe(2)
			linked := func() bool { return nodes[0].LinkStats().Links == 1 && nodes[1].LinkStats().Links == 1 }
			pollUntil(t, "a queue pair", asInterface(nodes), seen, linked)
			sent := 0
			exchange := func(phase string) {
				t.Helper()
				for range 50 {
					for from, tr := range nodes {
						to := transport.NodeID(1 - from)
						page := tr.Lease(to)
						copy(page.Bytes(), phase)
						if err := tr.Send(to, []byte(phase), page); err != nil {
							t.Fatal(err)
						}
					}
					sent++
				}
				pollUntil(t, phase, asInterface(nodes), seen, func() bool { return seen[0].frames[1] == sent && seen[1].frames[0] == sent })
			}
			exchange("before")
			setLink(t, netdev, false)
			defer setLink(t, netdev, true)
			exchange("while the link is down")
			if linked() {
				t.Error("frames have arrived over a link that is down")
			}
			setLink(t, netdev, true)
			pollUntil(t, "another queue pair", asInterface(nodes), seen, linked)
			before := nodes[0].LinkStats().PayloadsSent
			exchange("after")
			if by := nodes[0].LinkStats().PayloadsSent - before; by == 0 {
				t.Error("no page went by RDMA after the link was up again")
			}
		})
	}
}
