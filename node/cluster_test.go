package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/controlpage"
	"dsmd/internal/stripes"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/protocol"
	"dsmd/transport"
	"dsmd/transport/sim"

	"golang.org/x/sys/unix"

	patient "dsmd/internal/patience"
)

// patience bounds every wait of these tests. It is reached only when something hangs.
var patience = patient.Or(20 * time.Second)

// testPages is the size of the region: enough for several stripes of each of three homes.
const testPages = 2048

// setup says how a cluster under test differs from the usual one.
type setup struct {
	nodes  int
	ranks  int    // 0: as many as nodes
	pages  uint64 // of the region; 0: testPages
	async  bool
	spill  bool // nodes with little room have a spill file: see startTight
	net    sim.Options
	change func(*Config)
	wrap   func(int, transport.Transport) transport.Transport
	table  func(int, pagetable.Table) pagetable.Table
	// before is called when node i is assembled, before it runs.
	before func(*Node)
}

// wrapOne has the transport of one node wrapped.
func (s *setup) wrapOne(node int, wrap func(transport.Transport) transport.Transport) {
	s.wrap = func(i int, peers transport.Transport) transport.Transport {
		if i != node {
			return peers
		}
		return wrap(peers)
	}
}

// cluster is some nodes in this process, over a network in memory and with page tables in memory.
type cluster struct {
	testing.TB
	net     *sim.Network
	members []*member
	lossy   bool // nodes were cut off, and messages lost with them
}

// member is one node that runs.
type member struct {
	testing.TB
	node   *Node
	table  *pagetabletest.Fake
	socket string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // what Run returned; valid once done is closed

	joins    sync.Mutex // held while a program joins
	programs []*prog    // that have joined; guarded by joins
}

var sockets atomic.Uint64

// listen opens a socket for programs, in the abstract namespace: nothing is left behind.
func listen(t testing.TB) (*net.UnixListener, string) {
	t.Helper()
	name := fmt.Sprintf("@dsmd-node-test-%d-%d", unix.Getpid(), sockets.Add(1))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	return l, name
}

// testConfig is a valid configuration of node i, without what connects it to others.
func testConfig(i, nodes, ranks int, socket *net.UnixListener) Config {
	return Config{
		Self: i, Nodes: nodes, Ranks: ranks, Cluster: "test", Peers: make([]string, nodes), Socket: socket,
		RegionBytes: testPages * 4096,
	}
}

func start(t testing.TB, s setup) *cluster {
	t.Helper()
	c := &cluster{TB: t, net: sim.NewNetwork(s.nodes, 4096, s.net)}
	for i := range s.nodes {
		c.members = append(c.members, c.startNode(i, s))
	}
	t.Cleanup(c.stop)
	return c
}

func (c *cluster) startNode(i int, s setup) *member {
	c.Helper()
	pages := max(s.pages, testPages)
	m := &member{TB: c.TB, table: pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: pages, Async: s.async}), done: make(chan struct{})}
	l, name := listen(c)
	m.socket = name
	cfg := testConfig(i, s.nodes, max(s.ranks, s.nodes), l)
	cfg.RegionBytes = pages * 4096
	if s.change != nil {
		s.change(&cfg)
	}
	if err := cfg.setDefaults(); err != nil {
		c.Fatal(err)
	}
	peers, table := c.net.Node(i), pagetable.Table(m.table)
	if s.wrap != nil {
		peers = s.wrap(i, peers)
	}
	if s.table != nil {
		table = s.table(i, table)
	}
	var err error
	if m.node, err = assemble(cfg, lone(), table, &network{Transport: peers}); err != nil {
		c.Fatal(err)
	}
	// tests that want these to be over say so
	m.node.end.farewell, m.node.pins.patience = patience, patience
	if s.before != nil {
		s.before(m.node)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		m.err = m.node.Run(ctx)
	}()
	return m
}

// stop checks what the nodes believe to have, ends them, and waits for them. It may be called
// again.
func (c *cluster) stop() {
	for _, m := range c.members {
		m.roomIsRight()
	}
	for _, m := range c.members {
		m.cancel()
	}
	for _, m := range c.members {
		m.ended()
	}
}

// ended waits until the node has ended and returns why.
func (m *member) ended() error {
	m.Helper()
	select {
	case <-m.done:
	case <-time.After(patience):
		stacks := make([]byte, 1<<20)
		m.Fatalf("node %d does not end:\n%s", m.node.cfg.Self, stacks[:runtime.Stack(stacks, true)])
	}
	return m.err
}

// end has the node end, as one that is told to.
func (m *member) end() {
	m.Helper()
	m.cancel()
	if err := m.ended(); err != nil {
		m.Fatalf("a node that is told to end ends with %v", err)
	}
}

// settle waits until nothing is under way on any node. Two rounds of questions with the same
// answers, by which as many messages have arrived as were sent, prove that nothing was under way
// between them (Mattern 1987, the four-counter method). Where nodes are lost nobody knows how many
// messages were lost with them, and many rounds with the same answers must do.
func (c *cluster) settle() {
	c.Helper()
	var before [2]uint64
	same := 0
	eventually(c, "all messages have arrived and nothing is under way", func() bool {
		var now [2]uint64
		pending := uint64(0)
		for _, m := range c.members {
			stats := m.ask()
			now[0] += stats["messages_sent"]
			now[1] += stats["messages_received"]
			pending += stats["pending_objects"]
		}
		if now != before || now[0] != now[1] && !c.lossy {
			same = 0
		}
		before = now
		if same++; pending > 0 {
			same = 0
		}
		return same == 2 || c.lossy && same == 20
	})
}

// observe makes a call over a connection that never attaches, and returns the answer's payload.
func (m *member) observe(op attach.Op) []byte {
	m.Helper()
	return m.observed(attach.Call{Op: op, Ticket: 3})
}

// observed is observe with any call whose ticket is 3.
func (m *member) observed(call attach.Call) []byte {
	m.Helper()
	conn := m.dial()
	defer conn.Close()
	if _, refused := greet(m, conn, hello(attach.NoRank)); refused != nil {
		m.Fatalf("refused: %s", refused.Reason)
	}
	write(m, conn, attach.AppendCall(nil, &call))
	r, err := attach.DecodeReply(read(m, conn).Body)
	if err != nil || r.Ticket != 3 || r.Status != attach.StatusOK {
		m.Fatalf("the answer is %+v, %v", r, err)
	}
	return r.Payload
}

// ask takes the counters from the reactor itself.
func (m *member) ask() map[string]uint64 {
	m.Helper()
	list, err := attach.DecodeCounters(m.observe(attach.OpStats))
	if err != nil {
		m.Fatal(err)
	}
	stats := map[string]uint64{}
	for _, counter := range list {
		stats[counter.Name] = counter.Value
	}
	return stats
}

// quiet lets all programs leave, stops the cluster once nothing is under way, and checks that no
// node has kept anything of what it did.
func (c *cluster) quiet() {
	c.Helper()
	for _, m := range c.members {
		for _, p := range m.programs {
			select {
			case <-p.ended:
			default:
				p.leave()
			}
		}
		eventually(c, "all programs have left", func() bool { return m.counter("programs") == 0 })
	}
	c.settle()
	c.stop()
	for i, m := range c.members {
		n := m.node
		if m.err != nil {
			c.Errorf("node %d: %v", i, m.err)
		}
		for what, left := range map[string]int{
			"pages revoked and not sent": len(n.drive.exec.contents.saved), "pages that wait to be installed": len(n.drive.exec.contents.stash), "pages that effects wait for": len(n.drive.loads.byPage), "pages that threads wait for": len(n.meter.waits.away), "pages that are here, and that they wait for": len(n.meter.waits.here),
			"pages that are prefetched": len(n.fetcher.byPage), "prefetches to go on with": len(n.fetcher.ready),
			"faults held back":  len(n.intake.parked) + len(n.intake.known) + len(n.intake.held),
			"threads that wait": len(n.intake.waiters.byPage), "pinned pages": len(n.pins.pages), "timers of pins": len(n.pins.breaks.list), "open calls": len(n.calls.open), "published locks": n.calls.words.Len(), "leases": len(n.drive.leases.list),
			"objects with something under way": n.drive.engine.Pending(),
		} {
			if left != 0 {
				c.Errorf("node %d has %d %s although nothing is under way", i, left, what)
			}
		}
	}
}

// eventually waits for something that other goroutines bring about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// counter reads a metric by its name.
func (m *member) counter(name string) uint64 {
	m.Helper()
	for _, c := range m.node.meter.counterList() {
		if c.Name == name {
			return c.Value
		}
	}
	m.Fatalf("no metric is called %q", name)
	return 0
}

// want checks counters that must have moved by exactly this much since the start.
func (m *member) want(counters map[string]uint64) {
	m.Helper()
	for name, want := range counters {
		if got := m.counter(name); got != want {
			m.Errorf("node %d: %s is %d, want %d", m.node.cfg.Self, name, got, want)
		}
	}
}

// prog is a program: it speaks internal/attach with its node, and its threads touch the node's fake
// table.
type prog struct {
	testing.TB
	conn    *attach.Conn
	table   *pagetabletest.Fake
	id      pagetable.ProcID
	welcome attach.Welcome

	page     *controlpage.Page
	scribble []byte // the same

	mu     sync.Mutex
	ticket uint64                       // the last one used
	open   map[uint64]chan attach.Reply // guarded by mu
	lost   string                       // reason of the Lost frame; valid once ended is closed
	ended  chan struct{}                // closed when the connection has ended
}

// dial connects to the node and says nothing.
func (m *member) dial() *attach.Conn {
	m.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := attach.Dial(ctx, m.socket)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { conn.Close() })
	return conn
}

func hello(rank int32) []byte {
	return attach.AppendHello(nil, &attach.Hello{Version: attach.Version, PID: uint32(unix.Getpid()), Rank: rank, Program: "test"})
}

// greet says Hello and takes the answer, a Welcome or a Refuse.
func greet(t testing.TB, conn *attach.Conn, frame []byte) (w attach.Welcome, r *attach.Refuse) {
	t.Helper()
	_ = conn.Write(frame) // as in handOver
	f := read(t, conn)
	if f.Kind == attach.KindRefuse {
		refuse, err := attach.DecodeRefuse(f.Body)
		if err != nil {
			t.Fatal(err)
		}
		return w, &refuse
	}
	if f.Kind != attach.KindWelcome {
		t.Fatalf("the answer to Hello is %v", f.Kind)
	}
	w, err := attach.DecodeWelcome(f.Body)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := conn.TakeFD()
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return w, nil
}

// handOver sends Trap and takes the answer, Ready or a Refuse. The fake table only closes the
// descriptor. line is the second socket, if there is one. The control page that comes with Ready
// stays with conn for the caller to take.
func handOver(t testing.TB, conn *attach.Conn, line ...int) *attach.Refuse {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// A node that refuses may have closed the connection before Write is over; its reason can be
	// read nevertheless.
	_ = conn.Write(attach.AppendTrap(nil, &attach.Trap{}), append([]int{fd}, line...)...)
	f := read(t, conn)
	if f.Kind == attach.KindReady {
		return nil
	}
	r, err := attach.DecodeRefuse(f.Body)
	if err != nil {
		t.Fatalf("the answer to Trap is %v: %v", f.Kind, err)
	}
	return &r
}

func write(t testing.TB, conn *attach.Conn, frames []byte) {
	t.Helper()
	if err := conn.Write(frames); err != nil {
		t.Fatal(err)
	}
}

// read takes a frame, whose body is the caller's.
func read(t testing.TB, conn *attach.Conn) attach.Frame {
	t.Helper()
	f, err := readFrame(conn)
	if err != nil {
		t.Fatalf("read a frame: %v", err)
	}
	return f
}

// readFrame is ReadFrame, but does not wait for ever.
func readFrame(conn *attach.Conn) (attach.Frame, error) {
	hung := time.AfterFunc(patience, conn.Shutdown)
	defer hung.Stop()
	f, err := conn.ReadFrame()
	f.Body = slices.Clone(f.Body)
	return f, err
}

// closedBy checks that the daemon ends the connection, and returns why, if it says so.
func closedBy(t testing.TB, conn *attach.Conn) (lost string) {
	t.Helper()
	for {
		f, err := readFrame(conn)
		if err == nil && f.Kind == attach.KindLost {
			lost, err = attach.DecodeLost(f.Body)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("the connection ended with %v", err)
			}
			return lost
		}
	}
}

// join starts a program that has any rank that is free.
func (m *member) join() *prog { m.Helper(); return m.joinAs(attach.NoRank) }

func (m *member) joinAs(rank int32) *prog { m.Helper(); return m.joinWith(hello(rank)) }

// joinWith starts a program that says this first, and has a second socket if that is given.
func (m *member) joinWith(frame []byte, line ...int) *prog {
	m.Helper()
	m.joins.Lock() // one at a time, so that the newest number at the table is this program's
	defer m.joins.Unlock()
	p := &prog{TB: m.TB, conn: m.dial(), table: m.table, open: map[uint64]chan attach.Reply{}, ended: make(chan struct{})}
	w, refused := greet(m, p.conn, frame)
	if refused != nil {
		m.Fatalf("refused: %s", refused.Reason)
	}
	p.welcome = w
	if refused := handOver(m, p.conn, line...); refused != nil {
		m.Fatalf("refused: %s", refused.Reason)
	}
	ids := m.table.Attached()
	p.id = ids[len(ids)-1]
	p.takePage()
	m.programs = append(m.programs, p)
	go p.takeReplies()
	return p
}

// takePage maps the control page that came with Ready, once as programs do, and once as one that
// will scribble.
func (p *prog) takePage() {
	p.Helper()
	fd, err := p.conn.TakeFD()
	if err != nil {
		p.Fatal(err)
	}
	if p.scribble, err = unix.Mmap(fd, 0, controlpage.Bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { unix.Munmap(p.scribble) })
	if p.page, err = controlpage.Map(fd); err != nil {
		p.Fatal(err)
	}
}

func (p *prog) takeReplies() {
	defer close(p.ended)
	defer p.conn.Discard()
	for {
		f, err := p.conn.ReadFrame()
		if err != nil {
			return
		}
		if f.Kind == attach.KindLost {
			p.lost, _ = attach.DecodeLost(f.Body)
			return
		}
		r, err := attach.DecodeReply(f.Body)
		if err != nil {
			p.Errorf("%v: %v", f.Kind, err)
			return
		}
		r.Payload = slices.Clone(r.Payload)
		p.mu.Lock()
		waiting := p.open[r.Ticket]
		delete(p.open, r.Ticket)
		p.mu.Unlock()
		if waiting == nil {
			p.Errorf("the node answered call %d, which nobody has open", r.Ticket)
			return
		}
		waiting <- r
	}
}

// call makes a call and returns where its answer will be. A ticket is chosen unless c has one.
func (p *prog) call(c attach.Call) (ticket uint64, answer chan attach.Reply) {
	p.Helper()
	p.mu.Lock()
	if c.Ticket == 0 {
		p.ticket++
		c.Ticket = p.ticket
	}
	answer = make(chan attach.Reply, 1)
	p.open[c.Ticket] = answer
	p.mu.Unlock()
	write(p, p.conn, attach.AppendCall(nil, &c))
	return c.Ticket, answer
}

// answer waits for the answer of a call.
func (p *prog) answer(of chan attach.Reply) attach.Reply {
	p.Helper()
	select {
	case r := <-of:
		return r
	case <-p.ended:
		p.Fatalf("the connection ended (%q) before the answer", p.lost)
	case <-time.After(patience):
		p.Fatal("no answer")
	}
	return attach.Reply{}
}

// do makes a call and waits for the answer.
func (p *prog) do(c attach.Call) attach.Reply {
	p.Helper()
	_, answer := p.call(c)
	return p.answer(answer)
}

// ok is do for a call that must succeed.
func (p *prog) ok(c attach.Call) attach.Reply {
	p.Helper()
	r := p.do(c)
	if r.Status != attach.StatusOK {
		p.Fatalf("%v: %v %q", c.Op, r.Status, r.Payload)
	}
	return r
}

func (p *prog) cancel(ticket uint64) {
	p.Helper()
	write(p, p.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpCancel, Ticket: ticket}))
}

// sync returns when the node has dealt with everything that this program has said.
func (p *prog) sync() {
	p.Helper()
	p.ok(attach.Call{Op: attach.OpStats})
}

func (p *prog) acquire(lock uint64, a attach.Access) attach.Reply {
	p.Helper()
	return p.do(attach.Call{Op: attach.OpAcquire, Object: lock, Access: a})
}

// repair is acquire for a program that repairs what a dead holder has left.
func (p *prog) repair(lock uint64) attach.Reply {
	p.Helper()
	return p.do(attach.Call{Op: attach.OpRepair, Object: lock, Access: attach.Write})
}

func (p *prog) release(lock uint64, a attach.Access) {
	p.Helper()
	write(p, p.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpRelease, Object: lock, Access: a}))
}

func bindCall(name string, words uint64) attach.Call {
	return attach.Call{Op: attach.OpBind, Name: name, Object: attach.NameHash(attach.NameMemory, name), Count: words, ElemBytes: 8, TypeHash: 1, Signature: "uint64"}
}

func unbindCall(name string) attach.Call {
	return attach.Call{Op: attach.OpUnbind, Name: name, Object: attach.NameHash(attach.NameMemory, name)}
}

// bind returns the first of count pages.
func (p *prog) bind(name string, pages uint64) pagetable.Page {
	p.Helper()
	return p.bindAs(bindCall(name, pages*512))
}

// replicatedCall is a call that binds memory which survives the loss of so many nodes.
func replicatedCall(name string, pages uint64, replicas uint8) attach.Call {
	c := bindCall(name, pages*512)
	c.Replicas = replicas
	return c
}

// bindAs is bind by such a call, of words.
func (p *prog) bindAs(c attach.Call) pagetable.Page {
	p.Helper()
	first, count, err := attach.DecodePages(p.ok(c).Payload)
	if err != nil || count != c.Count/512 {
		p.Fatalf("bind of %d words gave %d pages: %v", c.Count, count, err)
	}
	return pagetable.Page(first)
}

// access starts a load or a store by a thread of its own.
func (p *prog) access(page pagetable.Page, write bool, do func(page []byte)) chan error {
	done := make(chan error, 1)
	go func() { done <- p.table.Access(p.id, page, write, do) }()
	return done
}

// settled waits for an access.
func (p *prog) settled(access chan error) {
	p.Helper()
	select {
	case err := <-access:
		if err != nil {
			p.Fatal(err)
		}
	case <-time.After(patience):
		p.Fatal("an access never got through")
	}
}

func (p *prog) load(page pagetable.Page, off int) (v uint64) {
	p.Helper()
	p.settled(p.access(page, false, func(b []byte) { v = binary.NativeEndian.Uint64(b[off:]) }))
	return v
}

func (p *prog) store(page pagetable.Page, off int, v uint64) {
	p.Helper()
	p.settled(p.access(page, true, func(b []byte) { binary.NativeEndian.PutUint64(b[off:], v) }))
}

func (p *prog) wantLoad(page pagetable.Page, off int, want uint64) {
	p.Helper()
	if v := p.load(page, off); v != want {
		p.Errorf("page %d holds %d, want %d", page, v, want)
	}
}

// leave ends the program in order.
func (p *prog) leave() {
	p.Helper()
	write(p, p.conn, attach.AppendBye(nil))
	p.die()
}

// die ends the program as SIGKILL does.
func (p *prog) die() {
	p.table.Kill(p.id)
	p.conn.Close()
	<-p.ended
}

// wantLost checks that the program is told that the cluster is broken, and why.
func (p *prog) wantLost(reason string) {
	p.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.Fatal("the program was not told that the cluster is broken")
	}
	if !strings.Contains(p.lost, reason) {
		p.Errorf("the program was told %q, which does not say %q", p.lost, reason)
	}
}

// pageAt is a page whose home is the given node: the index-th.
func (c *cluster) pageAt(home, index int) pagetable.Page {
	cfg := protocol.Config{Nodes: len(c.members), HomeStripe: HomeStripe}
	for page := range uint64(testPages) {
		if cfg.Home(protocol.PageObject(page)) != protocol.NodeID(home) {
			continue
		}
		if index == 0 {
			return pagetable.Page(page)
		}
		index--
	}
	c.Fatalf("no page has home %d", home)
	return 0
}

// simDelays are delays of up to some polls.
func simDelays(seed uint64) sim.Options { return sim.Options{Seed: seed, MaxDelay: 30} }

// lone is the place of a reactor that is its daemon's only one.
func lone() *partition { return newPartition(0, stripes.Division{}, nil, newHistograms()) }
