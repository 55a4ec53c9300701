package node

import (
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport"

	"golang.org/x/sys/unix"
)

// ring is one direction between two nodes of one goroutine. It never allocates after its first
// round: what allocates in these tests is the node.
type ring struct {
	frames              [256]ringFrame
	head, flushed, tail int // delivered up to head, on their way up to flushed, sent up to tail
}

type ringFrame struct {
	control []byte
	payload *ringPage
}

// ringPage is a payload of a pool.
type ringPage struct {
	pool *[]*ringPage
	data []byte
	kept bool
}

func (p *ringPage) Bytes() []byte { return p.data }
func (p *ringPage) Keep()         { p.kept = true }
func (p *ringPage) Release()      { *p.pool = append(*p.pool, p) }

// ringNet is the transport of one of two nodes.
type ringNet struct {
	self    transport.NodeID
	in, out *ring
	pool    []*ringPage
	fd      int
}

func (r *ringNet) Self() transport.NodeID { return r.self }
func (r *ringNet) Nodes() int             { return 2 }
func (r *ringNet) PageBytes() int         { return 4096 }

func (r *ringNet) Lease(transport.NodeID) transport.Payload {
	if n := len(r.pool); n > 0 {
		p := r.pool[n-1]
		r.pool = r.pool[:n-1]
		return p
	}
	return &ringPage{pool: &r.pool, data: make([]byte, 4096)}
}

func (r *ringNet) Send(_ transport.NodeID, control []byte, payload transport.Payload) error {
	f := &r.out.frames[r.out.tail%len(r.out.frames)]
	r.out.tail++
	f.control = append(f.control[:0], control...)
	f.payload, _ = payload.(*ringPage)
	return nil
}

func (r *ringNet) Poll(h transport.Handler, max int) (int, error) {
	delivered := 0
	for ; delivered < max && r.in.head < r.in.flushed; delivered++ {
		f := &r.in.frames[r.in.head%len(r.in.frames)]
		r.in.head++
		if f.payload == nil {
			h.Frame(1-r.self, f.control, nil)
			continue
		}
		f.payload.kept = false
		h.Frame(1-r.self, f.control, f.payload)
		if !f.payload.kept {
			f.payload.Release()
		}
	}
	return delivered, nil
}

func (r *ringNet) Flush()      { r.out.flushed = r.out.tail }
func (r *ringNet) WaitFD() int { return r.fd }
func (r *ringNet) Arm() bool {
	r.Flush()
	return r.in.head < r.in.flushed
}
func (r *ringNet) Disconnect(transport.NodeID, error) {}
func (r *ringNet) Readmit(transport.NodeID)           {}
func (r *ringNet) Stats() transport.Stats             { return transport.Stats{} }
func (r *ringNet) Close() error                       { return unix.Close(r.fd) }

// bareTable does nothing, at once. Its pages read as ones.
type bareTable struct{ fd int }

func (b *bareTable) PageBytes() int                              { return 4096 }
func (b *bareTable) Pages() uint64                               { return testPages }
func (b *bareTable) Attach(pagetable.ProcID, int, uintptr) error { return nil }
func (b *bareTable) Detach(pagetable.ProcID, bool)               {}
func (b *bareTable) Poll([]pagetable.Event) (int, error)         { return 0, nil }
func (b *bareTable) WaitFD() int                                 { return b.fd }
func (b *bareTable) Drop(pagetable.Page, uint64) (pagetable.Outcome, error) {
	return pagetable.Done, nil
}
func (b *bareTable) MemFD() int   { return b.fd }
func (b *bareTable) Close() error { return unix.Close(b.fd) }
func (b *bareTable) MakeWritable(pagetable.Page) (pagetable.Outcome, error) {
	return pagetable.Done, nil
}
func (b *bareTable) Lose(pagetable.Page) (pagetable.Outcome, error)      { return pagetable.Done, nil }
func (b *bareTable) Downgrade(pagetable.Page) (pagetable.Outcome, error) { return pagetable.Done, nil }
func (b *bareTable) Install(pagetable.Page, []byte, bool, pagetable.ProcID) (pagetable.Outcome, error) {
	return pagetable.Done, nil
}
func (b *bareTable) Map(pagetable.Page, bool, pagetable.ProcID) (pagetable.Outcome, error) {
	return pagetable.Done, nil
}

func (b *bareTable) Revoke(_ pagetable.Page, into []byte) (pagetable.Outcome, error) {
	return pagetable.Done, b.Read(0, into)
}

func (b *bareTable) Operate(run *pagetable.Run, outcomes []pagetable.Outcome) error {
	return pagetable.OneByOne(b, run, outcomes)
}

func (b *bareTable) Read(_ pagetable.Page, into ...[]byte) error {
	for _, page := range into {
		for i := range page {
			page[i] = 1
		}
	}
	return nil
}

// pair is two nodes that one goroutine drives by hand.
type pair struct {
	nodes  [2]*Node
	thread uint32
}

func newPair(t testing.TB) *pair {
	t.Helper()
	var there, back ring
	var p pair
	for i, lines := range [2][2]*ring{{&there, &back}, {&back, &there}} {
		var fds [2]int
		for j := range fds {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
			if err != nil {
				t.Fatal(err)
			}
			fds[j] = fd
		}
		l, _ := listen(t)
		cfg := testConfig(i, 2, 2, l)
		if err := cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		n, err := assemble(cfg, lone(), &bareTable{fds[0]}, &network{Transport: &ringNet{self: transport.NodeID(i), in: lines[0], out: lines[1], fd: fds[1]}})
		if err != nil {
			t.Fatal(err)
		}
		n.intake.waiters.attached(1)
		p.nodes[i] = n
		t.Cleanup(func() { n.close(nil) })
	}
	return &p
}

// withoutHolds has a node that has not begun keep no page for itself.
func withoutHolds(n *Node) {
	r := rules(&n.cfg, lone(), testPages)
	r.Hold = 0
	n.drive.engine = protocol.New(r)
}

// gain makes a thread of node who fault on a page and lets both nodes work until the page is there.
func (p *pair) gain(who int, page pagetable.Page, write bool) {
	want := protocol.Read
	if write {
		want = protocol.Write
	}
	ev := pagetable.Event{Kind: pagetable.Fault, Proc: 1, Page: page, Write: write, Thread: p.thread}
	// the same thread again would seem not to get through, and its pages be held longer and longer
	p.thread++
	p.nodes[who].clock.tick()
	p.nodes[who].loop.tableEvent(&ev)
	p.nodes[who].drive.end()
	for looks := 0; p.nodes[who].drive.engine.Access(protocol.PageObject(uint64(page))) < want; looks++ {
		if looks == 1<<20 { // longer than any hold
			panic("the page does not come")
		}
		p.look()
	}
}

func (p *pair) look() {
	for _, n := range p.nodes {
		n.clock.tick()
		n.loop.look(false)
	}
}

// faults is one round in which a page goes through every kind of fault that needs another node.
func (p *pair) faults(page pagetable.Page) {
	p.gain(0, page, false) // read miss: a downgrade there
	p.gain(0, page, true)  // upgrade: an invalidation there
	p.gain(1, page, false) // both have it,
	// and its owner upgrades: the page does not migrate, or the next round would have no upgrade
	p.gain(0, page, true)
	p.gain(1, page, true) // write miss: a revocation there
	for range 2 {
		p.look() // the last words to the home
	}
}

// TestFaultPathDoesNotAllocate: in a steady state a fault allocates nothing on either node. A
// garbage collection in the daemon would be paid by threads that wait for pages.
func TestFaultPathDoesNotAllocate(t *testing.T) {
	if protocol.Invariants {
		t.Skip("engines that check themselves allocate")
	}
	p := newPair(t)
	pages := []pagetable.Page{0, HomeStripe} // one homed here, one there
	for _, page := range pages {
		for range 100 {
			p.faults(page) // maps, slabs and buffers grow to their size
		}
		if allocs := testing.AllocsPerRun(200, func() { p.faults(page) }); allocs != 0 {
			t.Errorf("page %d, whose home is node %d: five faults make %v allocations", page, p.nodes[0].drive.engine.Home(protocol.PageObject(uint64(page))), allocs)
		}
	}
	for i, n := range p.nodes {
		if n.end.broken != nil {
			t.Errorf("node %d: %v", i, n.end.broken)
		}
		if n.meter.count.upgrades.Load()+n.meter.count.writeMisses.Load() < 200 {
			t.Errorf("node %d has seen only %d upgrades and %d write misses", i, n.meter.count.upgrades.Load(), n.meter.count.writeMisses.Load())
		}
	}
}

// TestFlush: what somebody waits for leaves at the end of the look that sent it; a Done may wait
// for company, but not for ever.
func TestFlush(t *testing.T) {
	n := newPair(t).nodes[0]
	out := n.net.Transport.(*ringNet).out
	send := func(m protocol.Message) { n.drive.exec.out.post(&m, nil) }
	want := func(when string, flushed int) {
		t.Helper()
		if out.flushed != flushed {
			t.Errorf("%s: %d messages have left, want %d", when, out.flushed, flushed)
		}
	}
	send(protocol.Done{Access: protocol.Read}.To(1, 0))
	n.drive.exec.out.flush()
	want("only a Done", 0)
	send(protocol.Request{Access: protocol.Read}.To(1, 0))
	n.drive.exec.out.flush()
	want("a Done and a Request", 2)
	send(protocol.Done{Access: protocol.Read}.To(1, 0))
	n.loop.look(false)
	want("a Done and an idle look", 3)
	send(protocol.Done{Access: protocol.Read}.To(1, 0))
	n.fetcher.goOn(&fetch{p: &program{}, over: false})
	n.fetcher.ready[0].over = true // a turn that does nothing but counts as one
	n.loop.look(false)
	want("a Done and a busy look", 3)
	n.fetcher.ready = append(n.fetcher.ready, &fetch{over: true})
	n.loop.look(true)
	want("a Done and a busy look with a check", 4)
}

// BenchmarkFaults is what the node itself costs: three faults, of which each moves a page or a
// right between two nodes, without network, page table and sleep.
func BenchmarkFaults(b *testing.B) {
	p := newPair(b)
	for _, n := range p.nodes {
		withoutHolds(n) // they are waiting, not work
	}
	p.faults(0)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		p.faults(0)
	}
}
