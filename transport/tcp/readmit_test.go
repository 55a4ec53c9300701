package tcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// start makes a node and connects it in the background. The outcome is in the channel. The end of
// the test closes it.
func start(t *testing.T, c Config) (*Transport, <-chan error) {
	t.Helper()
	tr, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	var connecting sync.WaitGroup
	connecting.Go(func() { outcome <- tr.Connect(t.Context()) })
	t.Cleanup(func() {
		tr.Kill() // Nobody is polled who could take leave.
		connecting.Wait()
	})
	return tr, outcome
}

// TestJoiningConnects: a node that joins has connected when one peer is. The others follow when
// they can.
func TestJoiningConnects(t *testing.T) {
	listeners := []net.Listener{transporttest.Listen(t), transporttest.Listen(t), transporttest.Listen(t)}
	var addresses []string
	for _, l := range listeners {
		addresses = append(addresses, l.Addr().String())
	}
	listeners[0].Close() // It comes last.
	config := func(id transport.NodeID) Config {
		return Config{Self: id, Listener: listeners[id], Peers: addresses, PageBytes: testPageBytes, Joining: true}
	}
	node1, connected1 := start(t, config(1))
	node2, connected2 := start(t, config(2))
	for _, connected := range []<-chan error{connected1, connected2} {
		if err := <-connected; err != nil {
			t.Fatal(err)
		}
	}
	h1, h2 := newRecorder(), newRecorder()
	pollUntil(t, node1, h1, func() bool { return h1.up[2] == 1 })
	pollUntil(t, node2, h2, func() bool { return h2.up[1] == 1 })
	l, err := net.Listen("tcp", addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	listeners[0] = l
	_, connected0 := start(t, config(0))
	if err := <-connected0; err != nil {
		t.Fatal(err)
	}
	pollUntil(t, node1, h1, func() bool { return h1.up[0] == 1 })
	pollUntil(t, node2, h2, func() bool { return h2.up[0] == 1 })
}

// TestJoiningIsPatient: a node that joins before the others have lost its former incarnation is
// refused, calls again, and is let in when they have. Connect says what it was told if that takes
// too long.
func TestJoiningIsPatient(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h := newRecorder()
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	config := Config{Self: 1, Peers: []string{tr.connect.listener.Addr().String(), ""}, PageBytes: testPageBytes, Joining: true, Secret: secret(1)}

	hasty, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- hasty.Connect(ctx) }()
	awaitReason(t, hasty, 0, "one that is started anew is let in when")
	cancel()
	err = <-result
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrRefused) || !errors.Is(err, errLater) ||
		!strings.Contains(err.Error(), "one that is started anew is let in when") {
		t.Errorf("Connect of a node that was not let in: %v", err)
	}
	hasty.Kill()

	patient, connected := start(t, config)
	awaitReason(t, patient, 0, "one that is started anew is let in when")
	if h.down[1] != nil {
		t.Fatalf("a caller has ended a connection: %v", h.down[1])
	}
	peers[0].conn.Close()
	pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
	tr.Readmit(1)
	pollUntil(t, tr, h, func() bool { return h.up[1] == 2 })
	if err := <-connected; err != nil {
		t.Error(err)
	}
}

// awaitReason waits until the last attempt to connect to a peer has failed with a text.
func awaitReason(t *testing.T, tr *Transport, peer transport.NodeID, text string) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		tr.connect.mu.Lock()
		reason := tr.connect.sessions[peer].reason
		tr.connect.mu.Unlock()
		if strings.Contains(reason.Error(), text) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last attempt has failed with %v, want %q", reason, text)
		}
	}
}

// awaitAnotherReason waits until one more attempt to connect to a peer has failed.
func awaitAnotherReason(t *testing.T, tr *Transport, peer transport.NodeID) {
	t.Helper()
	reason := func() error {
		tr.connect.mu.Lock()
		defer tr.connect.mu.Unlock()
		return tr.connect.sessions[peer].reason
	}
	first := reason()
	for deadline := time.Now().Add(testTimeout); reason() == first; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the last attempt has failed with %v, and none was made since", first)
		}
	}
}

// TestReadmitIsQuiet: a peer that was readmitted is called again and again, and a line is logged
// only when it answers something else.
func TestReadmitIsQuiet(t *testing.T) {
	t.Parallel()
	place := transporttest.Listen(t)
	var logged struct {
		sync.Mutex
		lines []string
	}
	lines := func(text string) (n int) {
		logged.Lock()
		defer logged.Unlock()
		for _, line := range logged.lines {
			if strings.Contains(line, text) {
				n++
			}
		}
		return n
	}
	tr, _ := start(t, Config{Self: 1, Peers: []string{place.Addr().String(), ""}, PageBytes: testPageBytes, Joining: true, Log: func(line string) {
		logged.Lock()
		defer logged.Unlock()
		logged.lines = append(logged.lines, line)
	}})
	h := newRecorder()
	tr.Disconnect(0, errors.New("enough"))
	pollUntil(t, tr, h, func() bool { return h.down[0] != nil })
	tr.Readmit(0)
	const calls = 5
	for range calls { // The first was perhaps made before the peer was lost.
		conn, err := place.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := readOpening(conn); err != nil { // What is unread makes of an end a reset.
			t.Fatal(err)
		}
		conn.Close()
	}
	const line = "node 0 is called until it is connected"
	if n := lines(line); n < 1 || n > 2 { // One for each of the two who have called.
		t.Errorf("%d calls were logged in %d lines:\n%s", calls, n, strings.Join(logged.lines, "\n"))
	}
	place.Close()
	const refused = "connection refused"
	awaitReason(t, tr, 0, refused)
	for deadline := time.Now().Add(testTimeout); lines(refused) == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	awaitAnotherReason(t, tr, 0)
	// Each of the two who have called may have been in the backlog, where its call was reset; and
	// the one from before the loss may have been in the midst of its last call all the time.
	if n, said := lines(line), lines(refused); n > 6 || said < 1 || said > 2 {
		t.Errorf("nobody listens any more, and %d lines of %d say so:\n%s", said, n, strings.Join(logged.lines, "\n"))
	}
}

// TestFormerIncarnations: each of the incarnations that were lost is told why, as far as they are
// remembered.
func TestFormerIncarnations(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	var all []greeting
	for i := range maxFormer + 3 {
		pollUntil(t, tr, h, func() bool { return h.up[1] == i+1 })
		all = append(all, p.mine)
		tr.Disconnect(1, fmt.Errorf("reason %d.", i))
		pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
		delete(h.down, 1)
		tr.Readmit(1)
		p.mine.incarnation, p.mine.expected, p.mine.call, p.mine.standing = newIncarnation(), 0, 0, joining
		p.callAgain()
	}
	if n := len(tr.connect.sessions[1].former); n != maxFormer {
		t.Errorf("%d incarnations are remembered, want %d", n, maxFormer)
	}
	pollUntil(t, tr, h, func() bool { return h.up[1] == maxFormer+4 })
	present, conn := p.mine, p.conn
	for i, mine := range all[len(all)-maxFormer:] {
		p.mine = mine
		if _, why := p.call(); !strings.Contains(why, fmt.Sprintf("reason %d.", i+3)) {
			t.Errorf("the incarnation that was lost for reason %d is told %q", i+3, why)
		}
	}
	p.mine, p.conn = present, conn
	p.write(frameBytes("the present one is still there"))
	pollUntil(t, tr, h, func() bool { return len(h.from) == 1 })
}

// TestReadmitOvertakesHandshake: a handshake that was under way when the peer was lost connects
// nobody, although the peer is readmitted.
func TestReadmitOvertakesHandshake(t *testing.T) {
	tr, peers := withRawPeers(t, 1)
	h, p := newRecorder(), peers[0]
	lose := func() {
		tr.Disconnect(1, errors.New("enough"))
		pollUntil(t, tr, h, func() bool { return h.down[1] != nil })
		delete(h.down, 1)
	}
	pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
	lose()
	tr.Readmit(1)
	// of an incarnation that was never connected, and of one that was
	for _, again := range []bool{false, true} {
		if again {
			p.callAgain()
			pollUntil(t, tr, h, func() bool { return h.up[1] == 2 })
		} else {
			p.mine.incarnation, p.mine.expected, p.mine.call, p.mine.standing = newIncarnation(), 0, 0, joining
		}
		if _, why := p.call(); why != "" {
			t.Fatalf("it is not welcome: %s", why)
		}
		lose()
		tr.Readmit(1)
		p.accept()
		if n, err := p.conn.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes came by a connection that was overtaken", n)
		} else if !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("a connection that was overtaken: %v", err)
		}
	}
	if h.up[1] != 2 {
		t.Errorf("the peer was reported up %d times, want 2", h.up[1])
	}
	p.mine.incarnation, p.mine.expected, p.mine.call, p.mine.standing = newIncarnation(), 0, 0, joining
	p.callAgain()
	pollUntil(t, tr, h, func() bool { return h.up[1] == 3 })
}

// TestNoClusterToJoin: a node that joins is told so when all others found a cluster, whoever of
// them calls whom, and not before. They wait for it.
func TestNoClusterToJoin(t *testing.T) {
	listeners := []net.Listener{transporttest.Listen(t), transporttest.Listen(t), transporttest.Listen(t)}
	var addresses []string
	for _, l := range listeners {
		addresses = append(addresses, l.Addr().String())
	}
	config := func(id transport.NodeID) Config {
		return Config{Self: id, Listener: listeners[id], Peers: addresses, PageBytes: testPageBytes}
	}
	joiner := config(1)
	joiner.Joining = true
	joins, outcome := start(t, joiner)
	founders := []<-chan error{}
	_, connected := start(t, config(0))
	founders = append(founders, connected)
	awaitReason(t, joins, 0, "was started to found a cluster")
	select {
	case err := <-outcome:
		t.Fatalf("node 2 was not there, and Connect ends with %v", err)
	default:
	}
	_, connected = start(t, config(2))
	founders = append(founders, connected)
	if err := <-outcome; !errors.Is(err, transport.ErrNoCluster) || !errors.Is(err, ErrRefused) {
		t.Errorf("Connect of a node that joins, where no cluster runs: %v", err)
	}
	joins.Kill()
	l, err := net.Listen("tcp", addresses[1])
	if err != nil {
		t.Fatal(err)
	}
	listeners[1] = l
	_, connected = start(t, config(1))
	for _, connected := range append(founders, connected) {
		if err := <-connected; err != nil {
			t.Error(err)
		}
	}
}
