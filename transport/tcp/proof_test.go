package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// TestSecrets: nodes whose secrets differ part, and both say what is wrong and what to do.
func TestSecrets(t *testing.T) {
	for name, test := range map[string]struct {
		secret0, secret1 []byte
		says0, says1     string
	}{
		"Others":        {secret(1), secret(2), "its secret is not this node's", "its secret is not this node's"},
		"CallerHasNone": {secret(1), nil, "it was given no secret, and this node has one", "it has a secret, and this node was given none"},
		"CalledHasNone": {nil, secret(1), "it has a secret, and this node was given none", "it was given no secret, and this node has one"},
	} {
		for _, joining := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/Joining=%v", name, joining), func(t *testing.T) {
				logged := make(chan string, 1000)
				nodes := pair(t, [2]Config{
					{PageBytes: 64, Secret: test.secret0, Log: func(line string) { logged <- line }},
					{PageBytes: 64, Secret: test.secret1, Joining: joining},
				})
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				var called sync.WaitGroup
				called.Go(func() { nodes[0].Connect(ctx) })
				const remedy = "give all nodes of a cluster the same secret (--secret-file"
				if err := nodes[1].Connect(ctx); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.says1) || !strings.Contains(err.Error(), remedy) {
					t.Errorf("the calling node says %v, want %q", err, test.says1)
				}
				if line := <-logged; !strings.Contains(line, test.says0) || !strings.Contains(line, remedy) {
					t.Errorf("the called node logs %q, want %q", line, test.says0)
				}
				cancel()
				called.Wait()
			})
		}
	}
}

// TestSecretTooShort: a secret has one length.
func TestSecretTooShort(t *testing.T) {
	if _, err := New(Config{Self: 1, Peers: []string{"a:1", "b:1"}, PageBytes: 64, Secret: []byte("short")}); err == nil || !strings.Contains(err.Error(), "Secret has 5 bytes") {
		t.Errorf("New: %v", err)
	}
}

// TestImpostorKeepsNobodyOut: a node that comes back is let in although somebody else listens at
// the address of another, also if it is the only one that it calls.
func TestImpostorKeepsNobodyOut(t *testing.T) {
	for _, test := range []struct{ taken, back, member transport.NodeID }{{1, 2, 0}, {0, 1, 2}} {
		t.Run(fmt.Sprintf("%d comes back", test.back), func(t *testing.T) {
			listeners := []net.Listener{transporttest.Listen(t), transporttest.Listen(t), transporttest.Listen(t)}
			answered := impersonate(listeners[test.taken])
			var addresses []string
			for _, l := range listeners {
				addresses = append(addresses, l.Addr().String())
			}
			join := func(id transport.NodeID) <-chan error {
				_, connected := start(t, Config{Self: id, Listener: listeners[id], Peers: addresses, PageBytes: testPageBytes, Joining: true, Secret: secret(1)})
				return connected
			}
			back := join(test.back)
			for range 3 { // Only the impostor is there.
				select {
				case <-answered:
				case err := <-back:
					t.Fatalf("it has given up: %v", err)
				}
			}
			for _, connected := range []<-chan error{back, join(test.member)} {
				if err := <-connected; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// impersonate has somebody with another secret answer at an address, and tells of each caller.
func impersonate(taken net.Listener) (answered chan struct{}) {
	answered = make(chan struct{}, 1000)
	go func() {
		for {
			conn, err := taken.Accept()
			if err != nil {
				return
			}
			said := newProven(conn, secret(9), called)
			readOpening(said)
			said.prove(appendOpening(nil, opening{version: WireVersion, secret: true}))
			io.Copy(io.Discard, conn)
			conn.Close()
			answered <- struct{}{}
		}
	}()
	return answered
}

// lurking is a node with a peer that is connected, and what strangers have brought about.
type lurking struct {
	*testing.T
	tr     *Transport
	peer   *rawPeer
	h      *recorder
	logged chan string
}

func lurk(t *testing.T) *lurking {
	logged := make(chan string, 1000)
	tr, peers := withPatience(t, 2, time.Minute, func(line string) {
		select {
		case logged <- line:
		default: // nobody reads what a crowd brings about
		}
	})
	l := &lurking{t, tr, peers[0], newRecorder(), logged}
	pollUntil(t, tr, l.h, func() bool { return l.h.up[1] == 1 && l.h.up[2] == 1 })
	return l
}

// dial makes a connection that nothing was said on.
func (l *lurking) dial() net.Conn {
	l.Helper()
	conn, err := net.Dial("tcp", l.tr.connect.listener.Addr().String())
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		l.Fatal(err)
	}
	return conn
}

// turnsAway checks that a stranger was told nothing but what the node opens with, and that the
// peers, also the one that is out of reach, are what they were.
func (l *lurking) turnsAway(conn net.Conn, allowed int) {
	l.Helper()
	answer, err := io.ReadAll(conn)
	var op *net.OpError
	if err != nil && (!errors.As(err, &op) || op.Timeout()) {
		l.Errorf("the stranger is not sent away: %v", err)
	}
	if len(answer) > allowed {
		l.Errorf("a stranger was told %d bytes, want %d: %x", len(answer), allowed, answer)
	}
	line := <-l.logged
	for !strings.Contains(line, "caller at") {
		line = <-l.logged
	}
	if !strings.Contains(line, "secret") {
		l.Errorf("the node logs %q", line)
	}
	if news := l.tr.arrivals.take(false); len(news) > 0 {
		l.Errorf("a stranger has brought news: %+v", news)
	}
	l.peer.write(frameBytes("still here"))
	before := len(l.h.from)
	pollUntil(l, l.tr, l.h, func() bool { return len(l.h.from) == before+1 })
	if len(l.h.down) > 0 {
		l.Errorf("a stranger has ended a peer: %v", l.h.down)
	}
}

// openingBytes is the length of an opening on the wire.
const openingBytes = greetingPrefixBytes + openingRestBytes

// TestStrangerKnowsAllButTheSecret: who knows the protocol, the cluster and its nodes, and even
// their incarnations, and not the secret, is sent away before anything that he says is looked at.
// He calls in the name of a node that is connected, and of one whose connection is being made
// again; says that he is its successor, and asks.
func TestStrangerKnowsAllButTheSecret(t *testing.T) {
	for _, which := range []string{"None", "Another"} {
		for name, change := range map[string]func(g *greeting){
			"TheSame":   func(*greeting) {},
			"Successor": func(g *greeting) { g.incarnation, g.expected, g.call = newIncarnation(), 0, 1 },
			"Asks":      func(g *greeting) { g.purpose = purposeAsk },
		} {
			for _, severed := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/Severed=%v", which, name, severed), func(t *testing.T) {
					l := lurk(t)
					key := []byte(nil)
					if which == "Another" {
						key = secret(2)
					}
					mine := l.peer.mine
					mine.node = 2
					if severed {
						l.tr.Break(2)
						pollUntil(t, l.tr, l.h, func() bool { return l.tr.peers[2].state == peerSevered })
					}
					mine.call++
					change(&mine)
					conn := l.dial()
					said := newProven(conn, key, calling)
					if err := said.say(appendOpening(nil, opening{version: WireVersion, node: 2, secret: key != nil})); err != nil {
						t.Fatal(err)
					}
					if _, err := readOpening(said); err != nil {
						t.Fatal(err)
					}
					if err := said.check(); !errors.Is(err, errUnproven) {
						t.Errorf("the stranger's secret fits: %v", err)
					}
					if err := said.prove(appendGreeting(nil, mine)); err != nil {
						t.Fatal(err)
					}
					l.turnsAway(conn, 0)
				})
			}
		}
	}
}

// TestReflected: what a node has said proves nothing when it is said to it again, in this
// connection or another.
func TestReflected(t *testing.T) {
	l := lurk(t)
	conn := l.dial()
	said := newProven(conn, nil, calling)
	said.say(appendOpening(nil, opening{version: WireVersion, node: 1, secret: true}))
	theirs := make([]byte, openingBytes+tagBytes)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(appendGreeting(nil, l.peer.mine), theirs[openingBytes:]...)); err != nil {
		t.Fatal(err)
	}
	l.turnsAway(conn, 0)

	again := l.dial() // The same opening as the node's, and its proof.
	if _, err := again.Write(append(theirs[:openingBytes:openingBytes], append(appendGreeting(nil, l.peer.mine), theirs[openingBytes:]...)...)); err != nil {
		t.Fatal(err)
	}
	l.turnsAway(again, openingBytes+tagBytes)
}

// TestReplayed: what an honest peer has said proves nothing when it is said once more.
func TestReplayed(t *testing.T) {
	l := lurk(t)
	var recorded bytes.Buffer
	conn := l.dial()
	said := newProven(struct {
		io.Reader
		io.Writer
	}{conn, io.MultiWriter(conn, &recorded)}, l.tr.connect.secret, calling)
	mine := l.peer.mine
	mine.call++
	if err := errors.Join(l.tr.connect.meet(said), said.prove(appendGreeting(nil, mine))); err != nil {
		t.Fatal(err)
	}
	if _, err := readGreeting(said); err != nil {
		t.Fatal(err)
	}
	if v, err := readVerdict(said); err != nil || v.why != "" {
		t.Fatalf("the peer itself is told %q, %v", v.why, err)
	}
	again := l.dial()
	if _, err := again.Write(recorded.Bytes()); err != nil {
		t.Fatal(err)
	}
	l.turnsAway(again, openingBytes+tagBytes)
}

// between passes on what two sides of a handshake say, and changes the byte at a place of one
// direction. It returns how many bytes have passed there.
func between(caller, called net.Conn, toCalled bool, place int) int {
	passed := make(chan int, 2)
	pass := func(to, from net.Conn, change bool) {
		n, buf := 0, make([]byte, 4096)
		for {
			got, err := from.Read(buf)
			if at := place - n; change && at >= 0 && at < got {
				buf[at] ^= 1
			}
			n += got
			if _, writeErr := to.Write(buf[:got]); err != nil || writeErr != nil {
				break
			}
		}
		to.Close()
		if change {
			passed <- n
		}
	}
	go pass(called, caller, toCalled)
	go pass(caller, called, !toCalled)
	return <-passed
}

// TestChangedOnTheWay: a handshake of which one byte was changed, whichever it is, in whichever
// direction, makes no connection and is no news to either side.
func TestChangedOnTheWay(t *testing.T) {
	nodes := pair(t, [2]Config{{PageBytes: 64, Secret: secret(1), Cluster: "c"}, {PageBytes: 64, Secret: secret(1), Cluster: "c"}})
	// Each side says this much: an opening, a greeting, a verdict, and two tags.
	whole := openingBytes + len(appendGreeting(nil, nodes[0].connect.mine)) + verdictPrefixBytes + 2*tagBytes
	// Here time passes only when all wait, as both sides do after a changed length.
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		for _, toCalled := range []bool{true, false} {
			for place := range whole {
				all.Go(func() { changeOnTheWay(t, nodes, toCalled, place) })
			}
		}
		all.Wait()
	})
	for _, n := range nodes {
		if news := n.arrivals.take(false); len(news) > 0 {
			t.Errorf("what was changed on the way was news: %+v", news)
		}
	}
}

// changeOnTheWay has one node call the other, and changes a byte.
func changeOnTheWay(t *testing.T, nodes [2]*Transport, toCalled bool, place int) {
	ours, theirs := net.Pipe()
	accepting, answered := net.Pipe()
	for _, conn := range []net.Conn{ours, answered} {
		if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
			t.Error(err)
		}
	}
	var ends sync.WaitGroup
	var callErr, answerErr error
	ends.Go(func() {
		s := nodes[1].connect.sessions[0]
		_, callErr = nodes[1].connect.introduce(ours, nil, s, nodes[1].connect.greet(s, purposeCall))
		ours.Close()
	})
	ends.Go(func() {
		_, _, _, answerErr = nodes[0].connect.answer(answered, nil, func() {})
		answered.Close()
	})
	if passed := between(theirs, accepting, toCalled, place); passed <= place {
		t.Errorf("%d bytes passed towards the called node: %v, and byte %d was to be changed", passed, toCalled, place)
	}
	ends.Wait()
	if answerErr == nil || !toCalled && callErr == nil {
		t.Errorf("byte %d was changed, towards the called node: %v; the calling one says %v, the called one %v", place, toCalled, callErr, answerErr)
	}
}

// TestStrangersFillNoLog: however many strangers call, few lines are logged, and one that says how
// many were not.
func TestStrangersFillNoLog(t *testing.T) {
	var s strangers
	now := time.Now()
	said := 0
	for range 1000 {
		if say, _ := s.another(now); say {
			said++
		}
	}
	if say, unsaid := s.another(now.Add(strangersSpan)); said != strangersSaid || !say || unsaid != 1000-strangersSaid {
		t.Errorf("%d lines for 1000 strangers; then %v, and %d are said to be left out", said, say, unsaid)
	}
}

// conversation is a connection on which the other side has said all that it will.
type conversation struct {
	io.Reader
	io.Writer
}

// FuzzStranger: whatever is said to a node with a secret, by who does not know it, it believes
// nothing. The input comes in both roles.
func FuzzStranger(f *testing.F) {
	honest := appendOpening(nil, opening{version: WireVersion, node: 1, secret: true})
	f.Add(honest)
	f.Add(append(honest, appendGreeting(nil, greeting{version: WireVersion, node: 1, nodes: 2, pageBytes: 64, incarnation: 1, cluster: "c"})...))
	f.Add(append(honest, make([]byte, tagBytes)...))
	f.Add(appendOpening(nil, opening{version: WireVersion + 1}))
	f.Add(appendGreeting(nil, greeting{version: WireVersion - 1, node: 3}))
	f.Add([]byte{22, 3, 1, 0, 5})
	f.Fuzz(func(t *testing.T, input []byte) {
		c := credentials{mine: greeting{version: WireVersion, nodes: 2, pageBytes: 64, incarnation: 7, cluster: "c"}, secret: secret(1)}
		var told bytes.Buffer
		g, err := c.beMet(newProven(conversation{bytes.NewReader(input), &told}, c.secret, called))
		if err == nil || g.incarnation != 0 || told.Len() > openingBytes+tagBytes {
			t.Errorf("the called node believes %+v, %v, and tells %d bytes", g, err, told.Len())
		}
		told.Reset()
		if err := c.meet(newProven(conversation{bytes.NewReader(input), &told}, c.secret, calling)); err == nil || told.Len() > openingBytes {
			t.Errorf("the calling node believes a stranger, and tells %d bytes", told.Len())
		}
		if o, err := readOpening(bytes.NewReader(input)); err == nil && o.version == WireVersion && !bytes.HasPrefix(input, appendOpening(nil, o)) {
			t.Errorf("%x was read as %+v, which is written as %x", input, o, appendOpening(nil, o))
		}
	})
}

// TestFormerVersionIsAnswered: a node of a version that began with its greeting is told that the
// versions differ, in what it understands.
func TestFormerVersionIsAnswered(t *testing.T) {
	l := lurk(t)
	conn := l.dial()
	old := l.peer.mine
	old.version = WireVersion - 1
	if _, err := conn.Write(appendGreeting(nil, old)); err != nil {
		t.Fatal(err)
	}
	// So that version begins to read, and then compares the versions.
	var buf [greetingPrefixBytes + maxGreetingRest]byte
	if version, node, _, err := readPrefixed(conn, &buf); err != nil || version != WireVersion || node != 0 {
		t.Errorf("a node of version %d is answered by node %d of version %d, %v", old.version, node, version, err)
	}
	if line := <-l.logged; !strings.Contains(line, otherVersion(WireVersion, old.version)) {
		t.Errorf("the node logs %q", line)
	}
}

// TestCrowdAtTheDoor: strangers who call all the time keep no peer from coming back.
func TestCrowdAtTheDoor(t *testing.T) {
	l := lurk(t)
	over := make(chan struct{})
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer close(over)
	came := make(chan struct{}, 1)
	for range 4 {
		crowd.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				conn, err := net.Dial("tcp", l.tr.connect.listener.Addr().String())
				if err != nil {
					continue
				}
				conn.Write(appendOpening(nil, opening{version: WireVersion, node: 1, secret: true}))
				time.AfterFunc(50*time.Millisecond, func() { conn.Close() })
				select {
				case came <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		for range 2 * maxHandshakes {
			<-came
		}
		l.peer.conn.Close()
		pollUntil(t, l.tr, l.h, func() bool { return l.tr.peers[1].state == peerSevered })
		for end := time.Now().Add(testTimeout); !l.comesBack(); {
			if time.Now().After(end) {
				t.Fatalf("strangers have kept a peer out for %v", testTimeout)
			}
		}
		pollUntil(t, l.tr, l.h, func() bool { return l.tr.peers[1].state == peerUp })
	}
	if len(l.h.down) > 0 {
		t.Errorf("strangers have ended a peer: %v", l.h.down)
	}
}

// comesBack has the peer call once.
func (l *lurking) comesBack() bool {
	p := l.peer
	p.conn = l.dial()
	p.said = newProven(p.conn, l.tr.connect.secret, calling)
	p.mine.call++
	if l.tr.connect.meet(p.said) != nil || p.said.prove(appendGreeting(nil, p.mine)) != nil {
		return false
	}
	theirs, err := readGreeting(p.said)
	if err != nil {
		return false
	}
	v, err := readVerdict(p.said)
	if err != nil || v.why != "" || p.said.check() != nil {
		return false
	}
	p.mine.expected = theirs.incarnation
	return p.said.prove(appendVerdict(nil, verdict{})) == nil
}
