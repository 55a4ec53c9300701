package tcp

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/transport/transporttest"
)

// TestGoodbyeSaysWhy: a peer hears why a node closes, cut to what a goodbye may have.
func TestGoodbyeSaysWhy(t *testing.T) {
	long := strings.Repeat("because ", maxGoodbyeBytes/8)
	for _, test := range []struct{ why, want string }{
		{"", "tcp: node 1: it has ended: it was told to"},
		{"node 2 is lost", "tcp: node 1: it has ended: node 2 is lost"},
		{long + "and more", "tcp: node 1: it has ended: " + long},
	} {
		listener := transporttest.Listen(t)
		peers := []string{listener.Addr().String(), ""}
		stays, _ := start(t, Config{Self: 0, Listener: listener, Peers: peers, PageBytes: testPageBytes, Secret: secret(1)})
		ends, _ := start(t, Config{Self: 1, Peers: peers, PageBytes: testPageBytes, Secret: secret(1)})
		h, other := newRecorder(), newRecorder()
		deadline := time.Now().Add(testTimeout)
		await := func(done func() bool) {
			for !done() {
				if _, err := stays.Poll(h, 64); err != nil || time.Now().After(deadline) {
					t.Fatal(err, h.up, h.down)
				}
				if _, err := ends.Poll(other, 64); err != nil && len(other.up) == 0 {
					t.Fatal(err)
				}
			}
		}
		await(func() bool { return len(h.up) == 1 && len(other.up) == 1 })
		ends.Explain(test.why)
		closed := make(chan error)
		go func() { closed <- ends.Close() }()
		await(func() bool { return h.down[1] != nil })
		if err := <-closed; err != nil || !errors.Is(h.down[1], errGoodbye) || h.down[1].Error() != test.want {
			t.Errorf("PeerDown says %v, want %q; Close: %v", h.down[1], test.want, err)
		}
	}
}

// TestFormerIsToldOnce: a peer that has parted with a node calls its successor, and again and again
// it is the former node that answers. That one logs once what it is told, and nothing if it is
// about to close, which may be why the peer has parted with it.
func TestFormerIsToldOnce(t *testing.T) {
	for _, ends := range []bool{false, true} {
		listener := transporttest.Listen(t)
		peers := []string{listener.Addr().String(), ""}
		var told, all atomic.Int64
		former, _ := start(t, Config{Self: 0, Listener: listener, Peers: peers, PageBytes: testPageBytes, Secret: secret(1), Log: func(line string) {
			t.Log(line)
			all.Add(1)
			if strings.Contains(line, "refused this node: it is still the former node 0") {
				told.Add(1)
			}
		}})
		caller, _ := start(t, Config{Self: 1, Peers: peers, PageBytes: testPageBytes, Secret: secret(1)})
		h, other := newRecorder(), newRecorder()
		deadline := time.Now().Add(testTimeout)
		await := func(done func() bool) {
			for !done() {
				if _, err := former.Poll(h, 64); err != nil || time.Now().After(deadline) {
					t.Fatal(err, h.up, h.down)
				}
				if _, err := caller.Poll(other, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
		await(func() bool { return len(h.up) == 1 && len(other.up) == 1 })
		if ends {
			former.Explain("")
		}
		before := all.Load()
		caller.Disconnect(0, errors.New("it has left"))
		await(func() bool { return other.down[0] != nil })
		caller.Readmit(0)
		await(func() bool {
			caller.connect.mu.Lock()
			defer caller.connect.mu.Unlock()
			return caller.connect.sessions[0].tried >= 5
		})
		want := int64(1)
		if ends {
			want = 0
		}
		if n := told.Load(); n != want || ends && all.Load() != before {
			t.Errorf("it ends: %v; what it was told is in %d lines of its log, want %d", ends, n, want)
		}
	}
}
