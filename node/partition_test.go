package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/internal/stripes"
	"dsmd/pagetable"
	"dsmd/pagetable/pagetabletest"
	"dsmd/protocol"
	"dsmd/transport/sim"

	"golang.org/x/sys/unix"
)

// TestToldAfterTheLook: what another reactor wants is done before this one sleeps, also if it comes
// after this look has looked for it and before the same look empties the descriptor that calls.
func TestToldAfterTheLook(t *testing.T) {
	start(t, setup{nodes: 1, before: func(n *Node) {
		if n.loop.obey() {
			t.Error("nobody has told anything")
		}
		called := false
		n.news.tell(func() { called = true })
		if busy := n.loop.serveReady(n.loop.poller.Check()); !busy || !called {
			t.Errorf("the descriptor was emptied: called %t, busy %t", called, busy)
		}
	}})
}

// stripe is how many pages in a row one reactor serves in these tests.
const stripe = 256

// parted is a cluster of nodes with several reactors each. Each reactor has a page table, and a
// network with its like.
type parted struct {
	*cluster
	tables [][]*pagetabletest.Fake // by node and reactor
	nets   []*sim.Network          // by reactor
}

// startParted starts one. configure is called for each reactor before it runs.
func startParted(t *testing.T, nodes, reactors int, configure func(*Node)) *parted {
	t.Helper()
	return startPartedAs(t, nodes, reactors, func(*Config) {}, configure)
}

// startPartedAs is startParted with a configuration that change has changed.
func startPartedAs(t *testing.T, nodes, reactors int, change func(*Config), configure func(*Node)) *parted {
	t.Helper()
	var nets []*sim.Network
	for range reactors {
		nets = append(nets, sim.NewNetwork(nodes, 4096, sim.Options{}))
	}
	c := &parted{cluster: &cluster{TB: t, net: nets[0]}, nets: nets}
	for i := range nodes {
		m := &member{TB: t, done: make(chan struct{})}
		l, name := listen(t)
		m.socket = name
		cfg := testConfig(i, nodes, nodes, l)
		cfg.Core.Reactors = reactors
		change(&cfg)
		if err := cfg.setDefaults(); err != nil {
			t.Fatal(err)
		}
		all, tables, latency := make([]*Node, reactors), make([]*pagetabletest.Fake, reactors), newHistograms()
		for number := reactors - 1; number >= 0; number-- {
			own := cfg
			if number > 0 {
				own.Socket = nil
			}
			s := newPartition(number, stripes.Of(stripe, reactors), all, latency)
			tables[number] = pagetabletest.NewFake(pagetabletest.FakeConfig{Pages: testPages})
			var err error
			if all[number], err = assemble(own, s, tables[number], &network{Transport: nets[number].Node(i)}); err != nil {
				t.Fatal(err)
			}
			all[number].end.farewell = patience
			if configure != nil {
				configure(all[number])
			}
		}
		m.node, m.table = all[0], tables[0]
		ctx, cancel := context.WithCancel(context.Background())
		m.cancel = cancel
		go func() {
			defer close(m.done)
			m.err = m.node.Run(ctx)
		}()
		c.members, c.tables = append(c.members, m), append(c.tables, tables)
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.cancel()
		}
		for _, m := range c.members {
			m.ended()
		}
	})
	return c
}

// greeted is a connection to a node that has been welcomed.
func (c *parted) greeted(node int) (*attach.Conn, attach.Welcome) {
	c.Helper()
	conn := c.members[node].dial()
	w, refused := greet(c, conn, hello(attach.NoRank))
	if refused != nil {
		c.Fatalf("refused: %s", refused.Reason)
	}
	for range w.Reactors - 1 {
		fd, err := conn.TakeFD()
		if err != nil {
			c.Fatal(err)
		}
		unix.Close(fd)
	}
	return conn, w
}

// descriptors are so many, which the test closes.
func (c *parted) descriptors(n int) (fds []int) {
	c.Helper()
	for range n {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			c.Fatal(err)
		}
		c.Cleanup(func() { unix.Close(fd) })
		fds = append(fds, fd)
	}
	return fds
}

// join attaches a program to a node.
func (c *parted) join(node int) *prog {
	c.Helper()
	p := &prog{TB: c, table: c.tables[node][0], open: map[uint64]chan attach.Reply{}, ended: make(chan struct{})}
	p.conn, p.welcome = c.greeted(node)
	write := p.conn.Write(attach.AppendTrap(nil, &attach.Trap{}), c.descriptors(int(p.welcome.Reactors))...)
	if f := read(c, p.conn); write != nil || f.Kind != attach.KindReady {
		c.Fatalf("the answer to Trap is %v, %v", f.Kind, write)
	}
	ids := p.table.Attached()
	p.id = ids[len(ids)-1]
	p.takePage()
	go p.takeReplies()
	return p
}

// touch loads or stores a byte of a page by a thread of its own, at the reactor that has it.
func (c *parted) touch(p *prog, node int, page pagetable.Page, write bool, do func(page []byte)) chan error {
	done := make(chan error, 1)
	reactor := int(page) / stripe % len(c.tables[node])
	go func() { done <- c.tables[node][reactor].Access(p.id, page, write, do) }()
	return done
}

// TestPartedMemory: pages of all stripes are shared, and are zeros again when they were freed,
// however often.
func TestPartedMemory(t *testing.T) {
	for _, reactors := range []int{2, 4} {
		c := startParted(t, 2, reactors, nil)
		a, b := c.join(0), c.join(1)
		for round := range 30 {
			first := a.bind("m", 3*stripe)
			if b.bind("m", 3*stripe) != first {
				t.Fatal("the same memory lies elsewhere")
			}
			for page := first; page < first+3*stripe; page += stripe / 2 {
				a.settled(c.touch(a, 0, page, true, func(x []byte) {
					if x[0] != 0 {
						t.Errorf("round %d: page %d begins as %d", round, page, x[0])
					}
					x[0] = 7
				}))
				b.settled(c.touch(b, 1, page, false, func(x []byte) {
					if x[0] != 7 {
						t.Errorf("round %d: page %d is %d at node 1", round, page, x[0])
					}
				}))
			}
			a.ok(unbindCall("m"))
			b.ok(unbindCall("m"))
		}
	}
}

// TestPartedCalls: calls about pages of several stripes are one call, whichever reactors have a
// part in it, and what a daemon says of itself is the sum of what they say.
func TestPartedCalls(t *testing.T) {
	c := startParted(t, 2, 2, nil)
	a, m := c.join(0), c.members[0]
	first := uint64(a.bind("m", 3*stripe))
	run := func(op attach.Op, at, count uint64) attach.Call {
		return attach.Call{Op: op, Object: at, Count: count, Access: attach.Write}
	}
	a.ok(run(attach.OpPrefetch, first, 3*stripe))
	a.ok(run(attach.OpPrefetch, stripe, 1)) // of reactor 1 alone
	if s := m.ask(); s["prefetch_calls"] != 2 || s["prefetched_pages"] != 3*stripe || s["programs"] != 1 || s["members"] != 2 {
		t.Errorf("%d calls fetched %d pages, of %d programs on %d nodes", s["prefetch_calls"], s["prefetched_pages"], s["programs"], s["members"])
	}
	u, err := attach.DecodeUsage(m.observe(attach.OpUsage))
	if err != nil || len(u.Largest) != 1 || u.Largest[0].Pages != 3*stripe || u.Largest[0].Owned != 3*stripe {
		t.Errorf("usage is %+v, %v", u, err)
	}
	pin, answer := a.call(run(attach.OpPin, first, 3*stripe))
	if r := a.answer(answer); r.Status != attach.StatusOK {
		t.Fatalf("Pin: %v", r.Status)
	}
	write(t, a.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpUnpin, Object: pin}))
	if s := m.ask(); s["pin_calls"] != 1 {
		t.Errorf("%d calls have pinned", s["pin_calls"])
	}
	for range 20 { // what was pinned in part is not pinned when the call is given up
		ticket, answer := a.call(run(attach.OpPin, first, 3*stripe))
		a.cancel(ticket)
		if r := a.answer(answer); r.Status == attach.StatusOK {
			write(t, a.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpUnpin, Object: ticket}))
		} else if r.Status != attach.StatusCanceled {
			t.Fatalf("a Pin that is given up: %v", r.Status)
		}
	}
	b := c.join(1)
	b.bind("m", 3*stripe)
	for page := pagetable.Page(first); page < pagetable.Page(first+3*stripe); page += stripe {
		b.settled(c.touch(b, 1, page, true, func([]byte) {}))
	}
	if s := m.ask(); s["pin_breaks"] != 0 {
		t.Error("something was still pinned")
	}
	if r := a.do(run(attach.OpPin, testPages-1, 2)); r.Status != attach.StatusUnknown {
		t.Errorf("Pin beyond the region: %v", r.Status)
	}
	for _, op := range []attach.Op{attach.OpWaits, attach.OpPrograms} {
		m.observe(op)
	}
}

// TestPartedPinBreaks: a pin breaks at the reactor whose page others have waited for, and ends in
// order.
func TestPartedPinBreaks(t *testing.T) {
	c := startParted(t, 2, 2, func(n *Node) { n.pins.patience = 10 * time.Millisecond })
	a, b := c.join(0), c.join(1)
	first := a.bind("m", 2*stripe)
	b.bind("m", 2*stripe)
	pin, answer := a.call(attach.Call{Op: attach.OpPin, Object: uint64(first), Count: 2 * stripe, Access: attach.Write})
	if r := a.answer(answer); r.Status != attach.StatusOK {
		t.Fatalf("Pin: %v", r.Status)
	}
	b.settled(c.touch(b, 1, first+stripe, true, func([]byte) {}))
	write(t, a.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpUnpin, Object: pin}))
	if s := c.members[0].ask(); s["pin_breaks"] != 1 {
		t.Errorf("%d pins were broken", s["pin_breaks"])
	}
	b.settled(c.touch(b, 1, first, true, func([]byte) {}))
}

// TestPartedTraps: a program hands over a trap for each reactor. One that hands over too few, that
// has a page under the trap of another reactor, or that goes before it is ready, is parted with,
// and others take its place.
func TestPartedTraps(t *testing.T) {
	c := startParted(t, 1, 3, nil)
	trap := attach.AppendTrap(nil, &attach.Trap{})
	for range 20 {
		conn, _ := c.greeted(0)
		if err := conn.Write(trap, c.descriptors(2)...); err != nil {
			t.Fatal(err)
		}
		closedBy(t, conn)
		conn, _ = c.greeted(0)
		if err := conn.Write(trap, c.descriptors(3)...); err != nil {
			t.Fatal(err)
		}
		conn.Close() // Ready may be on its way
		eventually(t, "it has gone", func() bool { return c.members[0].counter("programs") == 0 && len(c.tables[0][2].Attached()) == 0 })
	}
	p := c.join(0)
	first := p.bind("m", 3*stripe)
	err := errors.New("the page has come")
	go func() { err = c.tables[0][1].Access(p.id, first, false, func([]byte) {}) }()
	select {
	case <-p.ended:
	case <-time.After(patience):
		t.Fatalf("a program that lies about who serves a page is not cut off: %v", err)
	}
	if want := errForeignPage.Error(); !strings.Contains(p.lost, want) {
		t.Errorf("it is told %q, want %q", p.lost, want)
	}
	eventually(t, "it has gone", func() bool {
		for _, table := range c.tables[0] {
			if len(table.Attached()) > 0 {
				return false
			}
		}
		return true
	})
	conn, _ := c.greeted(0)
	if err := conn.Write(trap, c.descriptors(attach.MaxReactors+1)...); err != nil {
		t.Fatal(err)
	}
	closedBy(t, conn) // the one behind the traps is no socket
	p = c.join(0)
	p.settled(c.touch(p, 0, p.bind("m", 3*stripe)+stripe, true, func([]byte) {}))
}

// TestPartedAhead: a thread that goes over many stripes has each reactor read ahead from one of its
// stripes to the next, and does not begin anew in each.
func TestPartedAhead(t *testing.T) {
	const pages = 7 * stripe
	c := startParted(t, 2, 2, nil)
	a, b, m := c.join(0), c.join(1), c.members[1]
	first := a.bind("m", pages)
	b.bind("m", pages)
	a.ok(attach.Call{Op: attach.OpPrefetch, Object: uint64(first), Count: pages, Access: attach.Write})
	walk := func(from, to pagetable.Page) (misses uint64) {
		before := m.ask()["faults_read"]
		for page := first + from; page < first+to; page++ {
			reactor := int(page) / stripe % 2
			if err := c.tables[1][reactor].AccessBy(1<<31+1, b.id, page, false, func([]byte) {}); err != nil {
				t.Fatal(err)
			}
		}
		return m.ask()["faults_read"] - before
	}
	begin := walk(0, 3*stripe)
	if on := walk(3*stripe, pages); on > begin/2 || on == 0 {
		t.Errorf("%d misses in three stripes, and then %d in four", begin, on)
	}
}

// TestPartedFlood: a program may not make more calls than may be open, though the reactor that
// reads them has done its part of each.
func TestPartedFlood(t *testing.T) {
	c := startParted(t, 1, 2, nil)
	p := c.join(0)
	lead := c.members[0].node
	done := make(chan error)
	lead.news.tell(func() {
		x := lead.programs.byID[protocol.ClientID(p.id)]
		x.joint = map[uint64]*joint{}
		for i := range uint64(maxCalls) {
			x.joint[1000+i] = &joint{op: attach.OpPrefetch, missing: 1}
		}
		done <- lead.programs.call(x, &attach.Call{Op: attach.OpPrefetch, Ticket: 1, Object: stripe, Count: 1, Access: attach.Write})
	})
	if err := <-done; !errors.Is(err, attach.ErrMalformed) {
		t.Errorf("one more call: %v", err)
	}
}

// TestPartedFaultLog: a fault has the lock under which it has happened, whichever reactor serves
// it.
func TestPartedFaultLog(t *testing.T) {
	c := startParted(t, 2, 2, nil)
	a, b := c.join(0), c.join(1)
	first := a.bind("m", 2*stripe)
	b.bind("m", 2*stripe)
	a.had(lockName)
	a.locks(lockName)
	for reactor, net := range c.nets {
		page := c.members[0].node.partition.all[reactor].partition.next(first)
		b.settled(c.touch(b, 1, page, true, func([]byte) {}))
		log := func() faultlog.Batch {
			x, err := faultlog.Decode(c.members[0].observed(attach.Call{Op: attach.OpFaultLog, Ticket: 3, Count: attach.FaultLogOf(reactor, uint8(faultlog.OfFaults))}))
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		log() // from here on there is one
		net.Stall(1, 0)
		open := c.touch(a, 0, page, true, func([]byte) {})
		eventually(t, "the lock of who waits is known", func() (known bool) {
			c.onReactor(0, reactor, func(n *Node) {
				faults := n.meter.waits.away[page].faults
				known = len(faults) == 1 && faults[0].Lock == lockName
			})
			return known
		})
		net.Resume(1, 0)
		a.settled(open)
		if x := log(); len(x.Faults) != 1 || x.Faults[0].Lock != lockName {
			t.Errorf("reactor %d: %+v", reactor, x.Faults)
		}
	}
}

// TestPartedCheckpointFile: each reactor gets the file of a checkpoint once, however many rounds it
// takes.
func TestPartedCheckpointFile(t *testing.T) {
	const reactors = 3
	var closed atomic.Int64
	c := startParted(t, 1, reactors, func(n *Node) { n.programs.replies.closer.hold = func() { closed.Add(1) } })
	a := c.join(0)
	first := a.bind("m", reactors*stripe)
	for page := first; page < first+reactors*stripe; page += stripe {
		a.settled(c.touch(a, 0, page, true, func(x []byte) { x[0] = 1 }))
	}
	s := a.save(1, 0, first, reactors*stripe)
	s.ok(s.call(false, true))
	for range 3 {
		s.ok(s.call(true, false))
	}
	if saved := s.finish(); len(saved) != reactors { // nobody has touched the others
		t.Errorf("%d pages are saved", len(saved))
	}
	for reactor := range reactors {
		c.onReactor(0, reactor, func(*Node) {})
	}
	const files = 2 + reactors - 1 // the order and the pages, and the latter for each of the others
	eventually(t, "all files are closed", func() bool { return closed.Load() >= files })
	for _, o := range c.members[0].node.partition.all {
		x := o.programs.replies.closer
		eventually(t, "nothing is to be closed", func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.closing == 0
		})
	}
	if n := closed.Load(); n != files {
		t.Errorf("%d files were closed, want %d", n, files)
	}
	// A reactor that has given its part up has no file, and the next round fails.
	s = a.save(2, 0, first, reactors*stripe)
	s.ok(s.call(false, true))
	c.onReactor(0, 1, func(o *Node) { o.saver.dropProgram(o.saver.now.by) })
	if r := s.do(s.call(true, false)); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "begun here before") {
		t.Errorf("a round without a reactor: %v %q", r.Status, r.Payload)
	}
}

// TestPartedAnswerToNobody: a program ends while a call of it waits for another reactor. The answer
// does not go to whatever has the number of its socket by then.
func TestPartedAnswerToNobody(t *testing.T) {
	c := startParted(t, 1, 2, nil)
	p := c.join(0)
	release := c.holds(1)
	p.call(attach.Call{Op: attach.OpFallback, Payload: make([]byte, 16)})
	p.ok(attach.Call{Op: attach.OpLostRanks}) // the one that leads has read both
	var fd int
	c.onReactor(0, 0, func(n *Node) { fd = n.programs.byID[protocol.ClientID(p.id)].fd })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.die()
	eventually(t, "the number is free, and another socket has it", func() bool {
		got, err := unix.FcntlInt(uintptr(pair[0]), unix.F_DUPFD_CLOEXEC, fd)
		if err != nil {
			t.Fatal(err)
		}
		if got != fd {
			unix.Close(got)
		}
		return got == fd
	})
	defer func() {
		for _, fd := range []int{pair[0], pair[1], fd} {
			unix.Close(fd)
		}
	}()
	release()
	for _, reactor := range []int{1, 0} { // it has answered, and the one that leads does
		c.onReactor(0, reactor, func(*Node) {})
	}
	if n, _, err := unix.Recvfrom(pair[1], make([]byte, 100), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("somebody else is sent %d bytes, %v", n, err)
	}
}
