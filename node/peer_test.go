package node

import (
	"errors"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/sim"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// rogue is a peer of one node under test: a transport that the test drives itself.
type rogue struct {
	testing.TB
	net  transport.Transport
	host *cluster
	self protocol.NodeID
	last protocol.Message // that the node sent to this peer
	got  int
	// files are what the node said about files.
	files []storageFrame
	down  error // why the node is lost
}

// Frame implements transport.Handler.
func (r *rogue) Frame(_ transport.NodeID, control []byte, payload transport.Payload) {
	if control[0]&storageMark != 0 {
		f, err := decodeStorage(control, testPages, payload != nil)
		if err != nil {
			r.Error(err)
		}
		r.files = append(r.files, f)
		return
	}
	m, err := protocol.DecodeMessage(control)
	if err != nil {
		r.Error(err)
	}
	m.Payload = nil
	r.last = m
	r.got++
}

// PeerUp implements transport.Handler.
func (r *rogue) PeerUp(transport.NodeID) {}

// PeerDown implements transport.Handler.
func (r *rogue) PeerDown(peer transport.NodeID, err error) {
	if peer == 0 {
		r.down = err
	}
}

// among starts node 0 of three; the others are rogues.
func among(t testing.TB) (*cluster, []*rogue) {
	t.Helper()
	s := setup{nodes: 3}
	c := &cluster{TB: t, net: sim.NewNetwork(s.nodes, 4096, s.net)}
	c.members = append(c.members, c.startNode(0, s))
	t.Cleanup(c.stop)
	var rogues []*rogue
	for i := range 2 {
		r := &rogue{TB: t, net: c.net.Node(i + 1), host: c, self: protocol.NodeID(i + 1)}
		if _, err := r.net.Poll(r, 1); err != nil {
			t.Fatal(err)
		}
		rogues = append(rogues, r)
	}
	return c, rogues
}

// say sends a message to node 0, as it is, with a page if so wanted.
func (r *rogue) say(m protocol.Message, page bool) {
	r.Helper()
	r.sayBytes(protocol.AppendMessage(nil, &m), page)
}

func (r *rogue) sayBytes(control []byte, page bool) {
	r.Helper()
	var payload transport.Payload
	if page {
		payload = r.net.Lease(0)
	}
	if err := r.net.Send(0, control, payload); err != nil && !errors.Is(err, transport.ErrPeerDown) {
		r.Fatal(err)
	}
	r.net.Flush()
}

// hear waits for the next message from node 0.
func (r *rogue) hear() protocol.Message {
	r.Helper()
	before := r.got
	eventually(r, "node 0 answers", func() bool {
		if _, err := r.net.Poll(r, 1); err != nil {
			r.Fatal(err)
		}
		return r.got > before
	})
	return r.last
}

// TestMalformedMessages: whatever no correct peer says ends the node with an error that names the
// peer, and programs are told.
func TestMalformedMessages(t *testing.T) {
	page := func(home uint64) protocol.ObjectID { return protocol.PageObject(home * HomeStripe) }
	type message = protocol.Message
	read, grant := protocol.Request{Access: protocol.Read}, protocol.Grant{Access: protocol.Read, Contents: protocol.PageContents}
	with := func(m message, at int, b byte) []byte {
		raw := protocol.AppendMessage(nil, &m)
		raw[at] = b
		return raw
	}
	for name, is := range map[string]struct {
		raw    []byte
		m      message
		page   bool
		reason string
	}{
		"no message":                    {raw: []byte{1, 2, 3}, reason: "from node 2: protocol: malformed message"},
		"unknown kind":                  {raw: make([]byte, 40), reason: "from node 2: protocol: malformed message"},
		"in the name of another":        {m: read.To(0, page(0)).SentBy(1), reason: "node 2 sent a message in the name of node 1"},
		"in the name of the node":       {m: read.To(0, page(0)), reason: "node 2 sent a message in the name of node 0"},
		"a page with a request":         {m: read.To(0, page(0)).SentBy(2), page: true, reason: "node 2 sent a Request that does not say"},
		"a page with a request, said":   {raw: with(read.To(0, page(0)).SentBy(2), 10, byte(protocol.PageContents)), page: true, reason: "from node 2: protocol: malformed message"},
		"no page with a grant":          {m: grant.To(0, page(0)).SentBy(2), reason: "node 2 sent a Grant that does not say"},
		"a page that is zeros":          {m: protocol.Grant{Access: protocol.Read, Contents: protocol.ZeroContents}.To(0, page(0)).SentBy(2), page: true, reason: "node 2 sent a Grant that does not say"},
		"a lock with contents":          {m: grant.To(0, protocol.LockObject(3)).SentBy(2), page: true, reason: "node 2 sent a page with a Grant"},
		"a grant of what nobody wanted": {m: grant.To(0, page(1)).SentBy(2), page: true, reason: "node 2 broke the protocol with Grant for page:16"},
		"a page outside the region":     {m: read.To(0, page(testPages)).SentBy(2), reason: "node 2 broke the protocol"},
		"a request at the wrong home":   {m: read.To(0, page(1)).SentBy(2), reason: "not the object's home"},
		"an impossible barrier":         {m: protocol.BarrierArrive{Parties: protocol.MaxParties + 1}.To(0, protocol.LockObject(0)).SentBy(2), reason: "node 2 broke the protocol with BarrierArrive"},
		"a name call that is none":      {m: protocol.NameRequest{Call: []byte{9}}.To(0).SentBy(2), reason: "node 2 broke the protocol with NameRequest"},
		"pages freed by a stranger":     {m: protocol.Free{Phase: 1, Run: protocol.AppendRun(nil, 0, 5)}.To(0, page(0)).SentBy(2), reason: "node 2 broke the protocol with Free"},
		"a requester not in the job":    {m: protocol.Forward{Requester: 3, Access: protocol.Read}.To(0, page(0)).SentBy(2), reason: "node 2 broke the protocol with Forward"},
		"a field that it has not":       {raw: with(protocol.Done{Access: protocol.Read}.To(0, page(0)).SentBy(2), 6, 1), reason: "from node 2: protocol: malformed message"},
	} {
		t.Run(name, func(t *testing.T) {
			c, rogues := among(t)
			p := c.members[0].join()
			if is.raw == nil {
				is.raw = protocol.AppendMessage(nil, &is.m)
			}
			rogues[1].sayBytes(is.raw, is.page)
			// what follows does not change the reason
			rogues[1].say(protocol.Request{}.To(0, 0).SentBy(1), false)
			p.wantLost(is.reason)
			if err := c.members[0].ended(); err == nil || !strings.Contains(err.Error(), is.reason) {
				t.Errorf("the node ended with %v, want %q", err, is.reason)
			}
		})
	}
}

// TestInvalidatedOwner: a home upgrades a copy and invalidates it at once, although the page of an
// owner is forwarded. Were it obeyed, the contents would be lost.
func TestInvalidatedOwner(t *testing.T) {
	c, rogues := among(t)
	m, home := c.members[0], rogues[0]
	p := m.join()
	object := protocol.PageObject(HomeStripe) // home: node 1
	load := p.access(HomeStripe, false, func([]byte) {})
	home.hear()
	home.say(protocol.Grant{Access: protocol.Read, Contents: protocol.ZeroContents}.To(0, object).SentBy(1), false)
	p.settled(load)
	p.access(HomeStripe, true, func([]byte) {})
	for home.hear().Kind != protocol.KindRequest {
	}
	home.say(protocol.Grant{Access: protocol.Write, Acks: 1}.To(0, object).SentBy(1), false)
	home.say(protocol.Invalidate{Requester: 2}.To(0, object).SentBy(1), false)
	p.wantLost("the owner is not invalidated")
	if err := m.ended(); err == nil || !strings.Contains(err.Error(), "node 1 broke the protocol with Invalidate for page:16") {
		t.Errorf("the node ended with %v", err)
	}
}

// TestPeerLost: programs are told which node is lost and why.
func TestPeerLost(t *testing.T) {
	c := start(t, setup{nodes: 3})
	a, b := c.members[0].join(), c.members[1].join()
	waiting := a.access(c.pageAt(2, 0), true, func([]byte) {})
	a.settled(waiting)
	c.net.Crash(2)
	for i, p := range []*prog{a, b} {
		// node 2, or the other of these two, which has ended because of node 2
		p.wantLost(" is lost")
		if err := c.members[i].ended(); err == nil || !strings.Contains(err.Error(), p.lost) {
			t.Errorf("node %d ended with %v and told its program %q", i, err, p.lost)
		}
	}
	if !errors.Is(c.members[0].err, sim.ErrCut) && !errors.Is(c.members[1].err, sim.ErrCut) {
		t.Errorf("nobody has noticed the loss itself: %v, %v", c.members[0].err, c.members[1].err)
	}
	// Node 2 has no programs. It goes on, and tells those that come why they can not attach.
	conn := c.members[2].dial()
	eventually(t, "node 2 knows", func() bool {
		conn.Close()
		conn = c.members[2].dial()
		_, r := greet(t, conn, hello(attach.NoRank))
		return r != nil && r.Code == attach.RefuseOther && strings.Contains(r.Reason, "is lost")
	})
	closedBy(t, conn)
	c.members[2].cancel()
	if err := c.members[2].ended(); err != nil {
		t.Errorf("the node without programs ended with %v", err)
	}
}

// TestLostBetweenWelcomeAndTrap: a program that is about to attach when a peer is lost is refused,
// not left to wait for ever.
func TestLostBetweenWelcomeAndTrap(t *testing.T) {
	c := start(t, setup{nodes: 2})
	conn := c.members[0].dial()
	if _, r := greet(t, conn, hello(attach.NoRank)); r != nil {
		t.Fatal(r.Reason)
	}
	c.net.Crash(1)
	eventually(t, "the loss is noticed", func() bool {
		probe := c.members[0].dial()
		defer probe.Close()
		_, r := greet(t, probe, hello(attach.NoRank))
		return r != nil
	})
	wantRefused(t, handOver(t, conn), attach.RefuseOther, "node 1 is lost")
}

// TestOrderlyEndOfJob: all programs leave, then the daemons one after another. No node takes that
// for a failure, and none warns.
func TestOrderlyEndOfJob(t *testing.T) {
	for round := range 20 {
		core, logs := observer.New(zapcore.DebugLevel)
		c := start(t, setup{nodes: 3, net: simDelays(uint64(round)), change: func(cfg *Config) { cfg.Log = zap.New(core) }})
		var ps []*prog
		for i, m := range c.members {
			p := m.join()
			p.bind("x", 20)
			p.store(c.pageAt(i, 0), 0, 1)
			p.store(c.pageAt((i+1)%3, 0), 0, 1)
			ps = append(ps, p)
		}
		observerConn := c.members[1].dial() // somebody looks at the counters meanwhile
		greet(t, observerConn, hello(attach.NoRank))
		for _, p := range ps {
			p.leave()
		}
		for _, m := range c.members {
			// the one that looks has no rank
			eventually(t, "all programs have left", func() bool { return m.counter("programs") == 0 })
		}
		for i := range c.members {
			m := c.members[(i+round)%3]
			m.cancel()
			if err := m.ended(); err != nil {
				t.Errorf("round %d: node %d: %v", round, (i+round)%3, err)
			}
			eventually(t, "somebody says that a peer has left", func() bool { return logs.FilterMessageSnippet("a peer has left").Len() > 0 })
		}
		for _, entry := range logs.All() {
			if entry.Level > zapcore.InfoLevel {
				t.Errorf("round %d: %v %q %v", round, entry.Level, entry.Message, entry.ContextMap())
			}
		}
	}
}

// FuzzPeer lets a peer say anything to a node that has a page, a lock and a wait of each kind: the
// node either goes on or ends with an error that names the peer.
func FuzzPeer(f *testing.F) {
	for _, kind := range kinds {
		for _, s := range variations(kind)[:3] {
			f.Add(append([]byte{byte(len(s.control))}, s.control...))
		}
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		c, rogues := among(t)
		m := c.members[0]
		p := m.join()
		p.access(0, true, func([]byte) {})
		p.access(HomeStripe, true, func([]byte) {})
		p.access(HomeStripe+1, false, func([]byte) {})
		p.call(attach.Call{Op: attach.OpAcquire, Object: 1, Access: attach.Write})
		p.call(attach.Call{Op: attach.OpArrive, Object: 2, Parties: 2})
		for i := 0; len(said) > 1; i++ {
			n := min(int(said[0]), len(said)-1)
			control := said[1 : 1+n]
			said = said[1+n:]
			if n == 0 {
				continue
			}
			if n > 5 {
				// the sender's name: it is checked elsewhere
				control[4], control[5] = byte(1+i%2), 0
			}
			rogues[i%2].sayBytes(control, n > 10 && control[10] == byte(protocol.PageContents))
		}
		m.cancel()
		if err := m.ended(); err != nil && !strings.Contains(err.Error(), "node 1") && !strings.Contains(err.Error(), "node 2") {
			t.Errorf("the error names no peer: %v", err)
		}
	})
}
