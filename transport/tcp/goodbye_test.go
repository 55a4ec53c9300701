package tcp

import (
	"errors"
	"strings"
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
