package transporttest

import (
	"errors"
	"testing"

	"dsmd/transport"
)

// testPayloadMisuse: who uses a payload that is no longer his is stopped.
func testPayloadMisuse(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 3)
	tr := nodes[0].tr

	unsent := tr.Lease(1)
	if len(unsent.Bytes()) != pageBytes {
		t.Errorf("a leased payload has %d bytes, want %d", len(unsent.Bytes()), pageBytes)
	}
	mustPanic(t, "Keep of a leased payload", unsent.Keep)
	unsent.Release()
	mustPanic(t, "a second Release", unsent.Release)
	mustPanic(t, "Bytes after Release", func() { unsent.Bytes() })
	mustPanic(t, "Send after Release", func() { tr.Send(1, []byte("x"), unsent) })

	wrong := tr.Lease(1)
	mustPanic(t, "Send to another peer than leased for", func() { tr.Send(2, []byte("x"), wrong) })
	foreign := nodes[1].tr.Lease(2)
	mustPanic(t, "Send of another node's payload", func() { tr.Send(2, []byte("x"), foreign) })
	foreign.Release()
	if err := tr.Send(1, []byte("x"), wrong); err != nil {
		t.Fatal(err)
	}
	mustPanic(t, "a second Send", func() { tr.Send(1, []byte("x"), wrong) })
	mustPanic(t, "Bytes after Send", func() { wrong.Bytes() })
	mustPanic(t, "Release after Send", wrong.Release)

	var borrowed, kept transport.Payload
	nodes[1].onFrame = func(_ transport.NodeID, _ []byte, payload transport.Payload) {
		if nodes[1].frames == 1 {
			borrowed = payload
			mustPanic(t, "Release of a borrowed payload", payload.Release)
			return
		}
		kept = payload
		kept.Keep()
		mustPanic(t, "a second Keep", kept.Keep)
	}
	byHand(t, "a page", nodes, func() bool { return borrowed != nil })
	mustPanic(t, "Bytes after Frame", func() { borrowed.Bytes() })
	mustPanic(t, "Keep after Frame", borrowed.Keep)
	mustPanic(t, "Release after Frame", borrowed.Release)
	if err := tr.Send(1, []byte("x"), tr.Lease(1)); err != nil {
		t.Fatal(err)
	}
	byHand(t, "another page", nodes, func() bool { return kept != nil })
	mustPanic(t, "Send of a kept payload", func() { nodes[1].tr.Send(0, []byte("x"), kept) })
	kept.Release()
	mustPanic(t, "a second Release of a kept payload", kept.Release)
}

// testSendMisuse: the preconditions of Send and Lease are checked.
func testSendMisuse(t *testing.T, factory Factory) {
	tr := connected(t, factory, 2)[0].tr
	mustPanic(t, "Send to oneself", func() { tr.Send(0, []byte("x"), nil) })
	mustPanic(t, "Send to a node that does not exist", func() { tr.Send(2, []byte("x"), nil) })
	mustPanic(t, "Send of nothing", func() { tr.Send(1, nil, nil) })
	mustPanic(t, "Send of too much", func() { tr.Send(1, make([]byte, transport.MaxControlBytes+1), nil) })
	mustPanic(t, "Lease for oneself", func() { tr.Lease(0) })
	mustPanic(t, "Disconnect from oneself", func() { tr.Disconnect(0, errors.New("x")) })
}

// mostFrames bounds how many frames a test sends before it must meet the limit: what a socket holds
// on both sides, some tens of MiB at most, in frames with pages.
const mostFrames = 50_000

// sendUntilBacklog sends to a peer that does not poll, until Send refuses.
func sendUntilBacklog(t *testing.T, tr transport.Transport, to transport.NodeID, s *stream) {
	t.Helper()
	for s.index < mostFrames {
		s.next()
		err := s.send(tr, to)
		if errors.Is(err, transport.ErrBacklog) {
			return // s stands at the frame that was refused.
		}
		if err != nil {
			t.Fatalf("Send: %v", err)
		}
		tr.Flush()
	}
	t.Fatalf("%d frames were accepted for a peer that does not poll, with a limit of %d bytes", mostFrames, maxQueuedBytes)
}

// testPeerDoesNotPoll: Send does not wait for a peer that does not poll. It refuses at last; what
// it has accepted arrives.
func testPeerDoesNotPoll(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	out := newStream(0, 1, pageBytes)
	sendUntilBacklog(t, nodes[0].tr, 1, out)
	accepted := out.index - 1

	in := newStream(0, 1, pageBytes)
	nodes[1].expect(in)
	byHand(t, "all accepted frames", nodes, func() bool { return in.index >= accepted })
	if err := out.send(nodes[0].tr, 1); err != nil {
		t.Fatalf("Send after the backlog was gone: %v", err)
	}
	byHand(t, "the frame that was refused before", nodes, func() bool { return in.index >= accepted+1 })
}

// testBlockedByOne: a node that has more for one peer than the network takes gets what others send,
// also when it takes little at a time.
func testBlockedByOne(t *testing.T, factory Factory) {
	const most = 32 << 20 // more than the sockets of both sides hold
	nodes := clusterOf(t, factory, Options{Nodes: 6, PageBytes: 64 << 10, MaxQueuedBytes: 2 * most})
	awaitConnected(t, nodes)
	r, sender := nodes[0], nodes[2]
	for range most / (64 << 10) {
		if err := r.tr.Send(1, []byte("x"), r.tr.Lease(1)); err != nil {
			t.Fatal(err)
		}
		r.tr.Flush()
	}
	const frames = 100
	for range frames {
		if err := sender.tr.Send(0, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	sender.tr.Flush()
	defer sender.asleep()()
	r.max = 10
	byHand(t, "what others send", []*reactor{r}, func() bool { return r.frames == frames })
}

// testFlood: two nodes send to each other until both refuse, and only then read. Nobody waits for
// the other.
func testFlood(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	var accepted [2]int
	for i, r := range nodes {
		s := newStream(i, 1-i, pageBytes)
		sendUntilBacklog(t, r.tr, transport.NodeID(1-i), s)
		accepted[i] = s.index - 1
	}
	for i, r := range nodes {
		r.expect(newStream(1-i, i, pageBytes))
	}
	byHand(t, "both floods", nodes, func() bool {
		return nodes[0].frames == accepted[1] && nodes[1].frames == accepted[0]
	})
}

// testStats: the counters count.
func testStats(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	const frames = 20
	for i := range frames {
		var payload transport.Payload
		if i%2 == 0 {
			payload = nodes[0].tr.Lease(1)
		}
		if err := nodes[0].tr.Send(1, []byte("control"), payload); err != nil {
			t.Fatal(err)
		}
	}
	leastBytes := uint64(frames*len("control") + frames/2*pageBytes)
	if queued := nodes[0].tr.Stats().QueuedBytes; queued < leastBytes {
		t.Errorf("%d bytes are queued before Flush, want at least %d", queued, leastBytes)
	}
	byHand(t, "all frames", nodes, func() bool { return nodes[1].frames == frames })
	sent, received := nodes[0].tr.Stats(), nodes[1].tr.Stats()
	if sent.FramesSent != frames || sent.PayloadsSent != frames/2 || sent.FramesReceived != 0 || sent.PayloadsReceived != 0 {
		t.Errorf("the sender counts %+v, want %d frames and %d payloads sent", sent, frames, frames/2)
	}
	if received.FramesReceived != frames || received.PayloadsReceived != frames/2 || received.FramesSent != 0 || received.PayloadsSent != 0 {
		t.Errorf("the receiver counts %+v, want %d frames and %d payloads received", received, frames, frames/2)
	}
	if sent.BytesSent != received.BytesReceived || sent.BytesSent < leastBytes {
		t.Errorf("%d bytes sent, %d received, want the same and at least %d", sent.BytesSent, received.BytesReceived, leastBytes)
	}
	if sent.QueuedBytes != 0 || sent.SendCalls == 0 || received.ReceiveCalls == 0 {
		t.Errorf("the sender counts %+v, the receiver %+v, want calls and nothing queued", sent, received)
	}
	if sent.SendCalls >= frames {
		t.Errorf("%d calls for %d frames of one Flush; want a batch", sent.SendCalls, frames)
	}
}
