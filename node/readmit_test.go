package node

import (
	"testing"

	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/sim"
)

// ups counts peers that come and go.
type ups struct{ up, down int }

func (u *ups) PeerUp(transport.NodeID)                           { u.up++ }
func (u *ups) PeerDown(transport.NodeID, error)                  { u.down++ }
func (u *ups) Frame(transport.NodeID, []byte, transport.Payload) {}

// TestReadmitWithPagesToSend: pages are granted to a peer, one in this turn and one that has waited
// for the disk, and then it is heard that the peer is left out. Its successor is sent nothing that
// was meant for it.
func TestReadmitWithPagesToSend(t *testing.T) {
	n := newPair(t).nodes[0]
	net := sim.NewNetwork(2, 4096, sim.Options{})
	n.net.Transport = net.Node(0)
	var seen ups
	poll := func(happened func() bool) {
		for range 1000 {
			if happened() {
				return
			}
			if _, err := n.net.Poll(&seen, 8); err != nil {
				t.Fatal(err)
			}
		}
		t.Fatalf("it has not happened: %+v", seen)
	}
	poll(func() bool { return seen.up == 1 })
	grant := func(page uint64) protocol.Message {
		return protocol.Message{Kind: protocol.KindGrant, Object: protocol.PageObject(page), From: 0, To: 1}
	}
	payload := n.net.Lease(1)
	payload.Bytes()[0] = 1
	n.drive.exec.pages = append(n.drive.exec.pages, pageMessage{message: grant(0), payload: payload, filled: true})
	n.drive.loads.byPage[1] = &load{effects: []protocol.Effect{{Kind: protocol.EffectSend, Source: protocol.SourcePage, Message: grant(1)}}}
	n.drive.exec.contents.loaded[1] = []byte{1}
	net.Crash(1)
	poll(func() bool { return seen.down == 1 })
	n.members.readmit(1)
	net.Restart(1)
	poll(func() bool { return seen.up == 2 })
	n.drive.end()
	if sent := n.meter.count.pagesSent.Load(); sent != 2 {
		t.Errorf("%d pages were given to the transport", sent)
	}
	if queued := n.net.Stats().QueuedBytes; queued != 0 {
		t.Errorf("%d bytes are queued for the successor", queued)
	}
}
