package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/internal/faultlog"
	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/pagetable/pagetabletest"
	"dsmd/protocol"
	"dsmd/transport/sim"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// leastRoom is for how many pages a node has room that has as little as can be.
const leastRoom = MinMemoryBytes / 4096

// census is a page table that knows which pages are there, and how many there have been at most. A
// page counts from when it is to be installed until it is certain that it is gone.
type census struct {
	pagetable.Table

	mu       sync.Mutex
	here     map[pagetable.Page]bool
	most     int
	dropping map[pagetable.Page]uint64 // runs that are to be dropped
}

func (x *census) Install(p pagetable.Page, data []byte, writable bool, proc pagetable.ProcID) (pagetable.Outcome, error) {
	x.mu.Lock()
	x.here[p] = true
	x.most = max(x.most, len(x.here))
	x.mu.Unlock()
	return x.Table.Install(p, data, writable, proc)
}

func (x *census) Revoke(p pagetable.Page, into []byte) (pagetable.Outcome, error) {
	out, err := x.Table.Revoke(p, into)
	if out == pagetable.Done {
		x.gone(p, 1)
	}
	return out, err
}

func (x *census) Drop(first pagetable.Page, count uint64) (pagetable.Outcome, error) {
	out, err := x.Table.Drop(first, count)
	if out == pagetable.Done {
		x.gone(first, count)
	} else {
		x.dropping[first] = count
	}
	return out, err
}

func (x *census) Operate(r *pagetable.Run, outcomes []pagetable.Outcome) error {
	return pagetable.OneByOne(x, r, outcomes)
}

func (x *census) Poll(events []pagetable.Event) (int, error) {
	n, err := x.Table.Poll(events)
	for _, ev := range events[:n] {
		switch {
		case ev.Kind != pagetable.Completed:
		case ev.Op == pagetable.OpRevoke:
			x.gone(ev.Page, 1)
		case ev.Op == pagetable.OpDrop:
			x.gone(ev.Page, x.dropping[ev.Page])
		}
	}
	return n, err
}

func (x *census) gone(first pagetable.Page, count uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for p := first; uint64(p-first) < count; p++ {
		delete(x.here, p)
	}
}

// peak is how many pages there have been at most.
func (x *census) peak() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.most
}

// tight is a cluster some of whose nodes have as little room as can be.
type tight struct {
	*cluster
	tables []*census // by node
	logs   []*observer.ObservedLogs
	setup  setup // for those that come back
}

// startTight starts a cluster in which the given nodes have little room.
func startTight(t *testing.T, s setup, little ...int) *tight {
	t.Helper()
	c := &tight{tables: make([]*census, s.nodes), logs: make([]*observer.ObservedLogs, s.nodes)}
	change := s.change
	s.change = func(cfg *Config) {
		if change != nil {
			change(cfg)
		}
		var core zapcore.Core
		core, c.logs[cfg.Self] = observer.New(zapcore.WarnLevel)
		cfg.Log = zap.New(core)
		for _, i := range little {
			if i == cfg.Self {
				cfg.Memory.Bytes = MinMemoryBytes
				if s.spill {
					cfg.Memory.Spill = "a folder of the test's"
				}
			}
		}
	}
	s.table = func(i int, table pagetable.Table) pagetable.Table {
		c.tables[i] = &census{Table: table, here: map[pagetable.Page]bool{}, dropping: map[pagetable.Page]uint64{}}
		dir := ""
		if s.spill {
			dir = t.TempDir()
		}
		with, _, err := backing.New(c.tables[i], dir)
		if err != nil {
			t.Fatal(err)
		}
		return with
	}
	c.setup, c.cluster = s, start(t, s)
	return c
}

// wantBound checks that no node has ever had more pages than it has room for, and has not said so.
func (c *tight) wantBound() {
	c.Helper()
	for _, m := range c.members {
		i := m.node.cfg.Self
		if m.node.cfg.Memory.Bytes == 0 {
			continue
		}
		if most := c.tables[i].peak(); most > leastRoom {
			c.Errorf("node %d has had %d pages, and has room for %d", i, most, leastRoom)
		}
		if n := c.warnings(i); n != 0 {
			c.Errorf("node %d has said %d times that there is no room", i, n)
		}
	}
}

// warnings is how often a node has said that no node has room.
func (c *tight) warnings(i int) int {
	return c.logs[i].FilterMessageSnippet("no node has room").Len()
}

// roomIsRight checks that what a node believes to be here is what is here. It returns false if
// something is under way, so that nobody can say. The reactor does it: a page table that is closed
// does not know any more what was in its files.
func (m *member) roomIsRight() (checked bool) {
	m.Helper()
	var wrong []string
	done := make(chan struct{})
	m.node.news.tell(func() { checked, wrong = m.node.whatIsHere(); close(done) })
	select {
	case <-done:
	case <-m.done:
		return true
	case <-time.After(patience):
		m.Fatal("the reactor does not answer")
	}
	for _, what := range wrong {
		m.Errorf("node %d: %s", m.node.cfg.Self, what)
	}
	return checked
}

// whatIsHere compares what the room of a node has with what its engine and its page table have, and
// returns what is wrong, if nothing is under way.
func (n *Node) whatIsHere() (idle bool, wrong []string) {
	r := n.room
	if !r.bounded() {
		return true, nil
	}
	// Pages that are freed are here until the page table has dropped them, too.
	if n.drive.engine.Pending() > 0 || n.drive.engine.Unfinished() != "" || len(r.dropping) > 0 || r.store.Loading() > 0 {
		return false, nil
	}
	here := 0
	for page := range pagetable.Page(r.store.Pages()) {
		has := n.drive.engine.Access(protocol.PageObject(uint64(page)))
		inMemory := has != protocol.None && !r.isSpilled(page)
		if inMemory {
			here++
		}
		if r.queue.Has(page) != inMemory {
			wrong = append(wrong, fmt.Sprintf("it has page %d for %v, in a file: %t, and its room says it is here: %t", page, has, r.isSpilled(page), r.queue.Has(page)))
		}
	}
	if got := n.meter.count.pages.Load(); got != int64(here) || r.queue.Len() != here {
		wrong = append(wrong, fmt.Sprintf("%d pages are here, its room has %d, and counted are %d", here, r.queue.Len(), got))
	}
	if x, ok := r.store.Table.(*census); ok && len(x.here) != here {
		wrong = append(wrong, fmt.Sprintf("%d pages are here, and its page table has %d", here, len(x.here)))
	}
	return true, wrong
}

// quiet is cluster.quiet, and before the programs leave each node must know what it has.
func (c *tight) quiet() {
	c.Helper()
	for _, m := range c.members {
		eventually(c, "nothing is under way", m.roomIsRight)
	}
	c.cluster.quiet()
}

// either runs a test on page tables that finish at once, or, if it is to be short, on such that
// finish later. .ci/run does both.
func either(t *testing.T, f func(t *testing.T, async bool)) {
	async := testing.Short()
	t.Run(map[bool]string{false: "direct", true: "pending"}[async], func(t *testing.T) {
		t.Parallel() // each has a cluster of its own
		f(t, async)
	})
}

// number writes the number of its page into each page of a run.
func (p *prog) number(first pagetable.Page, count int) {
	p.Helper()
	p.walk(1, first, count, true, func(i int, page []byte) { binary.NativeEndian.PutUint64(page, uint64(i)+1) })
}

// wantNumbers checks what number has written.
func (p *prog) wantNumbers(first pagetable.Page, count int) {
	p.Helper()
	p.wantNumbersFrom(0, first, count)
}

// wantNumbersFrom is wantNumbers of a run without so many pages at its beginning.
func (p *prog) wantNumbersFrom(begin int, first pagetable.Page, count int) {
	p.Helper()
	p.walk(2, first+pagetable.Page(begin), count-begin, false, func(i int, page []byte) {
		if v := binary.NativeEndian.Uint64(page); v != uint64(begin+i)+1 {
			p.Errorf("page %d of the run holds %d", begin+i, v)
		}
	})
}

// share binds as many pages in several programs.
func share(name string, pages uint64, of ...*prog) (first pagetable.Page) {
	for _, p := range of {
		p.Helper()
		first = p.bind(name, pages)
	}
	return first
}

// TestSweepOfMoreThanFits: a program reads, twice, four times as much as its node has room for.
// Copies are dropped, and nothing is moved to other nodes.
func TestSweepOfMoreThanFits(t *testing.T) {
	const pages = 4 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async}, 1)
		a, b := c.members[0].join(), c.members[1].join()
		first := share("x", pages, a, b)
		a.number(first, pages)
		for range 2 {
			b.wantNumbers(first, pages)
		}
		c.quiet()
		c.wantBound()
		m := c.members[1]
		m.want(map[string]uint64{"page_offers": 0, "pages_room": leastRoom})
		if n := m.counter("pages_evicted"); n < 2*(pages-leastRoom) {
			t.Errorf("%d copies were dropped", n)
		}
	})
}

// TestOwnedPagesMove: a program writes four times as much as its node has room for. What does not
// fit goes to the other nodes, and is as it was written wherever it is read.
func TestOwnedPagesMove(t *testing.T) {
	t.Parallel()
	const pages = 4 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 3, pages: pages + HomeStripe, async: async}, 1)
		a, b, d := c.members[0].join(), c.members[1].join(), c.members[2].join()
		first := share("x", pages, a, b, d)
		b.number(first, pages)
		for _, p := range []*prog{a, b, d} {
			p.wantNumbers(first, pages)
		}
		c.quiet()
		c.wantBound()
		m := c.members[1]
		if offers, taken := m.counter("page_offers"), m.counter("page_offers_taken"); taken < pages-leastRoom || offers < taken {
			t.Errorf("%d pages were offered, and %d taken", offers, taken)
		}
	})
}

// TestOwnedPagesAreNotTaken: pages that a node has given to others to make room were not taken from
// it: no allocation is blamed for that, and the log has no departures.
func TestOwnedPagesAreNotTaken(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: true}, 1)
	a, b := c.members[0].join(), c.members[1].join()
	first, m := share("x", pages, a, b), c.members[1]
	m.log(0)
	b.number(first, pages)
	eventually(t, "what does not fit is elsewhere", func() bool { return m.counter("page_offers_taken") >= pages-leastRoom })
	taken, log := m.waits().Taken, m.log(0)
	for i := range pagetable.Page(pages) { // one that is stored to here again was not taken either
		b.store(first+i, 8, 1)
	}
	back := 0
	for _, f := range m.log(0).Faults {
		if f.Taker != faultlog.NoNode {
			back++
		}
	}
	if taken > 0 || len(log.Departures) > 0 || back > 0 {
		t.Errorf("%d pages were taken, %d have departed, and %d were missed because of that", taken, len(log.Departures), back)
	}
	c.quiet()
}

// TestReadersOfOfferedPages: where a page that others have copies of moves for want of room, nobody
// writes it, and no reader's page was taken.
func TestReadersOfOfferedPages(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	c := startTight(t, setup{nodes: 3, pages: pages + HomeStripe, async: true}, 1)
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[2].join()
	first, m := share("x", pages, a, b, d), c.members[1]
	for i := range pagetable.Page(pages) {
		b.store(first+i, 0, 1)
		d.load(first+i, 0)
	}
	eventually(t, "what does not fit is elsewhere", func() bool { return m.counter("page_offers_taken") >= pages-leastRoom })
	for i, m := range c.members {
		if taken := m.waits().Taken; taken > 0 || m.counter("contended_pages") > 0 {
			t.Errorf("%d pages were taken from node %d", taken, i)
		}
	}
	c.quiet()
}

// TestNoRoomAnywhere: programs write more than all nodes have room for. They go on, and their node
// says so, once, and names memory as they do. When memory is freed, it parts with what is too much.
func TestNoRoomAnywhere(t *testing.T) {
	t.Parallel()
	const (
		pages   = 3 * leastRoom / 2 // twice
		ofAJob  = "\x00job\x00x"
		private = "\x00\x00/y" // a mapped file of the job without a name
	)
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: 2*pages + HomeStripe, async: async}, 0, 1)
		a, b := c.members[0].join(), c.members[1].join()
		x, y := share(ofAJob, pages, a, b), share(private, pages, a, b)
		a.number(x, pages)
		a.number(y, pages)
		for _, first := range []pagetable.Page{x, y} {
			b.wantNumbers(first, pages)
			a.wantNumbers(first, pages)
		}
		if n := c.warnings(0); n != 1 {
			t.Errorf("the node without room has said so %d times", n)
		}
		for _, line := range c.logs[0].FilterMessageSnippet("no node has room").All() {
			want := fmt.Sprintf("[x: %d pages /y: %d pages]", pages, pages)
			if text := fmt.Sprint(line.ContextMap()["largest_allocations"]); text != want {
				t.Errorf("it names %s as the largest allocations, want %s", text, want)
			}
		}
		m := c.members[0]
		if n := m.counter("pages"); n <= leastRoom {
			t.Errorf("the node has %d pages, and there is no room for more than that on the other", n)
		}
		a.ok(unbindCall(ofAJob))
		b.ok(unbindCall(ofAJob))
		eventually(t, "the node has no more pages than it has room for", func() bool { return m.counter("pages") <= leastRoom })
		a.wantNumbers(y, pages)
		b.wantNumbers(y, pages)
		c.quiet()
		for i, m := range c.members {
			if m.node.room.over {
				t.Errorf("node %d believes that no node has room", i)
			}
		}
	})
}

// TestRandomAccessWithLittleRoom: the programs of four nodes, which together have just enough room,
// or half of it and files, read and write pages at random. In each round each page has one writer,
// and is read by all as it was before.
func TestRandomAccessWithLittleRoom(t *testing.T) {
	t.Parallel()
	either(t, func(t *testing.T, async bool) { accessAtRandom(t, 3600, setup{async: async}) })
}

func accessAtRandom(t *testing.T, pages int, s setup) {
	const nodes, rounds, accesses = 4, 3, 100
	s.nodes, s.pages, s.net = nodes, uint64(pages)+HomeStripe, simDelays(7)
	c := startTight(t, s, 0, 1, 2, 3)
	var programs []*prog
	for _, m := range c.members {
		programs = append(programs, m.join())
	}
	first := share("x", uint64(pages), programs...)
	// Word r%2 of a page is written in round r, and read in the next.
	wrote := [2][]uint64{make([]uint64, pages), make([]uint64, pages)}
	for i, p := range programs {
		p.number(first+pagetable.Page(i*pages/nodes), pages/nodes)
		for page := range pages / nodes {
			wrote[0][i*pages/nodes+page] = uint64(page) + 1
		}
	}
	for round := 1; round <= rounds; round++ {
		mine, before := wrote[round%2], wrote[1-round%2]
		var all sync.WaitGroup
		for i, p := range programs {
			all.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for n := range accesses {
					own := rng.IntN(pages/nodes)*nodes + (round+i)%nodes
					mine[own] = uint64(round)<<32 | uint64(n)
					p.touch(first+pagetable.Page(own), true, func(b []byte) { binary.NativeEndian.PutUint64(b[8*(round%2):], mine[own]) })
					page, got := rng.IntN(pages), uint64(0)
					p.touch(first+pagetable.Page(page), false, func(b []byte) { got = binary.NativeEndian.Uint64(b[8*(1-round%2):]) })
					if got != before[page] {
						t.Errorf("round %d: page %d holds %#x for node %d, want %#x", round, page, got, i, before[page])
					}
				}
			})
		}
		all.Wait()
	}
	for i, m := range c.members {
		sleeps, events := m.counter("sleeps"), m.counter("messages_received")+m.misses()
		if events += m.counter("spill_writes") + m.counter("spill_reads"); sleeps > events {
			t.Errorf("node %d went to sleep %d times, and only %d messages, faults and pages of its file came", i, sleeps, events)
		}
	}
	c.quiet()
	c.wantBound()
}

// touch is an access by a thread of its own that need not be the test's.
func (p *prog) touch(page pagetable.Page, write bool, do func([]byte)) {
	if err := p.table.Access(p.id, page, write, do); err != nil {
		p.Error(err)
	}
}

// TestPinWithLittleRoom: a program can pin half of what its node has room for, though that is used
// up, and keeps it. More it cannot.
func TestPinWithLittleRoom(t *testing.T) {
	t.Parallel()
	const pages, half = 4 * leastRoom, leastRoom / 2
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async}, 1)
		m := c.members[1]
		a, b := c.members[0].join(), m.join()
		first := share("x", pages, a, b)
		b.number(first, pages)
		pin := attach.Call{Op: attach.OpPin, Object: uint64(first), Count: half + 1, Access: attach.Read}
		asked := m.counter("prefetched_pages")
		if r := b.do(pin); r.Status != attach.StatusNoSpace {
			t.Errorf("a pin of more than half of the room is answered with %v", r.Status)
		}
		m.want(map[string]uint64{"prefetched_pages": asked})
		for _, access := range []attach.Access{attach.Read, attach.Write} {
			ticket := b.pin(first, half, access)
			if r := b.do(attach.Call{Op: attach.OpPin, Object: uint64(first) + half, Count: 1, Access: attach.Read}); r.Status != attach.StatusNoSpace {
				t.Errorf("a pin beside one of half of the room is answered with %v", r.Status)
			}
			b.wantNumbersFrom(half, first, pages)
			before := m.misses()
			for i := range pagetable.Page(half) {
				b.wantLoad(first+i, 0, uint64(i)+1)
			}
			if n := m.misses() - before; n != 0 {
				t.Errorf("%d of %d pinned pages were not here any more", n, half)
			}
			b.unpin(ticket)
		}
		c.quiet()
		c.wantBound()
		m.want(map[string]uint64{"pin_breaks": 0})
	})
}

// TestPinWithoutRoom: where no node has room a program gets its pin all the same, though all that
// it has pinned so far could be dropped to make room for the rest.
func TestPinWithoutRoom(t *testing.T) {
	t.Parallel()
	const pages, half = 5 * leastRoom / 2, leastRoom / 2
	c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe}, 0, 1)
	a, b := c.members[0].join(), c.members[1].join()
	first := share("x", pages, a, b)
	b.number(first, pages/2)
	a.walk(1, first+pages/2, pages/2, true, func(_ int, page []byte) { page[0] = 1 })
	for range 3 {
		b.unpin(b.pin(first+pages/2, half, attach.Read))
		b.unpin(b.pin(first, half, attach.Write))
		a.unpin(a.pin(first, half, attach.Read))
	}
	a.wantNumbers(first, pages/2)
	c.quiet()
}

// TestPrefetchOfMoreThanFits: a program prefetches more than its node has room for. It is told that
// all is well, and the node has no more pages than it should.
func TestPrefetchOfMoreThanFits(t *testing.T) {
	const pages = 3 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async}, 1)
		a, b := c.members[0].join(), c.members[1].join()
		first := share("x", pages, a, b)
		a.number(first, pages)
		for _, access := range []attach.Access{attach.Read, attach.Write} {
			_, answer := b.prefetch(first, pages, access)
			if r := b.answer(answer); r.Status != attach.StatusOK {
				t.Errorf("prefetched for %v: %v", access, r.Status)
			}
		}
		b.wantNumbers(first, pages)
		c.quiet()
		c.wantBound()
	})
}

// TestLossWhileThereIsNoRoom: a node is lost while another parts with pages, to that one among
// others. What is not lost with it is as it was written.
func TestLossWhileThereIsNoRoom(t *testing.T) {
	t.Parallel()
	const pages = 2 * leastRoom
	for _, seed := range []uint64{0, 3} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			s := surviving(3, simDelays(seed))
			s.pages, s.async = pages+HomeStripe, seed%2 == 1
			c := startTight(t, s, 0, 1, 2)
			a, b := c.members[0].join(), c.members[1].join()
			first := share("x", pages, a, b)
			half := make(chan struct{})
			var writing sync.WaitGroup
			writing.Go(func() {
				for i := range pagetable.Page(pages) {
					if i == leastRoom+200*pagetable.Page(seed) {
						close(half)
					}
					err := a.table.AccessBy(1<<31, a.id, first+i, true, func(b []byte) { binary.NativeEndian.PutUint64(b, uint64(i)+1) })
					if err != nil && !errors.Is(err, pagetabletest.ErrLost) {
						t.Error(err)
					}
				}
			})
			<-half
			c.sever(2)
			writing.Wait()
			c.recovered(1, 0, 1)
			lost := 0
			for _, p := range []*prog{b, a} {
				for i := range pagetable.Page(pages) {
					v := uint64(0)
					err := <-p.access(first+i, false, func(b []byte) { v = binary.NativeEndian.Uint64(b) })
					switch {
					case errors.Is(err, pagetabletest.ErrLost):
						lost++
					case err != nil || v != uint64(i)+1:
						t.Errorf("page %d holds %d, %v", i, v, err)
					}
				}
			}
			if lost > pages { // of twice as many accesses
				t.Errorf("%d accesses to %d pages met one that is lost", lost, pages)
			}
			c.without(2)
			c.quiet()
		})
	}
}

// TestLeaverWithLittleRoom: a node that leaves hands over what it has to nodes that have as little
// room, and together enough.
func TestLeaverWithLittleRoom(t *testing.T) {
	t.Parallel()
	leaveWithLittleRoom(t, 3*leastRoom/2, false)
}

func leaveWithLittleRoom(t *testing.T, pages int, spill bool) {
	s := surviving(3, sim.Options{})
	s.pages, s.spill = uint64(pages)+HomeStripe, spill
	c := startTight(t, s, 0, 1, 2)
	c.lossy = true
	a, b, leaver := c.members[0].join(), c.members[1].join(), c.members[2].join()
	first := share("x", uint64(pages), a, b, leaver)
	leaver.number(first, pages)
	leaver.leave()
	m := c.members[2]
	eventually(t, "the program has left", func() bool { return m.counter("programs") == 0 })
	c.drainNode(m)
	c.inView(2, 0, 1)
	c.without(2)
	for _, p := range []*prog{a, b} {
		p.wantNumbers(first, pages)
	}
	c.quiet()
}

// tighten gives a node that has not begun as little room as can be.
func tighten(n *Node) {
	cfg := n.cfg
	cfg.Memory.Bytes = MinMemoryBytes
	r := newRoom(n.drive, &cfg, n.drive.exec.table.PageBytes())
	r.pins, r.quorum, r.nodes = n.room.pins, n.room.quorum, n.room.nodes
	*n.room = *r
}

// tightPair is two nodes with little room.
func tightPair(t *testing.T) *pair {
	p := newPair(t)
	for _, n := range p.nodes {
		tighten(n)
		withoutHolds(n)
	}
	return p
}

// rest lets a node look for room until it rests, and returns for how long it does. Its clock
// stands still. With answers the other node answers.
func (p *pair) rest(t *testing.T, n *Node, answers bool) time.Duration {
	t.Helper()
	for looks := 0; looks < 1000; looks++ {
		n.loop.look(false)
		if answers {
			p.nodes[1].loop.look(false)
			n.loop.look(false)
		}
		if in := n.room.tickIn(n.clock.now); in > 0 {
			return in
		}
	}
	t.Fatal("it looks for room all the time")
	return 0
}

// TestLooksForRoomGetRare: a node that has too little room, and finds none, looks for some ever
// more rarely, and not at all while too few nodes are left. It does not drop what has just come.
func TestLooksForRoomGetRare(t *testing.T) {
	p := tightPair(t)
	n := p.nodes[0]
	for page := range pagetable.Page(testPages) { // as many as both have room for
		p.gain(0, page, true)
	}
	if !n.room.over || p.nodes[1].room.over {
		t.Fatalf("it has %d pages, the other %d, and believes that there is no room: %t", n.room.queue.Len(), p.nodes[1].room.queue.Len(), n.room.over)
	}
	var last time.Duration
	for i := range 2 * mostVain {
		in := p.rest(t, n, true)
		if in < last {
			t.Errorf("after look %d it rests for %v, and before that for %v", i, in, last)
		}
		last = in
		for _, n := range p.nodes {
			n.clock.now += in
		}
	}
	if last != fullPatience<<(mostVain-1) {
		t.Errorf("in the end it rests for %v", last)
	}
	n.room.quorum.state = quorumLost
	n.room.again = 0
	if n.room.tickIn(n.clock.now) >= 0 || n.room.isDue() || n.room.make() {
		t.Error("it looks for room although too few nodes are left")
	}
	n.room.quorum.state = quorumHas

	var there pagetable.Page // at the other node
	for n.room.queue.Has(there) {
		there++
	}
	p.gain(0, there, false)
	for range 10 {
		n.room.again = 0
		n.loop.look(false)
	}
	if n.drive.engine.Access(protocol.PageObject(uint64(there))) != protocol.Read {
		t.Error("a copy was dropped that had just come")
	}
}

// TestNobodyAnswersOffers: a node whose offers nobody answers waits for a while, gives them up, and
// then takes more than fits.
func TestNobodyAnswersOffers(t *testing.T) {
	p := tightPair(t)
	n := p.nodes[0]
	for page := range pagetable.Page(testPages) {
		if n.drive.engine.Home(protocol.PageObject(uint64(page))) != 0 {
			continue
		}
		ev := pagetable.Event{Kind: pagetable.Fault, Proc: 1, Page: page, Write: true, Thread: uint32(page)}
		n.loop.tableEvent(&ev)
		n.loop.look(false)
	}
	if n.room.free() != 0 || n.room.has() || len(n.room.offered) == 0 {
		t.Fatalf("there is room for %d pages more, and %d are offered", n.room.free(), len(n.room.offered))
	}
	begin := n.clock.now
	for !n.room.over && n.clock.now < begin+time.Hour {
		n.clock.now += p.rest(t, n, false)
	}
	if !n.room.over || n.clock.now < begin+offerPatience || len(n.room.offered) > 0 {
		t.Errorf("after %v it believes that there is no room: %t, and %d pages are offered", n.clock.now-begin, n.room.over, len(n.room.offered))
	}
}

// TestLessMemory: a node is told that it has less room than before, and parts with what is too
// much, although no program wants a page. When it has all again it takes as much as at first.
func TestLessMemory(t *testing.T) {
	const pages = 2 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 2, pages: pages + HomeStripe, async: async, change: func(cfg *Config) {
			if cfg.Self == 1 {
				cfg.Memory.Bytes = 2 * MinMemoryBytes
			}
		}})
		a, b := c.members[0].join(), c.members[1].join()
		first := share("x", pages, a, b)
		m := c.members[1]
		b.number(first, pages*3/4)
		if n := m.counter("pages"); n <= leastRoom {
			t.Fatalf("the node has %d pages, and is to have more than %d", n, leastRoom)
		}
		m.node.SetMemory(MinMemoryBytes)
		eventually(t, "the node has parted with what is too much", func() bool { return m.counter("pages") <= leastRoom })
		m.want(map[string]uint64{"pages_room": leastRoom})
		if n := m.node.MemoryUsed(); n > MinMemoryBytes {
			t.Errorf("the node has %d bytes", n)
		}
		m.node.SetMemory(2 * MinMemoryBytes)
		b.wantNumbers(first, pages*3/4)
		if n := m.counter("pages"); n <= leastRoom {
			t.Errorf("the node has %d pages although it has room for more than %d", n, leastRoom)
		}
		c.quiet()
	})
}
