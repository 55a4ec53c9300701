package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/agreement"
	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/transport"
	"dsmd/transport/sim"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// drain tells the node to leave. The answer comes by the connection, which is closed when the test
// ends.
func (m *member) drain() *attach.Conn {
	m.Helper()
	conn := m.dial()
	m.Cleanup(func() { conn.Close() })
	if _, refused := greet(m, conn, hello(attach.NoRank)); refused != nil {
		m.Fatal(refused.Reason)
	}
	write(m, conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpDrain, Ticket: 1}))
	return conn
}

// drainNode tells a node to leave and waits until it has.
func (c *cluster) drainNode(m *member) {
	c.Helper()
	f, err := m.drain().ReadFrame()
	if err != nil {
		c.Fatalf("node %d has not answered: %v; it has ended with %v", m.node.cfg.Self, err, m.ended())
	}
	if f.Kind != attach.KindReply {
		c.Fatalf("node %d answers with %v", m.node.cfg.Self, f.Kind)
	}
	r, err := attach.DecodeReply(f.Body)
	if err != nil || r.Status != attach.StatusOK {
		c.Fatalf("node %d does not leave: %v %q, %v", m.node.cfg.Self, r.Status, r.Payload, err)
	}
	if err := m.ended(); err != nil {
		c.Fatalf("node %d has left, and ends with %v", m.node.cfg.Self, err)
	}
}

// comeBack starts a node anew, in the place of one that has ended, and waits until all are in.
func (c *cluster) comeBack(i int, s setup) *member {
	c.Helper()
	restarted := c.net.Restart(transport.NodeID(i))
	wrap := s.wrap
	s.wrap = func(i int, _ transport.Transport) transport.Transport {
		if wrap == nil {
			return restarted
		}
		return wrap(i, restarted)
	}
	change := s.change
	s.change = func(cfg *Config) { change(cfg); cfg.Rejoin = true }
	m := c.startNode(i, s)
	c.members[i] = m
	return m
}

// inView waits until all nodes are in the view of an epoch.
func (c *cluster) inView(epoch uint64, members ...int) {
	c.Helper()
	for _, i := range members {
		m := c.members[i]
		eventually(c, fmt.Sprintf("node %d is in epoch %d with %d members", i, epoch, len(members)), func() bool {
			return m.counter("epoch") == epoch && m.counter("members") == uint64(len(members))
		})
	}
}

// TestRollingRestart: each node leaves in turn and comes back, as a process that knows nothing, and
// nothing is lost: pages, whoever had them and wherever they had their homes, names that stay, and
// locks.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	s := surviving(3, sim.Options{})
	c := start(t, s)
	c.lossy = true
	const pages = 6 * HomeStripe
	writer := c.members[0].join()
	first := writer.bind("x", pages)
	writer.ok(nameCall(attach.OpKeep, "x"))
	for i := range pagetable.Page(pages) {
		writer.store(first+i, 8, uint64(i)+1)
	}
	writer.leave()
	for round, leaver := range []int{0, 1, 2, 1} {
		away := c.members[leaver]
		eventually(t, "the programs have left", func() bool { return away.counter("programs") == 0 })
		c.drainNode(away)
		others := []int{0, 1, 2}
		others = append(others[:leaver], others[leaver+1:]...)
		c.inView(uint64(3*round+2), others...)
		a, b := c.members[others[0]].join(), c.members[others[1]].join()
		for _, p := range []*prog{a, b} {
			if got := p.bind("x", pages); got != first {
				t.Fatalf("round %d: the memory is at page %d now, and was at %d", round, got, first)
			}
		}
		for i := range pagetable.Page(pages) {
			a.wantLoad(first+i, 8, uint64(i)+1)
			if round > 0 {
				b.wantLoad(first+i, 16, uint64(round))
			}
			b.store(first+i, 16, uint64(round)+1)
		}
		if r := a.acquire(5, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("round %d: the lock is granted with %v", round, r.Status)
		}
		a.release(5, attach.Write)
		c.comeBack(leaver, s)
		c.inView(uint64(3*round+3), 0, 1, 2)
		fresh := c.members[leaver].join()
		if got := fresh.bind("x", pages); got != first {
			t.Fatalf("round %d: the memory is at page %d on the node that has come, and was at %d", round, got, first)
		}
		for i := range pagetable.Page(pages) {
			fresh.wantLoad(first+i, 16, uint64(round)+1)
			if i%2 == 0 {
				fresh.store(first+i, 8, uint64(i)+1)
			}
		}
		if r := fresh.acquire(5, attach.Write); r.Status != attach.StatusOK {
			t.Errorf("round %d: the lock is granted with %v on the node that has come", round, r.Status)
		}
		fresh.release(5, attach.Write)
		for _, p := range []*prog{a, b, fresh} {
			p.leave()
		}
		for _, m := range c.members {
			m.programs = nil
			m.want(map[string]uint64{"nodes_lost": 0, "pages_lost": 0, "no_quorum": 0})
		}
	}
	c.quiet()
}

// reticent is what is common to transports that keep some of what they have to tell to themselves
// for a time.
type reticent struct {
	transport.Transport
	kept []func(transport.Handler)
}

// pollFor tells h what was kept, if it is to be told now, and then polls for through, which may
// keep more.
func (r *reticent) pollFor(h, through transport.Handler, most int, now bool) (int, error) {
	if now {
		for _, tell := range r.kept {
			tell(h)
		}
		r.kept = nil
	}
	return r.Transport.Poll(through, most)
}

// Arm never lets the reactor sleep while something is kept from it: nobody would wake it.
func (r *reticent) Arm() bool { return r.Transport.Arm() || len(r.kept) > 0 }

// unaware is a transport that keeps the loss of peers to itself until it is told to tell.
type unaware struct {
	reticent
	tells atomic.Bool
	heard atomic.Bool // a peer has said that a node asks to be let in
}

func (u *unaware) Poll(h transport.Handler, most int) (int, error) {
	return u.pollFor(h, keeper{h, u}, most, u.tells.Load())
}

type keeper struct {
	transport.Handler
	u *unaware
}

func (k keeper) PeerDown(peer transport.NodeID, err error) {
	k.u.kept = append(k.u.kept, func(h transport.Handler) { h.PeerDown(peer, err) })
}

func (k keeper) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if control[0] == heardMark {
		k.u.heard.Store(true)
	}
	k.Handler.Frame(from, control, payload)
}

// TestNewcomerMeetsAll: a node that is started anew is let in only when nobody takes it for its
// predecessor any more. Else the loss of that, of which a member hears late, would be taken for its
// own.
func TestNewcomerMeetsAll(t *testing.T) {
	s := surviving(3, sim.Options{})
	late := &unaware{}
	s.wrapOne(1, func(peers transport.Transport) transport.Transport {
		late.Transport = peers
		return late
	})
	c := start(t, s)
	c.lossy = true
	writer := c.members[1].join()
	first := writer.bind("x", 1)
	writer.store(first, 8, 7)
	c.members[2].end()
	c.recovered(1, 0, 1)
	c.comeBack(2, s)
	eventually(t, "node 1 hears that a node asks to be let in", late.heard.Load)
	late.tells.Store(true)
	c.inView(2, 0, 1, 2)
	fresh := c.members[2].join()
	if got := fresh.bind("x", 1); got != first {
		t.Fatalf("the memory is at page %d on the node that has come, and was at %d", got, first)
	}
	fresh.wantLoad(first, 8, 7)
	for _, m := range c.members[:2] {
		m.want(map[string]uint64{"nodes_lost": 1, "pages_lost": 0})
	}
	writer.leave()
	fresh.leave()
}

// ignorant is a transport by which a node hears of no decision as long as it is told so: what node
// 0 says is kept, and of what node 2 says all is lost but that it asks to be let in.
type ignorant struct {
	reticent
	is    atomic.Bool
	asker atomic.Uint64 // the process that has asked last
}

func (g *ignorant) Poll(h transport.Handler, most int) (int, error) {
	return g.pollFor(h, ignoring{h, g}, most, !g.is.Load())
}

type ignoring struct {
	transport.Handler
	g *ignorant
}

func (i ignoring) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	switch {
	case from == 2 && control[0] == joinMark:
		i.g.asker.Store(binary.LittleEndian.Uint64(control[1:]))
	case !i.g.is.Load():
	case from == 0:
		control := slices.Clone(control)
		i.g.kept = append(i.g.kept, func(h transport.Handler) { h.Frame(from, control, payload) })
		return
	default:
		return
	}
	i.Handler.Frame(from, control, payload)
}

// TestSuccessorMeetsPredecessor: a node hears that a process was let in when that has ended and
// another has connected in its place. The others leave out the one, and the other is let in: nobody
// takes its connection for its predecessor's.
func TestSuccessorMeetsPredecessor(t *testing.T) {
	t.Parallel()
	s := surviving(3, sim.Options{})
	late := &ignorant{}
	s.wrapOne(1, func(peers transport.Transport) transport.Transport {
		late.Transport = peers
		return late
	})
	c := start(t, s)
	c.lossy = true
	c.members[2].end()
	c.recovered(1, 0, 1)
	late.is.Store(true)
	predecessor := c.comeBack(2, s)
	eventually(t, "node 0 has let it in", func() bool { return c.members[0].counter("epoch") == 2 })
	predecessor.end()
	process := c.comeBack(2, s).node.members.joins.process
	eventually(t, "another asks node 1 to be let in", func() bool { return late.asker.Load() == process })
	late.is.Store(false)
	c.inView(4, 0, 1, 2)
	fresh := c.members[2].join()
	fresh.store(fresh.bind("x", 1), 8, 7)
	time.Sleep(2 * expelAfter) // nobody remembers to part with it
	c.inView(4, 0, 1, 2)
	c.quiet()
}

// inattentive is a transport that keeps frames to itself until it is told not to: those of the
// protocol, or all, the latter until a peer is lost.
type inattentive struct {
	reticent
	protocol atomic.Bool
	all      atomic.Bool
}

func (d *inattentive) Poll(h transport.Handler, most int) (int, error) {
	return d.pollFor(h, selective{h, d}, most, !d.all.Load() && !d.protocol.Load())
}

type selective struct {
	transport.Handler
	d *inattentive
}

func (s selective) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if s.d.all.Load() || s.d.protocol.Load() && control[0]&agreement.Mark == 0 {
		control := slices.Clone(control)
		s.d.kept = append(s.d.kept, func(h transport.Handler) { h.Frame(from, control, payload) })
		return
	}
	s.Handler.Frame(from, control, payload)
}

func (s selective) PeerDown(peer transport.NodeID, err error) {
	s.Handler.PeerDown(peer, err)
	s.d.all.Store(false)
}

// TestNewcomerWaitsForOthers: a node that has just come, and is in a view that nobody has gone on
// with yet, cannot tell whether enough are left when another is lost. The others can.
func TestNewcomerWaitsForOthers(t *testing.T) {
	s := surviving(3, sim.Options{})
	s.change = func(c *Config) { c.Survive, c.NoQuorum = true, noQuorumEnd }
	c := start(t, s)
	c.lossy = true
	c.members[2].end()
	c.recovered(1, 0, 1)
	d := &inattentive{}
	d.protocol.Store(true)
	c.comeBack(2, setup{nodes: 3, change: s.change, wrap: func(_ int, peers transport.Transport) transport.Transport {
		d.Transport = peers
		return d
	}})
	c.inView(2, 0, 1, 2)
	d.all.Store(true)
	c.members[1].end()
	eventually(t, "node 2 hears of the loss before anything else", func() bool { return !d.all.Load() })
	d.protocol.Store(false)
	c.inView(3, 0, 2)
	fresh := c.members[2].join()
	if r := fresh.repair(5); r.Status != attach.StatusOK && r.Status != attach.StatusOwnerDied {
		t.Errorf("a lock is granted with %v", r.Status)
	}
	fresh.release(5, attach.Write)
	fresh.leave()
}

// slowToHear is a transport that keeps to itself for a while that a peer has nothing alone.
type slowToHear struct {
	reticent
	since time.Time // when it began to
}

func (s *slowToHear) Poll(h transport.Handler, most int) (int, error) {
	return s.pollFor(h, slowHandler{h, s}, most, time.Since(s.since) > 100*time.Millisecond)
}

type slowHandler struct {
	transport.Handler
	s *slowToHear
}

func (h slowHandler) Frame(from transport.NodeID, control []byte, payload transport.Payload) {
	if control[0] != emptyMark {
		h.Handler.Frame(from, control, payload)
		return
	}
	mark := slices.Clone(control)
	h.s.since = time.Now()
	h.s.kept = append(h.s.kept, func(h transport.Handler) { h.Frame(from, mark, nil) })
}

// TestLeaverIsHeardLate: a node that leaves is left out only when all others know that it has
// nothing alone. So none takes it for lost.
func TestLeaverIsHeardLate(t *testing.T) {
	t.Parallel()
	s := surviving(3, sim.Options{})
	s.wrapOne(1, func(peers transport.Transport) transport.Transport {
		return &slowToHear{reticent: reticent{Transport: peers}}
	})
	c := start(t, s)
	c.drainNode(c.members[2])
	c.without(2)
	c.recovered(2, 0, 1)
	for _, m := range c.members {
		m.want(map[string]uint64{"nodes_lost": 0})
	}
	c.quiet()
}

// leaveBehind has a program of the node bind and keep a page, store value into its second word, and
// leave. It returns the page.
func (m *member) leaveBehind(name string, value uint64) pagetable.Page {
	m.Helper()
	writer := m.join()
	first := writer.bind(name, 1)
	writer.ok(nameCall(attach.OpKeep, name))
	writer.store(first, 8, value)
	writer.leave()
	eventually(m, "the program has left", func() bool { return m.counter("programs") == 0 })
	m.programs = nil
	return first
}

// wantAnswer waits for what a node says to who has told it to leave.
func wantAnswer(t *testing.T, conn *attach.Conn, kind attach.Kind) {
	t.Helper()
	switch f, err := conn.ReadFrame(); {
	case err != nil:
		t.Error(err)
	case f.Kind != kind:
		t.Errorf("who has told it to leave is answered with %v %q", f.Kind, f.Body)
	}
}

// unheard is a transport by which a node never gets to say that all it had is handed over.
type unheard struct {
	transport.Transport
	said chan struct{} // closed when it would have said so
	once sync.Once
}

func (u *unheard) Send(to transport.NodeID, control []byte, payload transport.Payload) error {
	if control[0] == emptyMark {
		u.once.Do(func() { close(u.said) })
		return nil
	}
	return u.Transport.Send(to, control, payload)
}

// TestCutOffWhenHandedOver: a node that was told to leave is cut off when the others have all that
// it had. It has left then, though nobody can tell it that it is left out.
func TestCutOffWhenHandedOver(t *testing.T) {
	s := surviving(3, sim.Options{})
	u := &unheard{said: make(chan struct{})}
	s.wrapOne(2, func(peers transport.Transport) transport.Transport {
		u.Transport = peers
		return u
	})
	c := start(t, s)
	m := c.members[2]
	first := m.leaveBehind("x", 7)

	conn := m.drain()
	<-u.said
	c.sever(2)
	wantAnswer(t, conn, attach.KindReply)
	if err := m.ended(); err != nil {
		t.Errorf("the node ends with %v", err)
	}
	c.without(2)
	c.inView(2, 0, 1)
	p := c.members[0].join()
	if got := p.bind("x", 1); got != first {
		t.Fatalf("the memory is at page %d now, and was at %d", got, first)
	}
	p.wantLoad(first, 8, 7)
	c.quiet()
}

// TestLostWhileLeaving: a node that was told to leave and that the others lose before they have
// what it has does not say that they have it. They count it among the lost, and name it.
func TestLostWhileLeaving(t *testing.T) {
	s := surviving(3, sim.Options{})
	core, logs := observer.New(zap.WarnLevel)
	s.change = func(cfg *Config) {
		cfg.Survive = true
		if cfg.Self == 0 {
			cfg.Log = zap.New(core)
		}
	}
	d := &inattentive{}
	s.wrapOne(2, func(peers transport.Transport) transport.Transport {
		d.Transport = peers
		return d
	})
	c := start(t, s)
	m := c.members[2]
	first := m.leaveBehind("x", 7)

	d.protocol.Store(true) // nothing is handed over
	conn := m.drain()
	c.inView(1, 0, 1, 2)
	c.net.Cut(0, 2)
	wantAnswer(t, conn, attach.KindLost)
	if err := m.ended(); !errors.Is(err, ErrExcluded) {
		t.Errorf("the node ends with %v", err)
	}
	c.without(2)
	c.inView(2, 0, 1)
	p := c.members[0].join()
	if got := p.bind("x", 1); got != first {
		t.Fatalf("the memory is at page %d now, and was at %d", got, first)
	}
	if err := <-p.access(first, false, func([]byte) {}); !errors.Is(err, pagetabletest.ErrLost) {
		t.Errorf("the page that was on it alone: %v", err)
	}
	for _, m := range c.members {
		m.want(map[string]uint64{"nodes_lost": 1})
	}
	var lost []any
	for _, entry := range logs.FilterMessage("recovery begins").All() {
		lost = append(lost, entry.ContextMap()["lost"])
	}
	if want := []any{"", "2"}; !slices.Equal(lost, want) {
		t.Errorf("the log says that these were lost when recoveries began: %q, want %q", lost, want)
	}
	c.quiet()
}
