package tcp

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSilentAfterAPause: a reactor is left alone once its peers have answered all that it sent.
// What it sends later is watched again: a connection that takes it and does not answer is made
// again, and nothing is lost.
func TestSilentAfterAPause(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(time.Hour)
	nodes := renewablePair(t, NewAuthority(t, "authority"), [2]time.Time{end, end}, MinGiveUp)
	idle := func() bool {
		for _, n := range nodes {
			if n.t.connect.sends.Load() != n.t.connect.answered.Load() {
				return false
			}
		}
		return true
	}
	pollBoth(t, nodes, idle)
	time.Sleep(MinGiveUp / 2)
	for i, n := range nodes {
		if n.t.arrivals.waiting.Load() {
			t.Errorf("node %d is woken, and has nothing to look for", i)
		}
	}

	dropAll := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	err := unix.SetsockoptSockFprog(nodes[1].t.peers[0].fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll})
	if err == unix.EPERM && os.Geteuid() != 0 {
		t.Skip("this kernel lets only root filter what a socket receives")
	}
	if err != nil {
		t.Fatal(err)
	}
	const text = "sent after a pause"
	if err := nodes[0].t.Send(1, []byte(text), nil); err != nil {
		t.Fatal(err)
	}
	pollBoth(t, nodes, func() bool { return nodes[1].h.bytes == len(text) || nodes[0].h.down[1] != nil })
	if err := nodes[0].h.down[1]; err != nil {
		t.Fatalf("the peer is lost: %v", err)
	}
	if !nodes[0].heard("has not answered for") {
		t.Errorf("the connection was not found silent; the node said\n%s", strings.Join(nodes[0].seen, "\n"))
	}
}
