package tcp

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"dsmd/transport"
)

// recorder is a handler that writes down what it is told.
type recorder struct {
	from  []transport.NodeID
	bytes int
	up    map[transport.NodeID]int
	down  map[transport.NodeID]error
}

func newRecorder() *recorder {
	return &recorder{up: map[transport.NodeID]int{}, down: map[transport.NodeID]error{}}
}

func (r *recorder) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	r.from = append(r.from, from)
	r.bytes += len(control)
	if payload != nil {
		r.bytes += len(payload.Bytes())
	}
}
func (r *recorder) PeerUp(peer transport.NodeID)              { r.up[peer]++ }
func (r *recorder) PeerDown(peer transport.NodeID, err error) { r.down[peer] = err }

// withRawPeers makes node 0 of a cluster whose other nodes are bare connections, past the handshake, so that tests
// can put any bytes on the wire.
func withRawPeers(t testing.TB, peers int) (*Transport, []net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Config{Self: 0, Listener: l, Peers: make([]string, peers+1), PageBytes: testPageBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	var conns []net.Conn
	for i := range peers {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := detach(accepted)
		if err != nil {
			t.Fatal(err)
		}
		tr.arrivals.add(transport.NodeID(i+1), fd, tr.wait.event)
		conns = append(conns, conn)
	}
	return tr, conns
}

// pollUntil polls, asleep on WaitFD in between, until done.
func pollUntil(t testing.TB, tr *Transport, h transport.Handler, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !done(); {
		if _, err := tr.Poll(h, 64); err != nil {
			t.Fatal(err)
		}
		if done() || tr.Arm() {
			continue
		}
		left := time.Until(deadline)
		if left <= 0 {
			t.Fatal("what was waited for did not come")
		}
		fds := []unix.PollFd{{Fd: int32(tr.WaitFD()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

func frameBytes(control string) []byte {
	return append(appendFrameHeader(nil, len(control), 0), control...)
}

// TestBrokenPeer: whatever a peer puts on the wire, it alone is lost, what it sent before is delivered, and the reason says
// what was wrong.
func TestBrokenPeer(t *testing.T) {
	for name, test := range map[string]struct {
		input  []byte
		reset  bool
		is     error
		reason string
	}{
		"NoControl":    {input: appendFrameHeader(nil, 0, 0), is: ErrMalformed, reason: "control part of 0 bytes"},
		"HugeControl":  {input: appendFrameHeader(nil, 1<<31, 0), is: ErrMalformed, reason: "2147483648 bytes"},
		"OddPayload":   {input: appendFrameHeader(nil, 1, testPageBytes+1), is: ErrMalformed, reason: "payload of 65 bytes"},
		"End":          {input: nil, is: errEnded, reason: "node 1: it has closed"},
		"EndInHeader":  {input: []byte{1, 0, 0}, is: errEnded, reason: "3 bytes into a frame"},
		"EndInPayload": {input: append(appendFrameHeader(nil, 1, testPageBytes), 1, 2), is: errEnded, reason: "10 bytes into a frame"},
		"Reset":        {reset: true, is: unix.ECONNRESET, reason: "reset by peer"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, conns := withRawPeers(t, 2)
			h := newRecorder()
			if _, err := conns[0].Write(append(frameBytes("before"), test.input...)); err != nil {
				t.Fatal(err)
			}
			pollUntil(t, tr, h, func() bool { return len(h.from) == 1 })
			if test.reset {
				if err := conns[0].(*net.TCPConn).SetLinger(0); err != nil {
					t.Fatal(err)
				}
			}
			if test.is != ErrMalformed {
				conns[0].Close()
			}
			pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
			if !errors.Is(h.down[1], test.is) || !strings.Contains(h.down[1].Error(), test.reason) {
				t.Errorf("PeerDown says %v, want %q", h.down[1], test.reason)
			}
			if _, err := conns[1].Write(frameBytes("after")); err != nil {
				t.Fatal(err)
			}
			pollUntil(t, tr, h, func() bool { return len(h.from) == 2 })
			if h.down[2] != nil {
				t.Errorf("the other peer is down as well: %v", h.down[2])
			}
		})
	}
}

// TestSendFailureKeepsInput: a peer that has sent its last frames and gone is lost only after they were delivered, although
// sending to it fails before.
func TestSendFailureKeepsInput(t *testing.T) {
	tr, conns := withRawPeers(t, 1)
	h := newRecorder()
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	if _, err := conns[0].Write(append(frameBytes("last"), frameBytes("words")...)); err != nil {
		t.Fatal(err)
	}
	conns[0].Close()
	var err error
	for deadline := time.Now().Add(testTimeout); err == nil && time.Now().Before(deadline); {
		err = tr.Send(1, []byte("are you there"), tr.Lease(1))
		tr.Flush()
	}
	if !errors.Is(err, transport.ErrPeerDown) {
		t.Fatalf("Send to a peer that is gone: %v, want ErrPeerDown", err)
	}
	if queued := tr.Stats().QueuedBytes; queued != 0 {
		t.Errorf("%d bytes are queued for a peer that is gone", queued)
	}
	pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
	if len(h.from) != 2 {
		t.Errorf("%d frames of a peer's last 2 were delivered", len(h.from))
	}
}

// TestFloodIsFair: a peer that always has more to deliver does not hold back the others, in either way to poll.
func TestFloodIsFair(t *testing.T) {
	for _, peers := range []int{2, directPeers + 2} {
		t.Run(fmt.Sprintf("%dPeers", peers), func(t *testing.T) {
			tr, conns := withRawPeers(t, peers)
			h := newRecorder()
			pollUntil(t, tr, h, func() bool { return len(h.up) == peers })
			const frames = 5000
			var flood []byte
			for range frames {
				flood = append(flood, frameBytes("flood")...)
			}
			if _, err := conns[0].Write(flood); err != nil {
				t.Fatal(err)
			}
			pollOne := func() {
				if _, err := tr.Poll(h, 1); err != nil {
					t.Fatal(err)
				}
			}
			for len(h.from) == 0 {
				pollOne()
			}
			if _, err := conns[1].Write(frameBytes("rare")); err != nil {
				t.Fatal(err)
			}
			// Written, it is on its way to the other socket; until poll(2) has seen it there it need not be delivered.
			fds := []unix.PollFd{{Fd: int32(tr.peers[2].fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(fds, int(testTimeout.Milliseconds())); err != nil {
				t.Fatal(err)
			}
			const patient = 200 // polls, a small part of the flood
			before := len(h.from)
			for h.from[len(h.from)-1] != 2 {
				if len(h.from)-before > patient {
					t.Fatalf("after %d frames of the flood the second peer had no turn", len(h.from)-before)
				}
				pollOne()
			}
			if len(h.from) > frames/2 {
				t.Errorf("the flood was nearly over after %d frames; the test shows nothing", len(h.from))
			}
		})
	}
}

// TestNoAllocations: in steady state neither sending nor receiving allocates, with pages and without.
func TestNoAllocations(t *testing.T) {
	nodes := pair(t, [2]Config{{PageBytes: 4096}, {PageBytes: 4096}})
	result := make(chan error, 1)
	go func() { result <- nodes[0].Connect(t.Context()) }()
	if err := errors.Join(nodes[1].Connect(t.Context()), <-result); err != nil {
		t.Fatal(err)
	}
	var counts [2]countingHandler
	control := make([]byte, 48)
	exchange := func() {
		for i, tr := range nodes {
			peer := transport.NodeID(1 - i)
			for range 10 {
				if err := errors.Join(tr.Send(peer, control, nil), tr.Send(peer, control, tr.Lease(peer))); err != nil {
					t.Fatal(err)
				}
			}
			tr.Flush()
		}
		for want := counts[0].frames + 20; counts[0].frames < want || counts[1].frames < want; {
			for i, tr := range nodes {
				if _, err := tr.Poll(&counts[i], 64); err != nil {
					t.Fatal(err)
				}
				tr.Arm()
			}
		}
	}
	for range 10 {
		exchange()
	}
	// errors.Join of nil errors does not allocate. The race detector and the runtime may allocate now and then.
	if allocs := testing.AllocsPerRun(200, exchange); allocs >= 1 {
		t.Errorf("%.1f allocations for an exchange of 40 frames, want none", allocs)
	}
}

type countingHandler struct{ frames int }

func (h *countingHandler) Frame(transport.NodeID, []byte, transport.Payload) { h.frames++ }
func (h *countingHandler) PeerUp(transport.NodeID)                           {}
func (h *countingHandler) PeerDown(transport.NodeID, error)                  {}
