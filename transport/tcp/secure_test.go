package tcp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"dsmd/transport"
)

// TestUnauthenticated: nodes that do not believe each other part, each with an error that says what
// it expected and what to look at.
func TestUnauthenticated(t *testing.T) {
	t.Parallel()
	ours, others := NewAuthority(t, "our authority"), NewAuthority(t, "another authority")
	plain := func(transport.NodeID) *tls.Config { return nil }
	clientOnly := func(transport.NodeID) *tls.Config {
		return ours.configure(&x509.Certificate{Subject: pkix.Name{CommonName: "node-1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	}
	expired := func(id transport.NodeID) *tls.Config {
		return ours.configure(&x509.Certificate{
			Subject: pkix.Name{CommonName: nodeName(id)}, NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
		})
	}
	// trusting shows one authority's certificate and accepts two authorities' certificates, so that
	// only the other side objects.
	trusting := func(a *Authority) func(transport.NodeID) *tls.Config {
		return func(id transport.NodeID) *tls.Config {
			c := a.Node(id)
			c.RootCAs.AddCert(ours.cert)
			c.RootCAs.AddCert(others.cert)
			c.ClientCAs = c.RootCAs
			return c
		}
	}
	for name, test := range map[string]unauthenticated{
		"CalledByOther": {ours.Node, trusting(others),
			[]string{`its certificate (for "CN=node-1", signed by "CN=another authority"`, "give both nodes certificates of the same authority"},
			[]string{"it does not accept this node's TLS", `check this node's certificate file (for "CN=node-1", signed by "CN=another authority"`}},
		"CallsOther": {trusting(others), ours.Node,
			[]string{"it does not accept this node's TLS", `certificate file (for "CN=node-0", signed by "CN=another authority"`},
			[]string{`its certificate (for "CN=node-0", signed by "CN=another authority"`, "certificates of the same authority"}},
		"Expired": {ours.Node, expired,
			[]string{`its certificate (for "CN=node-1"`, "expired"},
			[]string{"it does not accept this node's certificate", `(for "CN=node-1"`, "which has ended", "renew it"}},
		"NotForClients": {ours.Node, clientOnly,
			[]string{"incompatible key usage"},
			[]string{"it does not accept this node's TLS"}},
		"OnlyCalledHasTLS": {ours.Node, plain,
			[]string{"it does not speak TLS, and this node does"},
			[]string{"it speaks TLS, and this node does not: give both nodes certificates, or neither"}},
		"OnlyCallerHasTLS": {plain, ours.Node,
			[]string{"it speaks TLS, and this node does not"},
			[]string{"it has ended the handshake of TLS; does it have a certificate?"}},
		"CallerIsAnother": {ours.Node, func(transport.NodeID) *tls.Config { return ours.Node(7) },
			[]string{`its certificate (for "CN=node-7"`, `is not one of node 1: it is for "node-7"`},
			[]string{"refused this node: its certificate", `is not one of node 1: it is for "node-7"`}},
		"CalledIsAnother": {func(transport.NodeID) *tls.Config { return ours.Node(7) }, ours.Node,
			[]string{"refused this node: its certificate", `is not one of node 0: it is for "node-7"`},
			[]string{`its certificate (for "CN=node-7"`, `is not one of node 0: it is for "node-7"`}},
	} {
		for _, joining := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/Joining=%v", name, joining), func(t *testing.T) { testUnauthenticated(t, joining, test) })
		}
	}
}

// unauthenticated is a pair of nodes of which at least one does not believe the other.
type unauthenticated struct {
	node0, node1 func(transport.NodeID) *tls.Config
	// says0 is what node 0, which is called, logs; says1 is what node 1, which calls, returns.
	says0, says1 []string
}

func testUnauthenticated(t *testing.T, joining bool, test unauthenticated) {
	logged := make(chan string, 1000)
	nodes := pair(t, [2]Config{
		{PageBytes: 64, TLS: test.node0(0), VerifyPeer: VerifyName, Joining: joining, Log: func(line string) { logged <- line }},
		{PageBytes: 64, TLS: test.node1(1), VerifyPeer: VerifyName, Joining: joining},
	})
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	go func() {
		for !tried(nodes[1], 0) && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		cancel() // The first attempt tells all.
	}()
	var called sync.WaitGroup
	called.Go(func() { nodes[0].Connect(ctx) })
	err := nodes[1].Connect(ctx)
	if err == nil {
		t.Fatal("the nodes are connected")
	}
	for _, want := range test.says1 {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the calling node says\n%v\nwant %q", err, want)
		}
	}
	line := <-logged
	for _, want := range test.says0 {
		if !strings.Contains(line, want) {
			t.Errorf("the called node logs\n%s\nwant %q", line, want)
		}
	}
	cancel()
	called.Wait()
}

// TestConfigOfTLSIsChecked: a configuration that would let strangers in is refused.
func TestConfigOfTLSIsChecked(t *testing.T) {
	good := NewAuthority(t, "authority").Node(1)
	for want, change := range map[string]func(*tls.Config){
		"RootCAs and ClientCAs":   func(c *tls.Config) { c.RootCAs = nil },
		"both RootCAs and":        func(c *tls.Config) { c.ClientCAs = nil },
		"this node's certificate": func(c *tls.Config) { c.Certificates = nil },
		"InsecureSkipVerify":      func(c *tls.Config) { c.InsecureSkipVerify = true },
	} {
		bad := good.Clone()
		change(bad)
		if _, err := New(Config{Self: 1, Peers: []string{"a:1", "b:1"}, PageBytes: 64, TLS: bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}

// securePair is two connected nodes under TLS.
func securePair(t *testing.T) [2]*Transport {
	t.Helper()
	authority := NewAuthority(t, "authority")
	nodes := pair(t, [2]Config{
		{PageBytes: 4096, TLS: authority.Node(0), VerifyPeer: VerifyName}, {PageBytes: 4096, TLS: authority.Node(1), VerifyPeer: VerifyName}})
	result := make(chan error, 1)
	go func() { result <- nodes[0].Connect(t.Context()) }()
	if err := errors.Join(nodes[1].Connect(t.Context()), <-result); err != nil {
		t.Fatal(err)
	}
	return nodes
}

// TestImpostorIsNoNews: who answers at a peer's address without its certificate does not end the
// peer.
func TestImpostorIsNoNews(t *testing.T) {
	t.Parallel()
	nodes := securePair(t)
	h := [2]*recorder{newRecorder(), newRecorder()}
	for i, tr := range nodes {
		pollUntil(t, tr, h[i], func() bool { return h[i].up[transport.NodeID(1-i)] == 1 })
	}
	impostor, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fake := NewAuthority(t, "authority").Node(0)
	deceived := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := impostor.Accept()
			if err != nil {
				return
			}
			tls.Server(conn, fake).Handshake()
			conn.Close()
			deceived <- struct{}{}
		}
	}()
	// Nobody dials while there is a connection, so the address can be changed.
	nodes[1].connect.addresses[0] = impostor.Addr().String()
	nodes[1].Break(0)
	pollUntil(t, nodes[1], h[1], func() bool { return nodes[1].peers[0].state == peerSevered })
	for range 3 {
		select {
		case <-deceived:
		case <-time.After(testTimeout):
			t.Fatal("the node does not call again")
		}
	}
	nodes[1].Poll(h[1], 1)
	if err := h[1].down[0]; err != nil {
		t.Errorf("an impostor has ended the peer: %v", err)
	}
	impostor.Close()
}

// TestEncrypted: nothing of what is sent can be read on the way.
func TestEncrypted(t *testing.T) {
	authority := NewAuthority(t, "authority")
	place, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { place.Close() })
	nodes := pair(t, [2]Config{{PageBytes: 64, TLS: authority.Node(0)}, {PageBytes: 64, TLS: authority.Node(1)}})
	var seen tap
	go func() {
		for {
			conn, err := place.Accept()
			if err != nil {
				return
			}
			onward, err := net.Dial("tcp", nodes[0].connect.listener.Addr().String())
			if err != nil {
				return
			}
			go io.Copy(onward, io.TeeReader(conn, &seen))
			go io.Copy(conn, onward)
		}
	}()
	nodes[1].connect.addresses[0] = place.Addr().String()
	result := make(chan error, 1)
	go func() { result <- nodes[0].Connect(t.Context()) }()
	if err := errors.Join(nodes[1].Connect(t.Context()), <-result); err != nil {
		t.Fatal(err)
	}
	h := [2]*recorder{newRecorder(), newRecorder()}
	pollUntil(t, nodes[1], h[1], func() bool { return h[1].up[0] == 1 })
	const secret = "the control part of a frame that nobody is to read"
	if err := nodes[1].Send(0, []byte(secret), nil); err != nil {
		t.Fatal(err)
	}
	nodes[1].Flush()
	pollUntil(t, nodes[0], h[0], func() bool { return h[0].bytes == len(secret) })
	if text := seen.String(); len(text) < len(secret) || strings.Contains(text, secret) || strings.Contains(text, magic) {
		t.Errorf("%d bytes passed, among them readable ones", len(text))
	}
}

// tap keeps what is written to it.
type tap struct {
	mu sync.Mutex
	strings.Builder
}

func (t *tap) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(b)
}

func (t *tap) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.String()
}
