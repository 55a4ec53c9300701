package hostile

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"dsmd/internal/certs"
	"dsmd/internal/systemtest/testcluster"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/tcp"
)

// traitor is a node of a cluster that the test is.
type traitor struct {
	t   *testing.T
	net *tcp.Transport
}

const pageBytes = 4096

// oneReactor is a flag of daemons with which the test speaks: it is a node, or a program, of one.
const oneReactor = "--reactors=1"

// cluster is what three nodes that are listed call theirs, with the settings on which they agree.
const cluster = "default (region 64GiB, 3 ranks, transport auto, survive false)"

// turn joins a cluster as its last node, with that node's listener.
func turn(t *testing.T, c *testcluster.Cluster, l net.Listener) *traitor {
	t.Helper()
	peers := c.Addresses()
	secret, err := certs.LoadSecret(os.Getenv(testcluster.SecretEnv))
	if err != nil {
		t.Fatal(err)
	}
	n, err := tcp.New(tcp.Config{Self: transport.NodeID(len(peers) - 1), Listener: l, Peers: peers, Cluster: cluster, PageBytes: pageBytes, Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
	defer cancel()
	if err := n.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	tr := &traitor{t: t, net: n}
	t.Cleanup(func() { n.Close() })
	return tr
}

// Frame implements transport.Handler: what honest nodes say is of no interest.
func (tr *traitor) Frame(transport.NodeID, []byte, transport.Payload) {}

// PeerUp implements transport.Handler.
func (tr *traitor) PeerUp(transport.NodeID) {}

// PeerDown implements transport.Handler.
func (tr *traitor) PeerDown(transport.NodeID, error) {}

// say sends a message to node 0, with a page if its flags say so.
func (tr *traitor) say(m protocol.Message) {
	tr.t.Helper()
	tr.sayBytes(protocol.AppendMessage(nil, &m), m.Contents() == protocol.PageContents)
}

func (tr *traitor) sayBytes(control []byte, page bool) {
	tr.t.Helper()
	var payload transport.Payload
	if page {
		payload = tr.net.Lease(0)
	}
	_ = tr.net.Send(0, control, payload) // the daemon may have parted already
	tr.net.Flush()
	_, _ = tr.net.Poll(tr, 64)
}

// TestHostilePeer: a node that breaks the protocol is named and expelled. Programs have computed
// right until then, and are told.
func TestHostilePeer(t *testing.T) {
	page := protocol.PageObject(0)
	for name, is := range map[string]struct {
		message protocol.Message
		raw     []byte
	}{
		"no message":                {raw: []byte("\x00\x01 no message at all")},
		"a done that nobody owes":   {message: protocol.Done{Access: protocol.Write}.To(0, page).SentBy(2)},
		"a grant of nothing asked":  {message: protocol.Grant{Access: protocol.Write, Contents: protocol.PageContents}.To(0, page).SentBy(2)},
		"an early acknowledgement":  {message: protocol.InvalidateAck{}.To(0, page).SentBy(2)},
		"a page outside the region": {message: protocol.Request{Access: protocol.Write}.To(0, protocol.PageObject(1<<63-1)).SentBy(2)},
		"another home's forward":    {message: protocol.Forward{Requester: 1, Access: protocol.Write}.To(0, page).SentBy(2)},
		"another's name":            {message: protocol.Request{Access: protocol.Write}.To(0, page).SentBy(1)},
		"memory freed by nobody":    {message: protocol.Free{Phase: 1, Run: protocol.AppendRun(nil, 0, 2)}.To(0, page).SentBy(2)},
		"a freeing that is not":     {message: protocol.FreeAck{Phase: 3}.To(0, page).SentBy(2)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, others := testcluster.ServeFirst(t, 2, 3, 3, oneReactor)
			tr := turn(t, c, others[0])
			lock := lockAt(0, 3)
			a, b := c.Program(t, honest, 0, 0, lock), c.Program(t, honest, 1, 1, lock)
			a.Expect(t, "ready")
			b.Expect(t, "ready")
			a.Do(t, "10 20", "add 10")
			b.Do(t, "15 30", "add 5")
			if is.raw != nil {
				tr.sayBytes(is.raw, false)
			} else {
				tr.say(is.message)
			}
			for _, p := range c.Daemons {
				if status := p.Wait(t); status == 0 {
					t.Errorf("a daemon has ended with status 0")
				}
				sound(t, p)
			}
			if log := c.Daemons[0].Errors(); !strings.Contains(log, "node 2") {
				t.Errorf("the daemon does not name the peer:\n%s", log)
			}
			for _, p := range []*testcluster.Process{a, b} {
				if status := p.Wait(t); status == 0 {
					t.Error("a program has not noticed")
				}
				sound(t, p)
			}
		})
	}
}

// TestHostilePeerThatIsBorne: what a node may say although no correct node would, as often as it
// likes, hurts nobody and costs little memory.
func TestHostilePeerThatIsBorne(t *testing.T) {
	c, others := testcluster.ServeFirst(t, 2, 3, 3, oneReactor)
	tr := turn(t, c, others[0])
	lock := lockAt(1, 3)
	a, b := c.Program(t, honest, 0, 0, lock), c.Program(t, honest, 1, 1, lock)
	a.Expect(t, "ready")
	b.Expect(t, "ready")
	before := resident(t, c.Daemons[0])
	const flood = 20000
	for i := range uint64(flood) {
		tr.say(protocol.BarrierArrive{Ticket: protocol.Ticket(i), Parties: protocol.MaxParties, Contribution: make([]byte, protocol.MaxContribution)}.To(0, protocol.LockObject(3*i)).SentBy(2))
		tr.say(protocol.Request{Access: protocol.Write}.To(0, protocol.LockObject(3*(i+1<<40))).SentBy(2))
		tr.say(protocol.BarrierRelease{Ticket: protocol.Ticket(i)}.To(0, protocol.LockObject(1)).SentBy(2))
		tr.say(protocol.NameReply{Ticket: protocol.Ticket(i + 1<<50)}.To(0).SentBy(2))
		name := protocol.NameCall{Op: protocol.Bind, Client: protocol.ClientID(i), Pages: 1, Name: "hostile", Signature: "mine"}
		tr.say(protocol.NameRequest{Ticket: protocol.Ticket(i), Call: name.Append(nil)}.To(0).SentBy(2))
	}
	a.Do(t, "100 200", "add 100")
	b.Do(t, "200 400", "add 100")
	a.Do(t, "200 400", "add 0")
	if grown := resident(t, c.Daemons[0]) - before; grown > flood*5*1000 {
		t.Errorf("%d messages have made the daemon grow by %d KiB", 5*flood, grown>>10)
	}
	a.End()
	b.End()
	a.Succeed(t)
	b.Succeed(t)
	for _, p := range c.Daemons {
		if !p.Running() {
			t.Errorf("a daemon has ended:\n%s", p.Errors())
		}
		sound(t, p)
	}
}

// TestStrangers: whoever reaches the port of a daemon and does not speak its language, or not to
// the end, keeps nobody from joining, nor from what is under way later.
func TestStrangers(t *testing.T) {
	c := testcluster.Serve(t, 2, 2)
	come := func(times int) {
		for i := range times {
			conn, err := net.Dial("tcp", c.Addresses()[i%2])
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			said := []string{"", "GET / HTTP/1.1\r\n\r\n", "dsmdtcp\x01", "dsmdtcp\x01\xff\xff\xff\xff\xff\xff", strings.Repeat("\xff", 4096)}[i%5]
			_, _ = io.WriteString(conn, said) // the daemon may be through with it
		}
	}
	come(120)
	lock := lockAt(1, 2)
	a, b := c.Program(t, honest, 0, 0, lock), c.Program(t, honest, 1, 1, lock)
	a.Expect(t, "ready")
	b.Expect(t, "ready")
	a.Say(t, "add 50")
	come(10)
	a.Expect(t, "50 100")
	b.Do(t, "100 200", "add 50")
	a.End()
	b.End()
	a.Succeed(t)
	b.Succeed(t)
	for _, p := range c.Daemons {
		sound(t, p)
	}
}

// TestCertificates: two nodes of the transport know each other by certificates of package certs,
// and nobody else.
func TestCertificates(t *testing.T) {
	t.Parallel()
	good, other := authority(t, "blue"), authority(t, "blue")
	for name, is := range map[string]struct {
		by      *certs.Authority
		id      int
		refused string
	}{
		"its own":             {good, 1, ""},
		"any node's":          {good, certs.AnyNode, ""},
		"another node's":      {good, 2, "it is that of node 2"},
		"another authority's": {other, 1, "certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var nodes []*tcp.Transport
			var peers []string
			var listeners []net.Listener
			for range 2 {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				listeners, peers = append(listeners, l), append(peers, l.Addr().String())
			}
			for i, by := range []*certs.Authority{good, is.by} {
				id := is.id
				if i == 0 {
					id = 0
				}
				n, err := tcp.New(tcp.Config{Self: transport.NodeID(i), Listener: listeners[i], Peers: peers, Cluster: "blue", PageBytes: pageBytes,
					TLS: files(t, by, id), VerifyPeer: certs.VerifyNode[transport.NodeID]("blue")})
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				nodes = append(nodes, n)
			}
			ctx, cancel := context.WithTimeout(t.Context(), testcluster.Patience)
			defer cancel()
			result := make(chan error, 1)
			go func() { result <- nodes[0].Connect(ctx) }()
			err := nodes[1].Connect(ctx)
			if err != nil {
				cancel() // the other one goes on waiting
			}
			if both := <-result; err == nil {
				err = both
			}
			if (err == nil) != (is.refused == "") || err != nil && !strings.Contains(err.Error(), is.refused) {
				t.Errorf("connected: %v, want %q", err, is.refused)
			}
		})
	}
}

func authority(t *testing.T, cluster string) *certs.Authority {
	t.Helper()
	a, err := certs.NewAuthority(t.TempDir(), cluster, certs.AuthorityValidity, false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// files makes a node's certificate and loads it.
func files(t *testing.T, a *certs.Authority, id int) *tls.Config {
	t.Helper()
	dir := t.TempDir()
	if _, err := a.Issue(dir, certs.Node{ID: id}, false); err != nil {
		t.Fatal(err)
	}
	cert, key := certs.NodeFiles(id)
	config, err := certs.Load(filepath.Join(dir, certs.AuthorityFile), filepath.Join(dir, cert), filepath.Join(dir, key))
	if err != nil {
		t.Fatal(err)
	}
	return config
}
