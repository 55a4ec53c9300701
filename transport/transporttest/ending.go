package transporttest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
)

// testPeerCloses: one node of three closes. The others get what it had flushed, then PeerDown once,
// and go on.
func testPeerCloses(t *testing.T, factory Factory) {
	untilDelivered(t, func() *closing { return peerCloses(t, factory) })
}

func peerCloses(t *testing.T, factory Factory) *closing {
	nodes := connected(t, factory, 3)
	rest, leaving := nodes[:2], nodes[2]
	const frames = 50
	for i, r := range rest {
		out, in := newStream(2, i, pageBytes), newStream(2, i, pageBytes)
		leaving.sendNext(out, transport.NodeID(i), frames)
		r.expect(in)
	}
	end := leaving.close()
	byHand(t, "PeerDown", rest, func() bool { return rest[0].down[2] != nil && rest[1].down[2] != nil || end.gaveUp() })
	if <-end.over; end.gaveUp() {
		return end
	}
	for i, r := range rest {
		r.onFrame = nil
		if r.frames != frames {
			t.Errorf("node %d got %d frames of the node that closed, want %d", i, r.frames, frames)
		}
		if err := r.tr.Send(2, []byte("x"), r.tr.Lease(2)); !errors.Is(err, transport.ErrPeerDown) {
			t.Errorf("Send to a peer that is down: %v, want ErrPeerDown", err)
		}
		if err := r.tr.Send(transport.NodeID(1-i), []byte("x"), r.tr.Lease(transport.NodeID(1-i))); err != nil {
			t.Errorf("Send between nodes that are left: %v", err)
		}
	}
	byHand(t, "the nodes that are left", rest, func() bool { return rest[0].frames == frames+1 && rest[1].frames == frames+1 })
	for range 100 { // The handlers complain about a second PeerDown.
		rest[0].poll()
		rest[1].poll()
	}
	if rest[0].down[1] != nil || rest[1].down[0] != nil {
		t.Errorf("nodes that are left are down: %v, %v", rest[0].down[1], rest[1].down[0])
	}
	return end
}

// testDisconnect: both sides learn of it, the one that parts with its own reason.
func testDisconnect(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 3)
	reason := errors.New("it sends nonsense")
	nodes[0].tr.Disconnect(1, reason)
	if !nodes[0].tr.Arm() {
		t.Error("Arm does not say that there is a PeerDown to report")
	}
	if err := nodes[0].tr.Send(1, []byte("x"), nil); !errors.Is(err, transport.ErrPeerDown) {
		t.Errorf("Send after Disconnect: %v, want ErrPeerDown", err)
	}
	nodes[0].tr.Disconnect(1, errors.New("again"))
	nodes[1].runUntil("PeerDown", func() bool { return nodes[1].down[0] != nil })
	byHand(t, "PeerDown", nodes, func() bool { return nodes[0].down[1] != nil })
	if !errors.Is(nodes[0].down[1], reason) {
		t.Errorf("PeerDown says %v, want the reason given", nodes[0].down[1])
	}
	for range 20 {
		nodes[0].poll()
		nodes[1].poll()
	}
	if nodes[2].down[0] != nil || nodes[2].down[1] != nil {
		t.Error("a node that has no part in it lost a peer")
	}
}

// testDisconnectFromHandler: no frame of the peer comes after the handler has parted with it,
// although more are here.
func testDisconnectFromHandler(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	for range 10 {
		if err := nodes[1].tr.Send(0, []byte("x"), nodes[1].tr.Lease(0)); err != nil {
			t.Fatal(err)
		}
	}
	r := nodes[0]
	r.onFrame = func(from transport.NodeID, _ []byte, _ transport.Payload) {
		if r.frames == 3 {
			r.tr.Disconnect(from, errors.New("enough"))
		}
	}
	byHand(t, "PeerDown", nodes, func() bool { return r.down[1] != nil && nodes[1].down[0] != nil })
	if r.frames != 3 {
		t.Errorf("%d frames were delivered of a peer disconnected at the third", r.frames)
	}
}

// testDisconnectFromPeerUp: the same for one that is parted with as soon as it is reported.
func testDisconnectFromPeerUp(t *testing.T, factory Factory) {
	nodes := cluster(t, factory, 2, pageBytes)
	for range 10 {
		if err := nodes[1].tr.Send(0, []byte("x"), nodes[1].tr.Lease(0)); err != nil {
			t.Fatal(err)
		}
	}
	r := nodes[0]
	r.onUp = func(peer transport.NodeID) { r.tr.Disconnect(peer, errors.New("enough")) }
	byHand(t, "PeerDown", nodes, func() bool { return r.down[1] != nil && nodes[1].down[0] != nil })
	if r.frames != 0 {
		t.Errorf("%d frames were delivered of a peer disconnected in PeerUp", r.frames)
	}
}

// testClose: what every method does afterwards.
func testClose(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	var kept transport.Payload
	nodes[0].onFrame = func(_ transport.NodeID, _ []byte, payload transport.Payload) {
		payload.Keep()
		kept = payload
	}
	page := nodes[1].tr.Lease(0)
	copy(page.Bytes(), "kept")
	if err := nodes[1].tr.Send(0, []byte("x"), page); err != nil {
		t.Fatal(err)
	}
	byHand(t, "a page", nodes, func() bool { return kept != nil })

	tr := nodes[0].tr
	leased, sent := tr.Lease(1), tr.Lease(1)
	for range 2 {
		if err := tr.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := tr.Send(1, []byte("x"), sent); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Send after Close: %v, want ErrClosed", err)
	}
	mustPanic(t, "Release of a payload that a failed Send took", sent.Release)
	if n, err := tr.Poll(nodes[0], 10); n != 0 || !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Poll after Close: %d, %v, want ErrClosed", n, err)
	}
	if !tr.Arm() {
		t.Error("Arm after Close lets the caller sleep")
	}
	tr.Flush()
	tr.Disconnect(1, errors.New("late"))
	tr.Stats()
	if !sleep(tr, time.Now().Add(limit)) {
		t.Error("WaitFD is not readable after Close")
	}
	if string(kept.Bytes()[:4]) != "kept" {
		t.Error("a kept payload has changed in Close")
	}
	kept.Release()
	leased.Release()
}

// testCloseWakesSleeper: Close comes from another goroutine while the reactor polls and sleeps.
func testCloseWakesSleeper(t *testing.T, factory Factory) {
	r := connected(t, factory, 2)[0]
	asleep := make(chan struct{})
	var reactor sync.WaitGroup
	reactor.Go(func() {
		var once sync.Once
		for deadline := time.Now().Add(limit); ; {
			if _, err := r.tr.Poll(r, 10); err != nil {
				if !errors.Is(err, transport.ErrClosed) {
					t.Errorf("Poll: %v, want ErrClosed", err)
				}
				return
			}
			if r.tr.Arm() {
				continue
			}
			once.Do(func() { close(asleep) })
			if !sleep(r.tr, deadline) {
				t.Error("Close did not wake a sleeping reactor")
				return
			}
		}
	})
	<-asleep
	if err := r.tr.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	reactor.Wait()
}

// testCloseDelivers: what was sent but not flushed still arrives.
func testCloseDelivers(t *testing.T, factory Factory) {
	untilDelivered(t, func() *closing { return closeDelivers(t, factory) })
}

func closeDelivers(t *testing.T, factory Factory) *closing {
	nodes := connected(t, factory, 2)
	const frames = 30
	out, in := newStream(0, 1, pageBytes), newStream(0, 1, pageBytes)
	nodes[0].sendNext(out, 1, frames)
	// The other side has sent something that nobody will read. It must not destroy what goes the
	// other way.
	if err := nodes[1].tr.Send(0, []byte("unread"), nodes[1].tr.Lease(0)); err != nil {
		t.Fatal(err)
	}
	nodes[1].tr.Flush()
	nodes[1].expect(in)
	end := nodes[0].close()
	nodes[1].awaitEnd(end, in, frames)
	return end
}

// awaitEnd waits until node 0 is lost, which closes, and has sent so many frames before.
func (r *reactor) awaitEnd(end *closing, in *stream, frames int) {
	r.t.Helper()
	r.runUntil("PeerDown", func() bool { return r.down[0] != nil || end.gaveUp() })
	if <-end.over; in.index != frames && !end.gaveUp() {
		r.t.Errorf("%d of %d frames arrived that were sent before Close", in.index, frames)
	}
}
