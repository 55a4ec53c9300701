package tcp

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// TestFruitlessConnections: a peer answers each call, and each connection breaks before anything
// has come by it. It is called with pauses like one that does not answer, and little is logged. As
// soon as something has come, a connection that breaks is made again at once. Time is that of a
// bubble, which stands still while a connection is made.
func TestFruitlessConnections(t *testing.T) {
	listener := transporttest.Listen(t)
	peers := []string{listener.Addr().String(), ""}
	node0, _ := start(t, Config{Self: 0, Listener: listener, Peers: peers, PageBytes: testPageBytes, Secret: secret(1)})
	synctest.Test(t, func(t *testing.T) {
		var lines atomic.Int64
		node1, _ := start(t, Config{Self: 1, Peers: peers, PageBytes: testPageBytes, Secret: secret(1), Log: func(string) { lines.Add(1) }})
		h, p := newRecorder(), node1.peers[0]
		await := func(done func() bool) {
			t.Helper()
			for !done() {
				if _, err := node1.Poll(h, 64); err != nil || h.down[0] != nil {
					t.Fatal(err, h.down[0])
				}
				time.Sleep(time.Millisecond)
			}
		}
		connected := func() bool { return p.state == peerUp }
		cut := func() (restored time.Duration) { // after this time
			begin := time.Now()
			node1.hangUp(p)
			await(func() bool { return !connected() })
			await(connected)
			return time.Since(begin)
		}
		await(connected)

		const long = 3 * time.Minute
		most := int(long/longestRestorePause) + 10
		begin, made := time.Now(), 0
		for ; time.Since(begin) < long && made <= most; made++ {
			cut()
		}
		if made > most {
			t.Errorf("%d fruitless connections in %v, want at most %d", made, time.Since(begin), most)
		}
		if most := int64(2 * (long/time.Minute + 2)); lines.Load() > most {
			t.Errorf("%d lines were logged of %d fruitless connections, want at most %d", lines.Load(), made, most)
		}

		if err := node0.Send(1, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		await(func() bool {
			if _, err := node0.Poll(newRecorder(), 0); err != nil {
				t.Fatal(err)
			}
			node0.Flush()
			return len(h.from) == 1
		})
		if pause := cut(); pause >= firstPause {
			t.Errorf("a connection that had brought something was made again after %v", pause)
		}
		node1.Kill()
	})
}

// TestEpollFails: a connection that epoll does not take is one that cannot be made now. Both nodes
// are connected again when it takes one. Else it ends as with every peer that is out of reach.
func TestEpollFails(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"of the one that is called": 0, "of the one that calls": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			end := time.Now().Add(time.Hour)
			nodes := renewablePair(t, NewAuthority(t, "authority"), [2]time.Time{end, end}, 4*MinGiveUp)
			n, other := nodes[at], transport.NodeID(1-at)
			down := func() error { return errors.Join(nodes[0].h.down[1], nodes[1].h.down[0]) }
			mend := breakEpoll(t, n.t.WaitFD())
			nodes[1].t.Break(0)
			pollBoth(t, nodes, func() bool { return n.heard(" at 127.0.0.1:", "change what epoll watches") || down() != nil })
			mend()
			if err := down(); err != nil {
				t.Fatalf("a failure of this node's epoll ends the peer: %v", err)
			}
			const text = "sent meanwhile"
			if err := n.t.Send(other, []byte(text), nil); err != nil {
				t.Fatal(err)
			}
			pollBoth(t, nodes, func() bool { return nodes[other].h.bytes == len(text) || down() != nil })
			if err := down(); err != nil {
				t.Fatal(err)
			}

			lines := len(n.seen)
			breakEpoll(t, n.t.WaitFD())
			nodes[1].t.Break(0)
			pollBoth(t, nodes, func() bool { return n.h.down[other] != nil })
			for _, want := range []string{"could not be reached for 4s", "change what epoll watches"} {
				if reason := n.h.down[other].Error(); !strings.Contains(reason, want) {
					t.Errorf("the peer is lost: %s; want %q", reason, want)
				}
			}
			n.heard()
			if more := n.seen[lines:]; len(more) > 10 {
				t.Errorf("it is said %d times:\n%s", len(more), strings.Join(more, "\n"))
			}
		})
	}
}

// breakEpoll puts a file that cannot watch anything in the place of an epoll instance, until mend.
func breakEpoll(t *testing.T, fd int) (mend func()) {
	t.Helper()
	saved, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	replace := func(by int) {
		if err := unix.Dup3(by, fd, unix.O_CLOEXEC); err != nil {
			t.Error(err)
		}
	}
	replace(int(null.Fd()))
	t.Cleanup(func() { unix.Close(saved) })
	return func() { replace(saved) }
}
