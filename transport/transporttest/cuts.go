package transporttest

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
)

// Cutter breaks the connections of a cluster from outside. Its methods may be called from any
// goroutine.
type Cutter interface {
	// Cut breaks the connections that two nodes have now, in a way that it draws from random: in
	// order, by a reset, in one direction only, at once or after some more bytes. New ones can be
	// made at once.
	Cut(a, b transport.NodeID, random *rand.Rand)
	// Fragile makes every new connection break soon, most of them during the handshake, or ends
	// that.
	Fragile(on bool)
}

// CutFactory makes a cluster as Factory does, and what can cut its connections.
type CutFactory func(t *testing.T, o Options) ([]transport.Transport, Cutter)

// RunCuts runs the suite for transports that have connections: while these are cut, frames arrive
// exactly once, in order and unchanged, nobody is lost, and nobody sleeps for ever.
func RunCuts(t *testing.T, factory CutFactory, options ...Option) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, CutFactory)
	}{
		{"AllToAll", func(t *testing.T, f CutFactory) { testCutAllToAll(t, f, 3, 300, pageBytes) }},
		{"AllToAll/ManyNodes", func(t *testing.T, f CutFactory) { testCutAllToAll(t, f, 6, 60, pageBytes) }},
		{"AllToAll/LargePages", func(t *testing.T, f CutFactory) { testCutAllToAll(t, f, 2, 60, 64<<10) }},
		{"Fragile", testFragile},
		{"Asleep", testCutAsleep},
		{"PeerDoesNotPoll", testCutPeerDoesNotPoll},
		{"Closing", testCutClosing},
		{"Disconnect", testCutDisconnect},
	} {
		sub(t, options, test.name, func(t *testing.T) { test.run(t, factory) })
	}
}

// withCutter makes a cluster for a test of its own kind, and keeps its cutter.
func withCutter(t *testing.T, factory CutFactory, nodes, pageBytes int) ([]*reactor, Cutter) {
	t.Helper()
	var cutter Cutter
	return cluster(t, func(t *testing.T, o Options) []transport.Transport {
		transports, c := factory(t, o)
		cutter = c
		return transports
	}, nodes, pageBytes), cutter
}

// connectedWithCutter is withCutter for nodes that have all reported each other.
func connectedWithCutter(t *testing.T, factory CutFactory, nodes int) ([]*reactor, Cutter) {
	t.Helper()
	reactors, cutter := withCutter(t, factory, nodes, pageBytes)
	awaitConnected(t, reactors)
	return reactors, cutter
}

// keepCutting cuts random pairs of nodes until the returned function is called, which waits for the
// end of that.
func keepCutting(cutter Cutter, nodes int, every time.Duration) (stop func()) {
	over := make(chan struct{})
	var cutting sync.WaitGroup
	cutting.Go(func() {
		random := rand.New(rand.NewPCG(3, uint64(nodes)))
		for {
			// Not every wait is as long as the others: cuts are to fall into all phases of what
			// happens meanwhile.
			select {
			case <-over:
				return
			case <-time.After(time.Duration(random.Int64N(2 * int64(every)))):
			}
			a := random.IntN(nodes)
			b := (a + 1 + random.IntN(nodes-1)) % nodes
			cutter.Cut(transport.NodeID(a), transport.NodeID(b), random)
			// Cuts become rarer, slowly, so that the slowest machine gets through: where a
			// handshake takes longer than the time between two cuts there would be no connection at
			// all.
			every += every / 16
		}
	})
	return func() { close(over); cutting.Wait() }
}

// wantNobodyLost complains about peers that are down.
func wantNobodyLost(t *testing.T, nodes []*reactor) {
	t.Helper()
	for i, r := range nodes {
		for j, err := range r.down {
			if err != nil {
				t.Errorf("node %d has lost node %d: %v", i, j, err)
			}
		}
	}
}

// cutEvery is how often connections are cut in the beginning, on average. A few round trips fit
// between.
const cutEvery = 3 * time.Millisecond

// testCutAllToAll: all nodes at once send to all others while connections are cut.
func testCutAllToAll(t *testing.T, factory CutFactory, nodes, frames, pageBytes int) {
	reactors, cutter := withCutter(t, factory, nodes, pageBytes)
	stop := keepCutting(cutter, nodes, cutEvery)
	exchangeAll(t, reactors, frames)
	stop()
	wantNobodyLost(t, reactors)
}

// testFragile: connections break as soon as they are made, and most are not made at all. When that
// is over, everything is as it was.
func testFragile(t *testing.T, factory CutFactory) {
	const nodes = 3
	reactors, cutter := withCutter(t, factory, nodes, pageBytes)
	cutter.Fragile(true)
	stop := keepCutting(cutter, nodes, cutEvery)
	over := time.AfterFunc(500*time.Millisecond, func() { cutter.Fragile(false) })
	defer over.Stop()
	exchangeAll(t, reactors, 200)
	stop()
	wantNobodyLost(t, reactors)
}

// exchangeAll has all nodes send to all others, each on a goroutine of its own, until every frame
// has arrived.
func exchangeAll(t *testing.T, reactors []*reactor, frames int) {
	var all, left sync.WaitGroup
	left.Add(len(reactors))
	for _, r := range reactors {
		all.Go(func() {
			x := newExchange(r, frames)
			for x.left > 0 && !t.Failed() {
				x.sendSome()
				x.max = 1 + x.random.IntN(64)
				x.poll()
			}
			x.runUntil("the frames of all others", x.done)
			left.Done()
			r.serveUntil(&left)
		})
	}
	all.Wait()
}

// testCutAsleep: both nodes sleep when their connection is cut. The next frame arrives all the
// same.
func testCutAsleep(t *testing.T, factory CutFactory) {
	reactors, cutter := connectedWithCutter(t, factory, 2)
	random := rand.New(rand.NewPCG(5, 5))
	for round := range 30 {
		asleep := make(chan struct{})
		var receiver sync.WaitGroup
		receiver.Go(func() {
			close(asleep)
			r := reactors[1]
			r.runUntil("a frame after a cut", func() bool { return r.frames == round+1 })
		})
		<-asleep
		cutter.Cut(0, 1, random)
		if err := reactors[0].tr.Send(1, []byte{byte(round)}, reactors[0].tr.Lease(1)); err != nil {
			t.Fatal(err)
		}
		var left sync.WaitGroup
		left.Add(1)
		go func() { receiver.Wait(); left.Done() }()
		reactors[0].serveUntil(&left)
	}
	wantNobodyLost(t, reactors)
}

// testCutPeerDoesNotPoll: one node of three is stopped while its connections are cut. The others go
// on with each other; what they have sent to it arrives when it goes on.
func testCutPeerDoesNotPoll(t *testing.T, factory CutFactory) {
	reactors, cutter := connectedWithCutter(t, factory, 3)
	stopped := reactors[2]
	var accepted [2]int
	for i, r := range reactors[:2] {
		s := newStream(i, 2, pageBytes)
		sendUntilBacklog(t, r.tr, 2, s)
		accepted[i] = s.index - 1
	}
	stop := keepCutting(cutter, 3, cutEvery)
	const frames = 200
	var pair, left sync.WaitGroup
	left.Add(2)
	for i, r := range reactors[:2] {
		pair.Go(func() {
			out, in := newStream(i, 1-i, pageBytes), newStream(1-i, i, pageBytes)
			r.expect(in)
			var spin spinner
			for out.index < frames && !t.Failed() {
				out.next()
				err := out.send(r.tr, transport.NodeID(1-i))
				for deadline := time.Now().Add(limit); errors.Is(err, transport.ErrBacklog) && time.Now().Before(deadline); {
					spin.polled(r.poll())
					err = out.send(r.tr, transport.NodeID(1-i))
				}
				if err != nil {
					t.Errorf("Send beside a node that is stopped: %v", err)
				}
				r.tr.Flush()
				r.poll()
			}
			r.runUntil("the frames of the other, beside a node that is stopped", func() bool { return in.index == frames })
			left.Done()
			r.serveUntil(&left) // What the other has not got may have to be sent again.
		})
	}
	pair.Wait()
	stop()
	arrived := [2]*stream{newStream(0, 2, pageBytes), newStream(1, 2, pageBytes)}
	stopped.onFrame = func(from transport.NodeID, control []byte, payload transport.Payload) {
		if err := arrived[from].take(control, payload); err != nil && !t.Failed() {
			t.Error(err)
		}
	}
	byHand(t, "what was sent to the node that was stopped", reactors, func() bool {
		return arrived[0].index == accepted[0] && arrived[1].index == accepted[1]
	})
	wantNobodyLost(t, reactors)
}

// testCutClosing: a node closes while its connection is cut. What it has sent arrives, and then the
// news that it has left.
func testCutClosing(t *testing.T, factory CutFactory) {
	for range 10 {
		untilDelivered(t, func() *closing { return cutClosing(t, factory) })
	}
}

func cutClosing(t *testing.T, factory CutFactory) *closing {
	reactors, cutter := connectedWithCutter(t, factory, 2)
	const frames = 20
	out, in := newStream(0, 1, pageBytes), newStream(0, 1, pageBytes)
	reactors[0].sendNext(out, 1, frames)
	reactors[1].expect(in)
	stop := keepCutting(cutter, 2, cutEvery)
	// Close tries for a second, and it has to succeed at last.
	over := time.AfterFunc(20*time.Millisecond, stop)
	end := reactors[0].close()
	reactors[1].awaitEnd(end, in, frames)
	if over.Stop() {
		stop()
	}
	return end
}

// testCutDisconnect: the end of a peer is not mistaken for a cut, whichever side parts with the
// other, and also when the connection is cut at the same moment.
func testCutDisconnect(t *testing.T, factory CutFactory) {
	random := rand.New(rand.NewPCG(8, 8))
	for _, parting := range []int{0, 1} {
		reactors, cutter := connectedWithCutter(t, factory, 2)
		other := reactors[1-parting]
		cutter.Cut(0, 1, random)
		reactors[parting].tr.Disconnect(other.tr.Self(), errors.New("enough"))
		byHand(t, "PeerDown", reactors, func() bool { return reactors[0].down[1] != nil && reactors[1].down[0] != nil })
	}
}
