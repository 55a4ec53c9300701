package rdma

import (
	"errors"
	"testing"

	"dsmd/transport"
	"dsmd/transport/tcp"
	"dsmd/transport/transporttest"
)

// TestOffersToStopped: a peer that is stopped for long finds one offer when it goes on, and then
// there is a queue pair.
func TestOffersToStopped(t *testing.T) {
	t.Parallel()
	all := newFakeFabrics(t, false)
	nodes := newCluster(t, transporttest.Options{Nodes: 2, PageBytes: 64, MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, func(int) fabric { return all.device() })
	seen, caller := observe(2), nodes[1]
	p := caller.peers[0]
	pollUntil(t, "an offer", asInterface(nodes[1:]), seen[1:], func() bool { return p.link != nil })
	for range 50 { // as if so much time had passed
		caller.gate.Enter()
		if !p.due.IsZero() {
			caller.overdue(p)
		}
		caller.gate.Leave()
	}
	if tried := caller.LinkStats().LinksTried; tried != 1 {
		t.Errorf("a peer that says nothing was made %d offers", tried)
	}
	pollUntil(t, "a queue pair", asInterface(nodes), seen, func() bool { return nodes[0].LinkStats().Links == 1 && caller.LinkStats().Links == 1 })
}

// busyBase is a base transport that takes no answer to an offer.
type busyBase struct{ *tcp.Transport }

func (b busyBase) Send(to transport.NodeID, frame []byte, payload transport.Payload) error {
	if frame[0] == byte(noteAnswer) {
		return transport.ErrBacklog
	}
	return b.Transport.Send(to, frame, payload)
}

// TestAnswerToOfferIsNotTaken: where an offer cannot be answered, the log says why.
func TestAnswerToOfferIsNotTaken(t *testing.T) {
	t.Parallel()
	all, bases, said := newFakeFabrics(t, false), newBases(t, 2, 64, always), make(chan string, 100)
	answers, err := newTransport(Config{Base: busyBase{bases[0]}, MaxQueuedBytes: 1 << 20, Log: func(line string) { said <- line }}, all.device())
	if err != nil {
		t.Fatal(err)
	}
	offers := layer(t, bases[1], transporttest.Options{MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, all.device())
	nodes := []transport.Transport{answers, offers}
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
	pollUntil(t, "a line in the log", nodes, observe(2), func() bool { return len(said) > 0 })
	if line, want := <-said, "rdma: no queue pair to node 1: rdma: the base transport takes no answer now"; line != want {
		t.Errorf("the log says %q, want %q", line, want)
	}
}

// TestReadyOutOfTurn: only who has made an offer says that its queue pair is ready. A peer that
// says so for a queue pair that it was offered is parted with, instead of being sent to by one that
// is not connected.
func TestReadyOutOfTurn(t *testing.T) {
	t.Parallel()
	bases := newBases(t, 2, 64, always)
	tr := layer(t, bases[1], transporttest.Options{MaxQueuedBytes: 1 << 20}, DefaultPoolBytes, newFakeFabrics(t, false).device())
	nodes := []transport.Transport{bases[0], tr}
	t.Cleanup(func() { transporttest.CloseAll(t, nodes) })
	seen, p := observe(2), tr.peers[0]
	pollUntil(t, "an offer", nodes, seen, func() bool { return p.link != nil })
	if err := bases[0].Send(1, appendGeneration(nil, noteReady, p.generation, ""), nil); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, "a verdict", nodes, seen, func() bool { return seen[1].down[0] != nil || seen[1].up[0] > 0 })
	if err := seen[1].down[0]; !errors.Is(err, ErrMalformed) {
		t.Errorf("the peer is down because of %v, want ErrMalformed", err)
	}
}
