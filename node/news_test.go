package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"dsmd/internal/netio"
	"dsmd/transport"
)

// errVerdict is the opinion of somebody who watches the nodes.
var errVerdict = errors.New("it has not answered for a week")

// TestIdleNodeEnds: a node without programs that has lost a peer takes no programs, and ends by
// itself with an error that says so.
func TestIdleNodeEnds(t *testing.T) {
	c := start(t, setup{nodes: 3, before: func(n *Node) { n.end.farewell = 10 * time.Millisecond }})
	c.net.Crash(1)
	named := false // by one: the other may hear of its end first
	for _, i := range []int{0, 2} {
		err := c.members[i].ended()
		if !errors.Is(err, errIdle) || !strings.Contains(err.Error(), " is lost") {
			t.Errorf("node %d ended with %v", i, err)
		}
		named = named || strings.Contains(err.Error(), "node 1 is lost")
	}
	if !named {
		t.Error("nobody names node 1")
	}
}

// TestPeerFailed: what somebody else says of a peer ends the node, with the reason given, whether a
// program is attached or not. Nobody is told twice.
func TestPeerFailed(t *testing.T) {
	for name, attached := range map[string]bool{"idle": false, "with a program": true} {
		t.Run(name, func(t *testing.T) {
			c := start(t, setup{nodes: 3, before: func(n *Node) {
				if n.cfg.Self == 0 {
					n.end.farewell = 10 * time.Millisecond
				}
			}})
			m := c.members[0]
			if attached {
				m.join()
			}
			for range 3 {
				m.node.PeerFailed(2, errVerdict)
			}
			for _, nonsense := range []transport.NodeID{0, 3, 1 << 15} { // itself, and none
				m.node.PeerFailed(nonsense, errVerdict)
			}
			if err := m.ended(); !errors.Is(err, errVerdict) || !strings.Contains(err.Error(), "node 2 is lost") {
				t.Errorf("the node ended with %v", err)
			}
			m.node.PeerFailed(1, errVerdict) // there is nobody any more to be told
		})
	}
}

// TestPeerFailedWhileConnecting: a peer that is lost before all are connected is not waited for,
// whether that is known before or turns out then.
func TestPeerFailedWhileConnecting(t *testing.T) {
	for name, before := range map[string]bool{"before": true, "meanwhile": false} {
		t.Run(name, func(t *testing.T) {
			wake, err := netio.NewEvent()
			if err != nil {
				t.Fatal(err)
			}
			defer wake.Close()
			n := &Node{cfg: Config{Nodes: 2}, partition: lone(), news: &news{wake: wake}, net: &network{}}
			if before {
				n.PeerFailed(1, errVerdict)
			}
			n.net.connect = func(ctx context.Context) error {
				n.PeerFailed(1, errVerdict)
				<-ctx.Done()
				return ctx.Err()
			}
			if err := n.connect(t.Context()); !errors.Is(err, errVerdict) {
				t.Errorf("connecting ended with %v", err)
			}
		})
	}
}
