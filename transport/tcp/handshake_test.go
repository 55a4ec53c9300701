package tcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"dsmd/internal/patience"
	"dsmd/transport"
	"dsmd/transport/transporttest"
)

// testTimeout bounds every wait of these tests.
var testTimeout = patience.Or(10 * time.Second)

// pair makes two nodes from two configurations, whose Self, Listener and Peers it sets.
func pair(t *testing.T, configs [2]Config) [2]*Transport {
	t.Helper()
	var addresses []string
	for i := range configs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		configs[i].Self, configs[i].Listener = transport.NodeID(i), l
		addresses = append(addresses, l.Addr().String())
	}
	var nodes [2]*Transport
	for i := range configs {
		if configs[i].Peers == nil {
			configs[i].Peers = addresses
		} else { // A list of another length, of which only the first two are used.
			copy(configs[i].Peers, addresses)
		}
		tr, err := New(configs[i])
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = tr
	}
	t.Cleanup(func() { transporttest.CloseAll(t, nodes[:]) })
	return nodes
}

// TestRefusal: nodes that do not fit part with an error on both sides, each in its own words.
func TestRefusal(t *testing.T) { testRefusal(t, false) }

// TestJoiningRefusal: the same is final for a node that joins a cluster which runs.
func TestJoiningRefusal(t *testing.T) { testRefusal(t, true) }

func testRefusal(t *testing.T, joining bool) {
	fits := Config{Cluster: "a", PageBytes: 4096}
	for _, test := range []struct {
		name   string
		other  Config // of node 1
		change func(node1 *Transport)
		says0  string // what node 0, which is called, says
		says1  string // what node 1, which calls, says
	}{
		{name: "Version", other: fits, change: func(n *Transport) { n.connect.mine.version = WireVersion + 1 },
			says0: fmt.Sprintf("refused: it runs wire version %d, this node %d", WireVersion+1, WireVersion),
			says1: fmt.Sprintf("refused: it runs wire version %d, this node %d", WireVersion, WireVersion+1)},
		{name: "Cluster", other: Config{Cluster: "b", PageBytes: 4096},
			says0: `refused: it belongs to cluster "b", this node to "a"`, says1: `refused: it belongs to cluster "a", this node to "b"`},
		{name: "Nodes", other: Config{Cluster: "a", PageBytes: 4096, Peers: make([]string, 3)},
			says0: "refused: its cluster has 3 nodes, this node's 2", says1: "refused: its cluster has 2 nodes, this node's 3"},
		{name: "PageBytes", other: Config{Cluster: "a", PageBytes: 8192},
			says0: "refused: its pages have 8192 bytes, this node's 4096", says1: "refused: its pages have 4096 bytes, this node's 8192"},
		{name: "Identity", other: fits, change: func(n *Transport) { n.connect.mine.node = 0 },
			says0: "refused: it says it is node 0, but only nodes with higher numbers than 0 call this one",
			says1: "refused this node: it says it is node 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.other.Joining = joining
			nodes := pair(t, [2]Config{fits, test.other})
			logged := make(chan string, 100)
			nodes[0].connect.log = func(line string) { logged <- line }
			if test.change != nil {
				test.change(nodes[1])
			}
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			var error0 error
			var called sync.WaitGroup
			called.Go(func() { error0 = nodes[0].Connect(ctx) })
			error1 := nodes[1].Connect(ctx)
			if !errors.Is(error1, ErrRefused) || !strings.Contains(error1.Error(), test.says1) {
				t.Errorf("the calling node says %v, want %q", error1, test.says1)
			}
			if line := <-logged; !strings.Contains(line, test.says0) {
				t.Errorf("the called node logs %q, want %q", line, test.says0)
			}
			cancel()
			called.Wait()
			if test.name != "Identity" && (!errors.Is(error0, ErrRefused) || !strings.Contains(error0.Error(), test.says0)) {
				t.Errorf("the called node says %v, want %q", error0, test.says0)
			}
		})
	}
}

// TestWrongAddress: the list of addresses leads to another node of the same cluster.
func TestWrongAddress(t *testing.T) {
	nodes := pair(t, [2]Config{{PageBytes: 64}, {PageBytes: 64}})
	nodes[0].connect.mine.nodes, nodes[1].connect.mine.nodes = 3, 3
	nodes[1].connect.mine.node = 2
	nodes[0].connect.mine.node = 1
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var called sync.WaitGroup
	called.Go(func() { nodes[0].Connect(ctx) })
	err := nodes[1].Connect(ctx)
	cancel()
	called.Wait()
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "it is node 1; check the list of addresses") {
		t.Errorf("a node that found another than it looked for says %v", err)
	}
}

// tried reports whether an attempt to connect to a peer has failed.
func tried(tr *Transport, peer transport.NodeID) bool {
	tr.connect.mu.Lock()
	defer tr.connect.mu.Unlock()
	return tr.connect.sessions[peer].reason != errNotTried
}

// TestConnectNamesTheMissing: when the time is up, Connect says for each missing peer what is
// wrong.
func TestConnectNamesTheMissing(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	own, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(Config{Self: 1, Listener: own, PageBytes: 64, Peers: []string{nobody.Addr().String(), "", "10.0.0.3:4000"}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- tr.Connect(ctx) }()
	for deadline := time.Now().Add(testTimeout); ; {
		if tried(tr, 0) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the peer was never dialled")
		}
	}
	cancel()
	err = <-result
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Connect: %v, want the context's error in it", err)
	}
	for _, want := range []string{"node 1 is not connected to node 0 at " + nobody.Addr().String(), "connection refused",
		"node 2 at 10.0.0.3:4000: it has not connected yet"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Connect: %v; want %q in it", err, want)
		}
	}
	if err := tr.Connect(t.Context()); err == nil {
		t.Error("a second Connect succeeded")
	}
}

// TestLatePeer: a node that is dialled before it listens is dialled again.
func TestLatePeer(t *testing.T) {
	t.Parallel()
	place := transporttest.Listen(t)
	addresses := []string{place.Addr().String(), ""}
	place.Close()
	early, err := New(Config{Self: 1, Peers: addresses, PageBytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	result := make(chan error)
	go func() { result <- early.Connect(ctx) }()
	for {
		if tried(early, 0) || ctx.Err() != nil {
			break
		}
	}
	place, err = net.Listen("tcp", addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	late, err := New(Config{Self: 0, Listener: place, Peers: addresses, PageBytes: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := late.Connect(ctx); err != nil {
		t.Error(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestStrangers: who speaks another protocol, says nothing more, or comes in the name of another
// does no harm.
func TestStrangers(t *testing.T) {
	nodes := pair(t, [2]Config{{PageBytes: 64}, {PageBytes: 64}})
	logged := make(chan string, 100)
	nodes[0].connect.log = func(line string) { logged <- line }
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	result := make(chan error)
	go func() { result <- nodes[0].Connect(ctx) }()
	address := nodes[1].connect.addresses[0]

	silent, err := net.Dial("tcp", address) // It holds a handshake until Close.
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	browser, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer browser.Close()
	if _, err := browser.Write([]byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if line := <-logged; !strings.Contains(line, "does not speak") {
		t.Errorf("a stranger was logged as %q", line)
	}

	if err := nodes[1].Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	again, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	session := nodes[1].connect.sessions[0]
	stranger := nodes[1].connect.greet(session, purposeCall)
	stranger.incarnation, stranger.expected = newIncarnation(), 0
	_, err = nodes[1].connect.introduce(again, nil, session, stranger)
	var theirs verdictError
	if !errors.As(err, &theirs) || !strings.Contains(err.Error(), "was connected to this cluster before") {
		t.Errorf("another process in the name of a connected node: %v", err)
	}
	if err := nodes[0].Send(1, []byte("still there"), nil); err != nil {
		t.Errorf("a stranger has ended a connection: %v", err)
	}
}

// TestSilentCallers: those who connect and say nothing, however many, do not keep out a peer, and
// are sent away.
func TestSilentCallers(t *testing.T) {
	nodes := pair(t, [2]Config{{PageBytes: 64}, {PageBytes: 64}})
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- nodes[0].Connect(ctx) }()
	var silent []net.Conn
	for range 2 * maxHandshakes {
		conn, err := net.Dial("tcp", nodes[1].connect.addresses[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	if err := errors.Join(nodes[1].Connect(ctx), <-result); err != nil {
		t.Fatal(err)
	}
	if time.Since(began) > handshakeTimeout/2 {
		return // The first may be sent away for its silence.
	}
	if err := silent[0].SetReadDeadline(time.Now().Add(handshakeTimeout / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first silent caller is still waited for: %v", err)
	}
}

// TestHandshakeTwiceAtOnce: of two handshakes of one peer that run at once the later call wins, in
// whichever order they end.
func TestHandshakeTwiceAtOnce(t *testing.T) {
	for _, firstEnds := range []string{"First", "Last"} {
		t.Run("FirstEnds"+firstEnds, func(t *testing.T) {
			tr, peers := withRawPeers(t, 1)
			h, p := newRecorder(), peers[0]
			pollUntil(t, tr, h, func() bool { return h.up[1] == 1 })
			p.call()
			first, order := p.conn, []*proven{p.said}
			p.call()
			second := p.conn
			order = append(order, p.said)
			if firstEnds == "Last" {
				slices.Reverse(order)
			}
			for _, said := range order {
				if err := said.prove(appendVerdict(nil, verdict{})); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := second.Write(frameBytes("by the second")); err != nil {
				t.Fatal(err)
			}
			pollUntil(t, tr, h, func() bool { return len(h.from) == 1 })
			ended := make(chan error, 1)
			go func() {
				_, err := first.Read(make([]byte, 1))
				ended <- err
			}()
			for deadline := time.Now().Add(testTimeout); len(ended) == 0 && time.Now().Before(deadline); {
				if _, err := tr.Poll(h, 1); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-ended; err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the first connection is still open: %v", err)
			}
			if h.up[1] != 1 || h.down[1] != nil {
				t.Errorf("the peer was reported up %d times, down: %v", h.up[1], h.down[1])
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	two := []string{"a:1", "b:1"}
	for want, config := range map[string]Config{
		"0 addresses":       {PageBytes: 64},
		"this is node 2":    {Self: 2, Peers: two, PageBytes: 64},
		"page size of 0":    {Self: 1, Peers: two},
		"page size of 2097": {Self: 1, Peers: two, PageBytes: MaxPageBytes + 1},
		"name has 256":      {Self: 1, Peers: two, PageBytes: 64, Cluster: strings.Repeat("x", 256)},
		"not be negative":   {Self: 1, Peers: two, PageBytes: 64, MaxQueuedBytes: -1},
		"longest frame":     {Self: 1, Peers: two, PageBytes: 64, MaxQueuedBytes: 1000},
		"not confirmed":     {Self: 1, Peers: two, PageBytes: 64, MaxQueuedBytes: maxFrameBytes(64)},
		"GiveUp is 1ms":     {Self: 1, Peers: two, PageBytes: 64, GiveUp: time.Millisecond},
		"GiveUp is 25h":     {Self: 1, Peers: two, PageBytes: 64, GiveUp: 25 * time.Hour},
		"needs a listener":  {Self: 0, Peers: two, PageBytes: 64},
	} {
		if _, err := New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want %q", config, err, want)
		}
	}
}

// TestHandshakeReadsNoFurther: what follows a greeting or a verdict on the connection is left for
// its reader.
func TestHandshakeReadsNoFurther(t *testing.T) {
	mine := greeting{version: WireVersion, node: 3, addressee: 1, nodes: 5, pageBytes: 4096, cluster: "c",
		purpose: purposeAsk, listens: true, standing: belonging, incarnation: 7, expected: 8, call: 9, received: 10, hello: "hello"}
	no := verdict{why: "no", later: true}
	r := bytes.NewReader(append(appendVerdict(appendGreeting(nil, mine), no), "frames"...))
	if got, err := readGreeting(r); err != nil || got != mine {
		t.Errorf("greeting %+v, %v, want %+v", got, err, mine)
	}
	if got, err := readVerdict(r); err != nil || got != no {
		t.Errorf("verdict %+v, %v, want %+v", got, err, no)
	}
	if rest, _ := io.ReadAll(r); string(rest) != "frames" {
		t.Errorf("%q is left on the connection, want %q", rest, "frames")
	}
}

// FuzzGreeting: any input gives an error or a greeting that is written the same way again.
func FuzzGreeting(f *testing.F) {
	f.Add(appendGreeting(nil, greeting{version: WireVersion, node: 3, addressee: 1, nodes: 5, pageBytes: 4096,
		incarnation: 1, cluster: "c", hello: "hello"}))
	f.Add(appendGreeting(nil, greeting{version: WireVersion + 1, node: 3}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, input []byte) {
		r := bytes.NewReader(input)
		g, err := readGreeting(r)
		if err != nil || g.version != WireVersion {
			return
		}
		if read := input[:len(input)-r.Len()]; !bytes.Equal(appendGreeting(nil, g), read) {
			t.Errorf("%x was read as %+v, which is written as %x", read, g, appendGreeting(nil, g))
		}
	})
}

// FuzzVerdict: any input gives an error or a text that is short and printable.
func FuzzVerdict(f *testing.F) {
	f.Add(appendVerdict(nil, verdict{why: "no"}))
	f.Add(appendVerdict(nil, verdict{why: "no", later: true}))
	f.Add([]byte{0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, input []byte) {
		v, err := readVerdict(bytes.NewReader(input))
		if err != nil {
			return
		}
		if len(v.why) > maxVerdictBytes || len(v.why) != int(input[0])|int(input[1])<<8 || v.later != (input[2] == 1) || v.later && v.why == "" {
			t.Errorf("%x was read as %d bytes, later: %v", input, len(v.why), v.later)
		}
		if strings.ContainsFunc(v.why, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("the text %q can not be printed", v.why)
		}
	})
}
