package transporttest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
)

func testAlone(t *testing.T, factory Factory) {
	r := cluster(t, factory, 1, pageBytes)[0]
	if n := r.poll(); n != 0 {
		t.Errorf("Poll delivered %d frames to a node without peers", n)
	}
	r.tr.Flush()
	if r.tr.Arm() {
		t.Error("Arm says that a node without peers has work")
	}
}

// exchange is one node's part in a test where everyone sends to everyone.
type exchange struct {
	*reactor
	random   *rand.Rand
	incoming []*stream
	outgoing []*stream
	left     int // frames still to send
	missing  int // frames still to receive
	frames   int // in each direction
}

func newExchange(r *reactor, frames int) *exchange {
	nodes, self := r.tr.Nodes(), int(r.tr.Self())
	x := &exchange{reactor: r, random: rand.New(rand.NewPCG(uint64(self), 99)), frames: frames}
	for i := range nodes {
		x.incoming = append(x.incoming, newStream(i, self, r.tr.PageBytes()))
		x.outgoing = append(x.outgoing, newStream(self, i, r.tr.PageBytes()))
	}
	x.left = frames * (nodes - 1)
	x.missing = x.left
	r.onFrame = func(from transport.NodeID, control []byte, payload transport.Payload) {
		x.missing--
		if err := x.incoming[from].take(control, payload); err != nil && !r.t.Failed() {
			r.t.Errorf("node %d from node %d: %v", self, from, err)
		}
	}
	return x
}

// sendSome sends up to a handful of frames to random peers.
func (x *exchange) sendSome() {
	for burst := x.random.IntN(8); burst > 0 && x.left > 0; burst-- {
		to := x.random.IntN(len(x.outgoing))
		s := x.outgoing[to]
		if to == int(x.tr.Self()) || s.index == x.frames {
			continue
		}
		if !hasRoom(x.tr) {
			break
		}
		s.next()
		if err := s.send(x.tr, transport.NodeID(to)); errors.Is(err, transport.ErrBacklog) {
			// The peer reads too slowly for now. The frame is sent again when it is next in turn.
			x.resend(s, transport.NodeID(to))
		} else if err != nil {
			x.t.Errorf("node %d: Send to node %d: %v", x.tr.Self(), to, err)
		}
		x.left--
	}
	x.tr.Flush()
}

// hasRoom reports whether so little waits to be sent that the limit is far: few tests are about the
// limit, and how fast a peer reads is up to the device and the machine.
func hasRoom(tr transport.Transport) bool { return tr.Stats().QueuedBytes <= maxQueuedBytes/2 }

// resend offers a frame until it is taken. Polling meanwhile keeps the cluster moving.
func (x *exchange) resend(s *stream, to transport.NodeID) {
	var spin spinner
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); {
		x.tr.Flush()
		spin.polled(x.poll())
		if err := s.send(x.tr, to); err == nil {
			return
		} else if !errors.Is(err, transport.ErrBacklog) {
			x.t.Errorf("node %d: Send to node %d: %v", x.tr.Self(), to, err)
			return
		}
	}
	x.t.Errorf("node %d: frames for node %d were refused for %v", x.tr.Self(), to, limit)
}

func (x *exchange) done() bool {
	return x.t.Failed() || x.left == 0 && x.missing == 0 && x.tr.Stats().QueuedBytes == 0
}

// testAllToAll: all nodes at once send to all others, each on its goroutine, and sleep when idle.
func testAllToAll(t *testing.T, factory Factory, nodes, frames, pageBytes int) {
	var all sync.WaitGroup
	for _, r := range cluster(t, factory, nodes, pageBytes) {
		all.Go(func() {
			x := newExchange(r, frames)
			for x.left > 0 && !t.Failed() {
				x.sendSome()
				x.max = 1 + x.random.IntN(64)
				x.poll()
			}
			x.runUntil("the frames of all others", x.done)
		})
	}
	all.Wait()
}

// testOneGoroutine: the same, with one goroutine for all nodes, as the simulator of a cluster does.
func testOneGoroutine(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 4)
	var exchanges []*exchange
	for _, r := range nodes {
		exchanges = append(exchanges, newExchange(r, 100))
	}
	byHand(t, "everyone's frames", nodes, func() bool {
		done := true
		for _, x := range exchanges {
			if x.left > 0 {
				x.sendSome()
			}
			done = done && x.done()
		}
		return done
	})
}

// testAnswerFromHandler: a handler answers each frame at once, from inside Poll, as the daemon
// does.
func testAnswerFromHandler(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	const rounds = 200
	for _, r := range nodes {
		peer := 1 - r.tr.Self()
		r.onFrame = func(from transport.NodeID, control []byte, payload transport.Payload) {
			if r.frames >= rounds {
				return
			}
			answer := r.tr.Lease(peer)
			copy(answer.Bytes(), payload.Bytes())
			answer.Bytes()[0]++
			if err := r.tr.Send(peer, append(control, byte(r.frames))[:1+r.frames%len(control)], answer); err != nil {
				t.Errorf("Send from a handler: %v", err)
			}
			r.tr.Flush()
		}
	}
	first := nodes[0].tr.Lease(1)
	clear(first.Bytes())
	if err := nodes[0].tr.Send(1, []byte("serve"), first); err != nil {
		t.Fatal(err)
	}
	byHand(t, "the answers", nodes, func() bool { return nodes[0].frames+nodes[1].frames >= 2*rounds-1 })
}

// testSendBeforeUp: frames sent before the peer is reported wait for it.
func testSendBeforeUp(t *testing.T, factory Factory) {
	nodes := cluster(t, factory, 2, pageBytes)
	in := newStream(0, 1, pageBytes)
	nodes[1].expect(in)
	nodes[0].sendNext(newStream(0, 1, pageBytes), 1, 5)
	byHand(t, "the frames sent before PeerUp", nodes, func() bool { return in.index == 5 })
}

// testWakeups: two nodes pass bursts back and forth, and each sleeps until its burst is there. A
// wake-up that is lost leaves both asleep.
func testWakeups(t *testing.T, factory Factory) {
	const rounds = 300
	var both, served sync.WaitGroup
	served.Add(2)
	for _, r := range cluster(t, factory, 2, pageBytes) {
		both.Go(func() {
			defer r.serveUntil(&served) // the last burst may still be here
			defer served.Done()
			peer := 1 - r.tr.Self()
			// the same on both sides: so many frames make a burst
			random := rand.New(rand.NewPCG(7, 7))
			expected := 0
			for round := range rounds {
				burst := 1 + random.IntN(5)
				r.max = 1 + random.IntN(3)
				if round%2 == int(r.tr.Self()) {
					for range burst {
						if err := r.tr.Send(peer, []byte{byte(round)}, nil); err != nil {
							t.Errorf("Send: %v", err)
						}
					}
					r.tr.Flush()
					continue
				}
				expected += burst
				if !r.runUntil("a burst", func() bool { return r.frames == expected }) {
					return
				}
			}
		})
	}
	both.Wait()
}

// testArmSeesHeldBackFrames: frames that a small max holds back are work, although the descriptor
// of a socket would say that nothing has come.
func testArmSeesHeldBackFrames(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	const frames = 10
	for i := range frames {
		if err := nodes[0].tr.Send(1, []byte{byte(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	nodes[0].tr.Flush()
	defer nodes[0].asleep()()
	r := nodes[1]
	r.max = 1
	for deadline := time.Now().Add(limit); r.frames < frames; {
		if !r.tr.Arm() && !sleep(r.tr, deadline) {
			t.Fatalf("a node that has got %d of %d frames sleeps and is not woken for the rest", r.frames, frames)
		}
		r.poll()
	}
}

// testArmFlushes: one who sends, forgets Flush and goes to sleep has sent all the same.
func testArmFlushes(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	if err := nodes[0].tr.Send(1, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	defer nodes[0].asleep()()
	nodes[1].runUntil("a frame that only Arm has flushed", func() bool { return nodes[1].frames == 1 })
}

// testPollBounds: Poll delivers at most max frames, and none at all for 0.
func testPollBounds(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	for range 3 {
		if err := nodes[0].tr.Send(1, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	nodes[0].tr.Flush()
	defer nodes[0].asleep()()
	r := nodes[1]
	r.max = 0
	r.poll()
	r.max = 2
	r.runUntil("all frames", func() bool { return r.frames == 3 })
}

// testKeep: a payload that was kept stays as it was however much arrives after it.
func testKeep(t *testing.T, factory Factory) {
	nodes := connected(t, factory, 2)
	const frames, keepEvery = 600, 7
	type kept struct {
		payload transport.Payload
		want    []byte
	}
	var keeps []kept
	in, out := newStream(0, 1, pageBytes), newStream(0, 1, pageBytes)
	nodes[1].onFrame = func(_ transport.NodeID, control []byte, payload transport.Payload) {
		if err := in.take(control, payload); err != nil && !t.Failed() {
			t.Error(err)
		}
		if payload == nil || in.index%keepEvery != 0 {
			return
		}
		payload.Keep()
		keeps = append(keeps, kept{payload, bytes.Clone(in.page)})
	}
	byHand(t, "all frames", nodes, func() bool {
		for burst := 0; burst < 8 && out.index < frames && hasRoom(nodes[0].tr); burst++ {
			nodes[0].sendNext(out, 1, 1)
		}
		return in.index == frames
	})
	if len(keeps) < frames/keepEvery/4 {
		t.Fatalf("only %d payloads were kept", len(keeps))
	}
	for i, k := range keeps {
		if !bytes.Equal(k.payload.Bytes(), k.want) {
			t.Fatalf("payload %d has changed since it was kept", i)
		}
		k.payload.Release()
	}
}
