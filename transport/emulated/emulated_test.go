package emulated

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/sim"
	"dsmd/transport/tcp/tcptest"
)

// Times have lower bounds alone here: the machine may take as long as it likes.

const testPage = 4096

// limit bounds every wait.
var limit = patience.Or(20 * time.Second)

// node is one that counts what it is told.
type node struct {
	*Transport
	frames int
	up     int
	down   error
}

func (n *node) Frame(transport.NodeID, []byte, transport.Payload) { n.frames++ }
func (n *node) PeerUp(transport.NodeID)                           { n.up++ }
func (n *node) PeerDown(_ transport.NodeID, err error)            { n.down = err }

func (n *node) poll(t testing.TB) {
	t.Helper()
	if _, err := n.Poll(n, 64); err != nil {
		t.Fatal(err)
	}
}

// send sends a page, or a frame of some bytes without one.
func (n *node) send(t testing.TB, to transport.NodeID, control int, page bool) {
	t.Helper()
	var payload transport.Payload
	if page {
		payload = n.Lease(to)
	}
	if err := n.Send(to, make([]byte, control), payload); err != nil {
		t.Fatal(err)
	}
	n.Flush()
}

// connected are nodes over TCP that have all reported each other.
func connected(t testing.TB, nodes int, link Link) []*node {
	t.Helper()
	var all []*node
	for _, base := range tcptest.Connect(t, tcptest.Configs(t, nodes, testPage)) {
		all = append(all, &node{Transport: over(t, base, link, 1<<30)})
	}
	until(t, all, "all peers", func() bool {
		for _, n := range all {
			if n.up < nodes-1 {
				return false
			}
		}
		return true
	})
	return all
}

// until polls nodes in turns.
func until(t testing.TB, nodes []*node, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !done(); {
		for _, n := range nodes {
			n.poll(t)
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", limit, what)
		}
	}
}

// roundTrip sends a frame to and fro, with a page back.
func roundTrip(t testing.TB, nodes []*node) {
	a, b := nodes[0], nodes[1]
	hers, his := a.frames, b.frames
	a.send(t, 1, 64, false)
	until(t, nodes, "the request", func() bool { return b.frames > his })
	b.send(t, 0, 64, true)
	until(t, nodes, "the answer", func() bool { return a.frames > hers })
}

// TestLatency: a frame and its answer take the latency twice.
func TestLatency(t *testing.T) {
	t.Parallel()
	for _, latency := range []time.Duration{30 * time.Microsecond, 5 * time.Millisecond} {
		nodes := connected(t, 2, Link{Latency: latency})
		for range 10 {
			began := time.Now()
			if roundTrip(t, nodes); time.Since(began) < 2*latency {
				t.Errorf("a round trip took %v with a latency of %v", time.Since(began), latency)
			}
		}
	}
}

// TestBandwidth: what a node sends to two peers passes through one card.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	const pages, control = 60, 100
	nodes := connected(t, 3, Link{Bandwidth: 200e6})
	began := time.Now()
	for i := range pages {
		nodes[0].send(t, transport.NodeID(1+i%2), control, true)
	}
	until(t, nodes, "all pages", func() bool { return nodes[1].frames+nodes[2].frames == pages })
	bits := pages * (testPage + control) * 8
	if least := time.Duration(bits) * time.Second / 200e6; time.Since(began) < least {
		t.Errorf("%d bits at 200 Mbit/s took %v, want at least %v", bits, time.Since(began), least)
	}
}

// TestSleep: one who sends and sleeps is let sleep, and woken in time for what it has sent.
func TestSleep(t *testing.T) {
	t.Parallel()
	const latency = 50 * time.Millisecond
	nodes := connected(t, 2, Link{Latency: latency})
	slept := false
	for deadline := time.Now().Add(limit); !slept; {
		began, before := time.Now(), nodes[1].frames
		nodes[0].send(t, 1, 64, true)
		for nodes[1].frames == before {
			if !nodes[0].Arm() {
				slept = true
				sleep(t, nodes[0])
			}
			nodes[0].poll(t)
			nodes[1].poll(t)
		}
		if time.Since(began) < latency {
			t.Errorf("a frame has arrived after %v", time.Since(began))
		}
		if time.Now().After(deadline) {
			t.Fatal("Arm never lets the caller sleep while a frame is held")
		}
	}
	for deadline := time.Now().Add(limit); nodes[0].Arm() || isReadable(t, nodes[0], 0); nodes[0].poll(t) {
		if time.Now().After(deadline) {
			t.Fatal("nobody can sleep, though nothing is held")
		}
	}
}

// sleep waits until a node's descriptor is readable.
func sleep(t *testing.T, n *node) {
	t.Helper()
	if !isReadable(t, n, limit) {
		t.Fatal("nothing wakes a node that holds a frame")
	}
}

func isReadable(t *testing.T, n *node, within time.Duration) bool {
	t.Helper()
	for deadline := time.Now().Add(within); ; {
		fds := []unix.PollFd{{Fd: int32(n.WaitFD()), Events: unix.POLLIN}}
		ready, err := unix.Poll(fds, int(max(0, time.Until(deadline)).Milliseconds()))
		if err == nil {
			return ready > 0
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// TestCloseDoesNotWaitForEver: frames that are due later than Close waits leave earlier.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	for deadline := time.Now().Add(limit); !closesInTime(t); {
		if time.Now().After(deadline) {
			t.Fatal("no Close has had the time to deliver what was sent")
		}
	}
}

// closesInTime returns false if this process was away for so long that Close need not have
// delivered what was sent.
func closesInTime(t *testing.T) bool {
	t.Helper()
	nodes := connected(t, 2, Link{Latency: MaxLatency, Bandwidth: MinBandwidth})
	const frames = 40 // 1.3 seconds of the card
	for range frames {
		nodes[0].send(t, 1, 64, true)
	}
	closed, began := make(chan error, 1), time.Now()
	go func() { closed <- nodes[0].Close() }()
	until(t, nodes[1:], "the end of node 0", func() bool { return nodes[1].down != nil })
	err := <-closed
	if time.Since(began) >= time.Second { // that is the base's part
		return false
	}
	if err != nil || nodes[1].frames != frames {
		t.Errorf("%d of %d frames have come before the end, %v", nodes[1].frames, frames, err)
	}
	if queued := nodes[0].Stats().QueuedBytes; queued != 0 {
		t.Errorf("%d bytes are queued after Close", queued)
	}
	return true
}

// TestLostPeer: what is held for a peer goes with it, and nothing more is taken.
func TestLostPeer(t *testing.T) {
	t.Parallel()
	nodes := connected(t, 3, Link{Latency: MaxLatency})
	for range 2 * shiftAfter {
		nodes[0].send(t, 1, 64, false)
	}
	nodes[0].send(t, 1, 64, true)
	nodes[0].send(t, 2, 64, true)
	reason := errors.New("it sends nonsense")
	nodes[0].Disconnect(1, reason)
	if queued := nodes[0].Stats().QueuedBytes; queued != 64+testPage {
		t.Errorf("%d bytes are queued, want the frame for node 2 alone", queued)
	}
	page := nodes[0].Lease(1)
	if err := nodes[0].Send(1, []byte("x"), page); !errors.Is(err, transport.ErrPeerDown) || !errors.Is(err, reason) {
		t.Errorf("Send to a peer that is lost: %v", err)
	}
	nodes[0].Disconnect(1, errors.New("again"))
	nodes[2].Close()
	until(t, nodes[:1], "both losses", func() bool { return nodes[0].peers[1].lost != nil && nodes[0].peers[2].lost != nil })
	if s := nodes[0].Stats(); s.QueuedBytes != 0 || s.FramesSent != 2*shiftAfter+2 || s.PayloadsSent != 2 {
		t.Errorf("when both peers are lost, the counters are %+v", s)
	}
	if nodes[0].Arm(); len(nodes[0].held) != 0 || nodes[0].rings != 0 {
		t.Error("something is waited for")
	}
}

// TestBacklog: a peer for which too much is held gets no more.
func TestBacklog(t *testing.T) {
	const most = transport.MaxControlBytes + testPage
	network := sim.NewNetwork(2, testPage, sim.Options{})
	tr := over(t, network.Node(0), Link{Latency: MaxLatency}, most)
	if err := tr.Send(1, make([]byte, transport.MaxControlBytes), tr.Lease(1)); err != nil {
		t.Fatal(err)
	}
	if err := tr.Send(1, []byte("x"), tr.Lease(1)); !errors.Is(err, transport.ErrBacklog) {
		t.Errorf("Send of more than is allowed: %v", err)
	}
}

// TestBadConfig: what cannot be emulated is refused, and the base is closed.
func TestBadConfig(t *testing.T) {
	for want, c := range map[string]Config{
		"a latency of -1ns":   {Link: Link{Latency: -1}, MaxQueuedBytes: 1 << 20},
		"a latency of 1.5s":   {Link: Link{Latency: 1500 * time.Millisecond}, MaxQueuedBytes: 1 << 20},
		"a bandwidth of 1000": {Link: Link{Bandwidth: 1000}, MaxQueuedBytes: 1 << 20},
		"must hold":           {Link: far, MaxQueuedBytes: 1000},
	} {
		c.Base = sim.NewNetwork(2, testPage, sim.Options{}).Node(0)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
		if err := c.Base.Send(1, []byte("x"), nil); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("%s: the base is left open: %v", want, err)
		}
	}
}

// BenchmarkRoundTrip times a request and its answer, which brings a page, with both nodes on one
// thread. What matters is the difference to None.
func BenchmarkRoundTrip(b *testing.B) {
	for _, link := range []Link{{}, {Latency: 10 * time.Microsecond}, {Latency: 100 * time.Microsecond}, {Latency: time.Millisecond},
		{Latency: 10 * time.Microsecond, Bandwidth: 10e9}} {
		b.Run(fmt.Sprintf("%v/%vMbit", link.Latency, link.Bandwidth/1e6), func(b *testing.B) {
			nodes := connected(b, 2, link)
			for b.Loop() {
				roundTrip(b, nodes)
			}
		})
	}
}

// BenchmarkBandwidth sends pages one way, from one thread to another; B/s is that of the pages.
func BenchmarkBandwidth(b *testing.B) {
	for _, bandwidth := range []uint64{0, 100e6, 1e9, 5e9, 10e9} {
		b.Run(fmt.Sprintf("%vMbit", bandwidth/1e6), func(b *testing.B) {
			nodes := connected(b, 2, Link{Bandwidth: bandwidth})
			var arrived atomic.Int64
			var receiving sync.WaitGroup
			over := make(chan struct{})
			receiving.Go(func() {
				for {
					select {
					case <-over:
						return
					default:
						if _, err := nodes[1].Poll(nodes[1], 64); err != nil {
							b.Error(err)
						}
						arrived.Store(int64(nodes[1].frames))
					}
				}
			})
			b.SetBytes(testPage)
			sent := int64(0)
			for b.Loop() {
				nodes[0].send(b, 1, 16, true)
				for sent++; sent-arrived.Load() >= 64; {
					nodes[0].poll(b)
				}
			}
			for sent > arrived.Load() {
				nodes[0].poll(b)
			}
			close(over)
			receiving.Wait()
		})
	}
}
