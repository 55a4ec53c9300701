package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
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

// secret is one of several.
func secret(which byte) []byte { return bytes.Repeat([]byte{which}, SecretBytes) }

// rawPeer is a peer of a node under test that the test plays itself, byte by byte.
type rawPeer struct {
	t    testing.TB
	tr   *Transport
	mine greeting // what it says in its next call
	conn net.Conn // its last connection
	said *proven  // the handshake of that
}

// withRawPeers makes node 0 of a cluster whose other nodes are raw peers, connected.
func withRawPeers(t testing.TB, peers int) (*Transport, []*rawPeer) {
	t.Helper()
	return withPatience(t, peers, DefaultGiveUp, nil)
}

// withPatience is withRawPeers for a node that gives peers up after some time, and logs.
func withPatience(t testing.TB, peers int, giveUp time.Duration, log func(string)) (*Transport, []*rawPeer) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Config{Self: 0, Listener: l, Peers: make([]string, peers+1), PageBytes: testPageBytes, GiveUp: giveUp, Secret: secret(1), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range peers { // which do not answer a goodbye
			tr.Disconnect(transport.NodeID(i+1), errors.New("the test is over"))
		}
		tr.Close()
	})
	connected := make(chan error, 1)
	go func() { connected <- tr.Connect(t.Context()) }()
	var raw []*rawPeer
	for i := range peers {
		p := &rawPeer{t: t, tr: tr, mine: tr.connect.mine}
		p.mine.node, p.mine.incarnation, p.mine.listens = transport.NodeID(i+1), newIncarnation(), false
		p.callAgain()
		raw = append(raw, p)
	}
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	return tr, raw
}

// call makes a connection, and returns the node's greeting and why it does not want this peer, or
// "". The caller's own verdict is not sent.
func (p *rawPeer) call() (theirs greeting, why string) {
	p.t.Helper()
	conn, err := net.Dial("tcp", p.tr.connect.listener.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		p.t.Fatal(err)
	}
	p.conn, p.said = conn, newProven(conn, p.tr.connect.secret, calling)
	p.mine.call++
	if err := p.tr.connect.meet(p.said); err != nil {
		p.t.Fatal(err)
	}
	if err := p.said.prove(appendGreeting(nil, p.mine)); err != nil {
		p.t.Fatal(err)
	}
	if theirs, err = readGreeting(p.said); err != nil {
		p.t.Fatal(err)
	}
	v, err := readVerdict(p.said)
	if err := errors.Join(err, p.said.check()); err != nil {
		p.t.Fatal(err)
	}
	return theirs, v.why
}

// accept sends the caller's own verdict.
func (p *rawPeer) accept() {
	p.t.Helper()
	if err := p.said.prove(appendVerdict(nil, verdict{})); err != nil {
		p.t.Fatal(err)
	}
}

// callAgain makes a connection, which the node must want, and returns the node's greeting.
func (p *rawPeer) callAgain() greeting {
	p.t.Helper()
	theirs, why := p.call()
	if why != "" {
		p.t.Fatalf("the node does not want its peer: %s", why)
	}
	p.mine.expected = theirs.incarnation
	p.accept()
	return theirs
}

func (p *rawPeer) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// read takes n bytes of the node's stream.
func (p *rawPeer) read(tr *Transport, h transport.Handler, n uint64) {
	p.t.Helper()
	var taken atomic.Bool
	go func(conn net.Conn) {
		if _, err := io.CopyN(io.Discard, conn, int64(n)); err != nil {
			p.t.Error(err)
		}
		taken.Store(true)
	}(p.conn)
	pollUntil(p.t, tr, h, func() bool {
		time.Sleep(time.Millisecond) // Nobody signals that it was read.
		return taken.Load()
	})
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
	return append(appendFrameHeader(nil, frameControl, len(control), 0), control...)
}

// TestBrokenPeer: whatever a peer puts on the wire, it alone is lost, what it sent before is
// delivered, the reason says what was wrong, and the peer is told when it comes again.
func TestBrokenPeer(t *testing.T) {
	for name, test := range map[string]struct {
		input  []byte
		is     error
		reason string
	}{
		"UnknownKind": {input: appendFrameHeader(nil, frameKinds, 1, 0), is: ErrMalformed, reason: "its kind is 4"},
		"NoControl":   {input: appendFrameHeader(nil, frameControl, 0, 0), is: ErrMalformed, reason: "control part of 0 bytes"},
		"HugeControl": {input: appendFrameHeader(nil, frameControl, 1<<31, 0), is: ErrMalformed, reason: "2147483648 bytes"},
		"LongAck":     {input: appendFrameHeader(nil, frameAck, 5, 0), is: ErrMalformed, reason: "control part of 5 bytes, allowed are 0 to 0"},
		"ConfirmsTooMuch": {input: append(appendFrameHeader(nil, frameControl, 1, 1), 'x'), is: ErrMalformed,
			reason: "it confirms 1 bytes, and 0 were sent"},
		"Goodbye": {input: appendFrameHeader(nil, frameGoodbye, 0, 0), is: errGoodbye, reason: "node 1: it has ended: it was told to"},
		"GoodbyeForAReason": {input: append(appendFrameHeader(nil, frameGoodbye, 7, 0), "b\x1b[1m\xc3\n"...), is: errGoodbye,
			reason: "node 1: it has ended: b?[1m??"},
		"LongGoodbye": {input: appendFrameHeader(nil, frameGoodbye, maxGoodbyeBytes+1, 0), is: ErrMalformed,
			reason: "control part of 513 bytes, allowed are 0 to 512"},
	} {
		t.Run(name, func(t *testing.T) {
			tr, peers := withRawPeers(t, 2)
			h := newRecorder()
			peers[0].write(append(frameBytes("before"), test.input...))
			pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
			if len(h.from) != 1 {
				t.Errorf("%d frames were delivered, and one was sent", len(h.from))
			}
			if !errors.Is(h.down[1], test.is) || !strings.Contains(h.down[1].Error(), test.reason) {
				t.Errorf("PeerDown says %v, want %q", h.down[1], test.reason)
			}
			if _, why := peers[0].call(); !strings.Contains(why, "node 0 has parted with it: tcp: node 1: ") {
				t.Errorf("when it calls again it is told %q", why)
			}
			peers[1].write(frameBytes("after"))
			pollUntil(t, tr, h, func() bool { return len(h.from) == 2 })
			if h.down[2] != nil {
				t.Errorf("the other peer is down as well: %v", h.down[2])
			}
		})
	}
}

// TestCutAtEveryByte: a connection ends after each possible byte of some frames, in order or by a
// reset. The peer is told how much has come, sends the rest, and the frames arrive whole.
func TestCutAtEveryByte(t *testing.T) {
	t.Parallel()
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	frames := append(frameBytes("one"), appendFrameHeader(nil, framePage, 2, 0)...)
	frames = append(append(frames, "ab"...), make([]byte, testPageBytes)...)
	frames = append(frames, frameBytes("three")...)
	var sent uint64 // in all
	for cut := range len(frames) {
		before := len(h.from)
		p.write(frames[:cut])
		if cut%2 == 1 {
			if err := p.conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}
		p.conn.Close()
		pollUntil(t, tr, h, func() bool { return tr.peers[1].state == peerSevered })
		received := p.callAgain().received
		// A reset may overtake what was sent before it.
		if received < sent || received > sent+uint64(cut) || cut%2 == 0 && received != sent+uint64(cut) {
			t.Fatalf("cut at byte %d of the frames: it has %d bytes of the stream, and %d and those were sent", cut, received, sent)
		}
		p.write(frames[received-sent:])
		sent += uint64(len(frames))
		pollUntil(t, tr, h, func() bool { return len(h.from) == before+3 })
	}
	if h.up[1] != 1 || h.down[1] != nil {
		t.Errorf("the peer was reported up %d times, down: %v", h.up[1], h.down[1])
	}
}

// TestSentOnceMore: what a peer has not confirmed comes again, from the byte on that it asks for,
// and nothing else does.
func TestSentOnceMore(t *testing.T) {
	t.Parallel()
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	var want []byte
	for i := range 3 {
		page := tr.Lease(1)
		for j := range page.Bytes() {
			page.Bytes()[j] = byte(i + j)
		}
		want = append(want, appendFrameHeader(nil, framePage, 1, 0)...)
		want = append(append(want, 'x'), page.Bytes()...)
		if err := tr.Send(1, []byte("x"), page); err != nil {
			t.Fatal(err)
		}
	}
	tr.Flush()
	for received := range len(want) {
		p.mine.received = uint64(received)
		p.callAgain()
		again := make([]byte, len(want)-received)
		pollUntil(t, tr, h, func() bool { return tr.peers[1].call == p.mine.call })
		if _, err := io.ReadFull(p.conn, again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, want[received:]) {
			t.Fatalf("from byte %d on something else came", received)
		}
	}
	if spare := tr.pool.Spares(); spare != 2 {
		t.Errorf("%d pages of 3 are back, and all but the last byte was confirmed", spare)
	}
	p.mine.received = uint64(len(want)) + 1
	p.callAgain()
	pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
	if !errors.Is(h.down[1], ErrMalformed) {
		t.Errorf("a peer that asks for bytes that were never sent is down with %v", h.down[1])
	}
}

// TestKnowsWhatItEverSent: a handshake quotes what has come, and then more comes by the connection
// before. When the connection that was made has taken less than that, the peer may have more than
// it was sent by this one: it says so in a confirmation, or in the next handshake. Neither is a
// lie, and the stream goes on where it should.
func TestKnowsWhatItEverSent(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"ByConfirmation", "ByCall"} {
		t.Run(how, func(t *testing.T) {
			tr, peers := withRawPeers(t, 1)
			h, p, queue := newRecorder(), peers[0], &tr.peers[1].queue
			pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
			control := bytes.Repeat([]byte("x"), transport.MaxControlBytes)
			const most = 16 << 20 // more than sockets hold
			for queue.end < most {
				if err := tr.Send(1, control, nil); err != nil {
					t.Fatal(err)
				}
			}
			all := queue.end
			tr.Flush()
			p.read(tr, h, all)

			p.callAgain() // It says that nothing has come, and reads nothing.
			pollUntil(t, tr, h, func() bool { return tr.peers[1].call == p.mine.call })
			if queue.sent == all {
				t.Fatalf("the sockets took all of %d bytes", all)
			}
			if how == "ByConfirmation" {
				p.write(append(appendFrameHeader(nil, frameControl, 1, all), 'x'))
				pollUntil(t, tr, h, func() bool { return len(h.from) == 1 || h.down[1] != nil })
				p.read(tr, h, all)
			} else {
				p.mine.received = all
				p.callAgain()
				pollUntil(t, tr, h, func() bool { return tr.peers[1].call == p.mine.call || h.down[1] != nil })
			}
			if h.down[1] != nil || queue.unconfirmed() != 0 {
				t.Fatalf("%d bytes are not confirmed, down: %v", queue.unconfirmed(), h.down[1])
			}
			if err := tr.Send(1, []byte("next"), nil); err != nil {
				t.Fatal(err)
			}
			tr.Flush()
			next := make([]byte, len(frameBytes("next")))
			if _, err := io.ReadFull(p.conn, next); err != nil || !bytes.HasSuffix(next, []byte("next")) {
				t.Errorf("behind what it had came %q, %v", next, err)
			}
		})
	}
}

// TestSkipsWhatHasCome: a peer that was told in its handshake how much has come, before the last
// bytes of the old connection were received, sends those again. They are delivered once.
func TestSkipsWhatHasCome(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	old := p.conn
	theirs, _ := p.call()
	frames := append(frameBytes("first"), frameBytes("second")...)
	if _, err := old.Write(frames[:len(frames)-3]); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, tr, h, func() bool { return tr.peers[1].received.Load() == uint64(len(frames)-3) })
	if theirs.received != 0 {
		t.Fatalf("the handshake says that %d bytes have come, before any was sent", theirs.received)
	}
	p.accept()
	p.write(frames)
	pollUntil(t, tr, h, func() bool { return len(h.from) == 2 })
	p.write(frameBytes("third"))
	pollUntil(t, tr, h, func() bool { return len(h.from) == 3 })
	if want := len("first" + "second" + "third"); h.bytes != want {
		t.Errorf("%d bytes of control parts were delivered, want %d", h.bytes, want)
	}
}

// TestConfirmsWithoutTraffic: a peer that sends much and gets nothing is told what has come, often
// enough but not for every frame.
func TestConfirmsWithoutTraffic(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	const frames = 200
	frame := frameBytes(strings.Repeat("x", 4000))
	for i := range frames {
		p.write(frame)
		pollUntil(t, tr, h, func() bool { return len(h.from) == i+1 })
	}
	stats := tr.Stats()
	if most := uint64(frames*len(frame)/confirmEvery + 1); stats.SendCalls > most {
		t.Errorf("%d calls to confirm %d bytes, want at most %d", stats.SendCalls, frames*len(frame), most)
	}
	acks := make([]byte, stats.BytesSent)
	if _, err := io.ReadFull(p.conn, acks); err != nil {
		t.Fatal(err)
	}
	var last uint64
	for len(acks) > 0 {
		f, err := decodeFrame(acks, testPageBytes)
		if err != nil || f.kind != frameAck || f.confirmed <= last {
			t.Fatalf("%+v after a confirmation of %d bytes, %v", f, last, err)
		}
		last, acks = f.confirmed, acks[f.bytes:]
	}
	if left := frames*len(frame) - int(last); left >= confirmEvery {
		t.Errorf("%d bytes are not confirmed, want less than %d", left, confirmEvery)
	}
}

// TestGivesUp: a peer that does not come back is lost when the time is over, and until then frames
// for it are kept.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	tr, peers := withPatience(t, 1, MinGiveUp, nil)
	h, p := newRecorder(), peers[0]
	p.write(append(frameBytes("last"), frameBytes("words")...))
	p.conn.Close()
	pollUntil(t, tr, h, func() bool { return tr.peers[1].state == peerSevered })
	if err := tr.Send(1, []byte("are you there"), tr.Lease(1)); err != nil {
		t.Errorf("Send to a peer whose connection is being made again: %v", err)
	}
	pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
	if !strings.Contains(h.down[1].Error(), "could not be reached for 1s") {
		t.Errorf("PeerDown says %v", h.down[1])
	}
	if len(h.from) != 2 {
		t.Errorf("%d frames of a peer's last 2 were delivered", len(h.from))
	}
	if err := tr.Send(1, []byte("are you there"), nil); !errors.Is(err, transport.ErrPeerDown) {
		t.Errorf("Send to a peer that is gone: %v, want ErrPeerDown", err)
	}
	if queued := tr.Stats().QueuedBytes; queued != 0 {
		t.Errorf("%d bytes are queued for a peer that is gone", queued)
	}
}

// TestSilentMachine: a connection whose other end does not even answer as a machine is broken,
// although nothing ends it, and made again; what was sent comes by the next one. A peer that only
// does not read keeps its connection.
func TestSilentMachine(t *testing.T) {
	t.Parallel()
	tr, peers := withPatience(t, 2, 4*MinGiveUp, nil)
	h := newRecorder()
	pollUntil(t, tr, h, func() bool { return len(h.up) == 2 })
	raw, err := peers[0].conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var filterErr error
	if err := raw.Control(func(fd uintptr) {
		dropAll := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
		filterErr = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &dropAll})
	}); err != nil {
		t.Fatal(err)
	}
	if filterErr == unix.EPERM && os.Geteuid() != 0 {
		t.Skip("this kernel lets only root filter what a socket receives")
	}
	if filterErr != nil {
		t.Fatal(filterErr)
	}
	// More than the socket of the one that does not read can take.
	for !errors.Is(err, transport.ErrBacklog) {
		err = tr.Send(2, make([]byte, transport.MaxControlBytes), nil)
		tr.Flush()
	}
	if err := tr.Send(1, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	pollUntil(t, tr, h, func() bool { return tr.peers[1].state == peerSevered })
	peers[0].callAgain()
	pollUntil(t, tr, h, func() bool { return tr.peers[1].state == peerUp })
	got := make([]byte, frameHeaderBytes+1)
	if _, err := io.ReadFull(peers[0].conn, got); err != nil || got[frameHeaderBytes] != 'x' {
		t.Errorf("%x has come by the next connection: %v", got, err)
	}
	if state := tr.peers[2].state; state != peerUp || len(h.down) > 0 {
		t.Errorf("the peer that does not read is in state %d; down: %v", state, h.down)
	}
}

// TestOtherIncarnation: whoever calls as a peer without being it is refused. It is the end of the
// peer only if that has no connection.
func TestOtherIncarnation(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	other := *p
	other.mine.incarnation, other.mine.expected, other.mine.call = newIncarnation(), 0, 0
	if _, why := other.call(); !strings.Contains(why, "one that is started anew is let in when") {
		t.Errorf("another process in the name of a peer is told %q", why)
	}
	p.write(frameBytes("still here"))
	pollUntil(t, tr, h, func() bool { return len(h.from) == 1 })
	if h.down[1] != nil {
		t.Fatalf("a stranger has ended a connection: %v", h.down[1])
	}
	p.conn.Close()
	pollUntil(t, tr, h, func() bool { return tr.peers[1].state == peerSevered })
	other.call()
	pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
	if !errors.Is(h.down[1], ErrRefused) || !strings.Contains(h.down[1].Error(), "it was started anew") {
		t.Errorf("PeerDown says %v", h.down[1])
	}
}

// TestFloodIsFair: a peer that always has more to deliver does not hold back the others, in either
// way to poll.
func TestFloodIsFair(t *testing.T) {
	for _, peers := range []int{2, directPeers + 2} {
		t.Run(fmt.Sprintf("%dPeers", peers), func(t *testing.T) {
			tr, raw := withRawPeers(t, peers)
			h := newRecorder()
			pollUntil(t, tr, h, func() bool { return len(h.up) == peers })
			const frames = 5000
			var flood []byte
			for range frames {
				flood = append(flood, frameBytes("flood")...)
			}
			raw[0].write(flood)
			pollOne := func() {
				if _, err := tr.Poll(h, 1); err != nil {
					t.Fatal(err)
				}
			}
			for len(h.from) == 0 {
				pollOne()
			}
			raw[1].write(frameBytes("rare"))
			// Written, it is on its way to the other socket; until poll(2) has seen it there it
			// need not be delivered.
			fds := []unix.PollFd{{Fd: int32(tr.peers[2].fd), Events: unix.POLLIN}}
			var err error = unix.EINTR // which is no answer
			for err == unix.EINTR {
				_, err = unix.Poll(fds, int(testTimeout.Milliseconds()))
			}
			if err != nil {
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

// TestNoAllocations: in steady state neither sending nor receiving allocates, with pages and
// without.
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
	// errors.Join of nil errors does not allocate. The race detector and the runtime may allocate
	// now and then.
	if allocs := testing.AllocsPerRun(200, exchange); allocs >= 1 {
		t.Errorf("%.1f allocations for an exchange of 40 frames, want none", allocs)
	}
}

type countingHandler struct{ frames int }

func (h *countingHandler) Frame(transport.NodeID, []byte, transport.Payload) { h.frames++ }
func (h *countingHandler) PeerUp(transport.NodeID)                           {}
func (h *countingHandler) PeerDown(transport.NodeID, error)                  {}
