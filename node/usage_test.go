package node

import (
	"fmt"
	"os"
	"testing"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// usage asks for the usage as dsmd status does.
func (m *member) usage() attach.Usage {
	m.Helper()
	u, err := attach.DecodeUsage(m.observe(attach.OpUsage))
	if err != nil {
		m.Fatal(err)
	}
	return u
}

// TestPrograms: an observer learns which programs are attached, the oldest first.
func TestPrograms(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	ask := func() attach.Programs {
		p, err := attach.DecodePrograms(m.observe(attach.OpPrograms))
		if err != nil || p.PID != uint32(os.Getpid()) || p.Age <= 0 {
			m.Fatalf("%+v, %v", p, err)
		}
		return p
	}
	if p := ask(); len(p.Attached) != 0 {
		t.Errorf("nobody is attached, and it lists %+v", p.Attached)
	}
	first, second := m.join(), m.join()
	p := ask()
	if len(p.Attached) != 2 || p.Attached[0].Rank != first.welcome.Rank || p.Attached[1].Rank != second.welcome.Rank || p.Attached[0].Age < p.Attached[1].Age || p.Attached[0].Size != 2 || p.More != 0 {
		t.Errorf("two programs are attached, and it lists %+v", p)
	}
	first.die()
	eventually(t, "one is left", func() bool { p := ask(); return len(p.Attached) == 1 && p.Attached[0].Rank == second.welcome.Rank })
}

// usageOf is what is here of the memory that a program has bound by a name.
func (m *member) usageOf(name string) (found attach.Held) {
	m.Helper()
	for _, x := range m.usage().Largest {
		if called := x.Name; name == called || name == "\x00"+x.Job+"\x00"+called {
			found = x.Held
		}
	}
	return found
}

// TestUsage: of each allocation a node says of how many pages it is the owner and of how many it
// has a copy, as the directories say, wherever they are. Those of the same name are told apart by
// their jobs, and a node tells of those alone for which its programs have asked.
func TestUsage(t *testing.T) {
	const pages, touched = 300, 200
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		x, y := share("\x00one\x00grid", pages, a, b), share("\x00two\x00grid", pages, a, b)
		mine := a.bind("mine", 3)
		for page := range pagetable.Page(touched) {
			a.store(x+page, 0, 1)
			a.load(y+page, 0)
		}
		a.store(mine+1, 0, 1)
		if got := c.members[0].usageOf("mine"); got != (attach.Held{Pages: 3, Owned: 1}) {
			t.Errorf("one page was stored to, and the node has %+v", got)
		}
		for page := range pagetable.Page(touched / 2) {
			b.load(x+page, 0)
			b.store(y+page, 0, 1)
		}
		c.settle()
		said := make([]attach.Usage, len(c.members))
		for i, m := range c.members {
			said[i] = m.usage()
		}
		c.stop()

		for i, m := range c.members {
			want := attach.Usage{}
			if i == 2 { // nobody there has asked for anything
				if foreign := said[i].Foreign; len(said[i].Largest) > 0 || foreign.Pages != foreign.Owned+foreign.Copies {
					t.Errorf("node 2 has %+v", said[i])
				}
				continue
			}
			want.Largest = []attach.AllocationUsage{
				{Job: "one", Name: "grid", First: uint64(x), Held: c.held(m, x, pages)}, {Job: "two", Name: "grid", First: uint64(y), Held: c.held(m, y, pages)},
			}
			if i == 0 {
				want.Largest = append(want.Largest, attach.AllocationUsage{Name: "mine", First: uint64(mine), Held: attach.Held{Pages: 3, Owned: 1}})
			}
			if fmt.Sprint(said[i]) != fmt.Sprint(want) {
				t.Errorf("node %d has said %+v, and has %+v", i, said[i], want)
			}
		}
		if got := said[1].Largest[0].Copies; got < touched/2 {
			t.Errorf("node 1 has read %d pages, and has copies of %d", touched/2, got)
		}
		if got := said[1].Largest[1].Owned; got < touched/2 {
			t.Errorf("node 1 has written %d pages, and owns %d", touched/2, got)
		}
	})
}

// held is what a node that has ended has of a run of pages, by their homes' directories.
func (c *cluster) held(m *member, first pagetable.Page, pages uint64) attach.Held {
	c.Helper()
	h := attach.Held{Pages: pages}
	for page := first; page < first+pagetable.Page(pages); page++ {
		id := protocol.PageObject(uint64(page))
		entry, _ := c.members[m.node.drive.engine.Home(id)].node.drive.engine.Entry(id)
		switch {
		case m.node.drive.engine.Access(id) == protocol.None:
		case entry.Owner == protocol.NodeID(m.node.cfg.Self):
			h.Owned++
		default:
			h.Copies++
		}
	}
	return h
}

// TestUsageWithLittleRoom: what was dropped is not counted, and what was handed to a node whose
// programs do not know the memory is counted there as foreign.
func TestUsageWithLittleRoom(t *testing.T) {
	const pages = 2 * leastRoom
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 3, pages: 2*pages + HomeStripe, async: async}, 1)
		m := c.members[1]
		a, b := c.members[0].join(), m.join()
		read, written := share("read", pages, a, b), b.bind("written", pages)
		a.number(read, pages)
		b.wantNumbers(read, pages)
		// The node drops pages on its own, so what it says and what it counts is of two times.
		here := func(u attach.Usage) (sum uint64) {
			for _, x := range u.Largest {
				sum += x.Owned + x.Copies
			}
			return sum + u.Foreign.Pages
		}
		eventually(t, "what is counted is what is here", func() bool { return here(m.usage()) == m.counter("pages") })
		if got := m.usageOf("read"); got.Owned != 0 || got.Copies < leastRoom/2 || got.Copies > leastRoom {
			t.Errorf("a node with room for %d pages has read %d, and has %+v", leastRoom, pages, got)
		}
		if got := c.members[0].usageOf("read"); got != (attach.Held{Pages: pages, Owned: pages}) {
			t.Errorf("the node that has written them has %+v", got)
		}
		b.number(written, pages)
		eventually(t, "each page has an owner", func() bool {
			owned := m.usageOf("written").Owned
			for _, other := range c.members {
				owned += other.usage().Foreign.Owned
			}
			return owned == pages && here(m.usage()) == m.counter("pages")
		})
		if got := m.usageOf("written"); got.Owned > leastRoom || got.Copies != 0 {
			t.Errorf("a node with room for %d pages has written %d, and has %+v", leastRoom, pages, got)
		}
	})
}

// TestUsageWithSpill: pages in the spill file are here, and counted once more as such.
func TestUsageWithSpill(t *testing.T) {
	const pages, arrays = leastRoom, 4
	either(t, func(t *testing.T, async bool) {
		c := startTight(t, setup{nodes: 1, pages: arrays*pages + HomeStripe, async: async, spill: true}, 0)
		m := c.members[0]
		a := m.join()
		for i := range arrays {
			a.number(a.bind(fmt.Sprint(i), pages), pages)
		}
		eventually(t, "what is not in memory is in the file", func() bool {
			spilled := uint64(0)
			for _, x := range m.usage().Largest {
				if x.Pages != pages || x.Owned != pages || x.Copies != 0 || x.Spilled > pages {
					t.Fatalf("a node that has written all has %+v", x)
				}
				spilled += x.Spilled
			}
			return spilled >= (arrays-1)*pages && spilled+m.counter("pages") == arrays*pages
		})
		if got := m.usageOf("0"); got.Spilled == 0 {
			t.Errorf("of what was written first there is %+v", got)
		}
		c.quiet()
	})
}

// TestUsageOfASparseAllocation: of a region of 16 TiB, with more pages and allocations than are
// looked at in a turn, and more allocations than an answer lists.
func TestUsageOfASparseAllocation(t *testing.T) {
	const region, small, touched, apart = 1 << 32, usageTurn + 700, 2*usageTurn + 5, 400_000
	c := start(t, setup{nodes: 1, pages: region})
	m := c.members[0]
	p := m.join()
	large := p.bind("large", touched*apart)
	var open []chan attach.Reply
	for i := range uint64(small) {
		_, answer := p.call(bindCall(fmt.Sprint("small", i), 512*(1+i%7)))
		open = append(open, answer)
	}
	for _, answer := range open {
		p.answer(answer)
	}
	open = open[:0]
	for i := range uint64(touched) {
		_, answer := p.call(attach.Call{Op: attach.OpPrefetch, Object: uint64(large) + i*apart, Count: 1, Access: attach.Write})
		open = append(open, answer)
	}
	for _, answer := range open {
		p.answer(answer)
	}
	for range 2 {
		u := m.usage()
		if len(u.Largest) != attach.MaxAllocations || u.More != small+1-attach.MaxAllocations || u.Foreign != (attach.Held{}) {
			t.Fatalf("%d allocations are listed, %d more and foreign %+v", len(u.Largest), u.More, u.Foreign)
		}
		if got, want := u.Largest[0], (attach.AllocationUsage{Name: "large", First: uint64(large), Held: attach.Held{Pages: touched * apart, Owned: touched}}); got != want {
			t.Errorf("the largest is %+v, want %+v", got, want)
		}
		left := uint64(0)
		for i := range uint64(small) {
			left += 1 + i%7
		}
		for i, x := range u.Largest[1:] {
			left -= x.Pages
			if x.Pages != 7 || x.Owned+x.Copies != 0 || i > 0 && x.First <= u.Largest[i].First {
				t.Fatalf("in place %d is %+v, after %+v", i+1, x, u.Largest[i])
			}
		}
		if u.Rest != (attach.Held{Pages: left}) {
			t.Errorf("the rest is %+v, want %d pages", u.Rest, left)
		}
	}
	c.quiet()
}

// TestUsageInTurns: a count looks at few pages in each turn, and allocations may come and go
// between them.
func TestUsageInTurns(t *testing.T) {
	const pages = 4*usageTurn + usageTurn/2
	u, x := countable(pages, 1)
	p := &program{}
	x.Add(0, pages/2, "low")
	x.Add(pages/2, pages/4, "freed")
	if u.more() || u.isDue() {
		t.Error("something is counted, and nobody has asked")
	}
	if err := u.ask(p, &attach.Call{Op: attach.OpUsage, Ticket: 5}); err != nil {
		t.Fatal(err)
	}
	for turn := range 5 {
		if !u.more() || u.count.summed != (turn == 4) {
			t.Fatalf("turn %d: %+v", turn, u.count)
		}
		if got, want := u.count.place, (turn+1)%5*usageTurn; got != want {
			t.Fatalf("after turn %d the count goes on at %d, want %d", turn, got, want)
		}
		if turn == 3 { // its pages are counted
			x.Drop(pages / 2)
			x.Add(pages/2, 1, "new")
			x.Add(pages+5, 1, "last")
		}
	}
	u.dropProgram(p)
	if !u.isDue() || !u.more() || !u.count.listed {
		t.Errorf("without anybody who waits, the count stands at %+v", u.count)
	}
	want := attach.Usage{
		Largest: []attach.AllocationUsage{{Name: "low", Held: attach.Held{Pages: pages / 2, Owned: pages / 2}}, {Name: "new", First: pages / 2, Held: attach.Held{Pages: 1}}, {Name: "last", First: pages + 5, Held: attach.Held{Pages: 1}}},
		Foreign: attach.Held{Pages: pages / 4, Owned: pages / 4},
	}
	if got := u.count.found; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted was %+v, want %+v", got, want)
	}
	if !u.more() || u.isDue() {
		t.Error("a count does not end")
	}
	for _, in := range x.From(0) {
		if in.Owned+in.Copies != 0 {
			t.Errorf("the next count begins with %+v", in)
		}
	}
}

// countable is the usage of an engine that has the first so many pages. They were touched in steps.
func countable(pages, step uint64) (*usage, *readahead.Extents) {
	e := protocol.New(protocol.Config{Nodes: 1, Pages: 1 << 40, HomeStripe: 1})
	var out []protocol.Effect
	for i := range pages {
		id := protocol.PageObject(i * step % pages)
		out = e.Step(protocol.Event{Kind: protocol.EventFault, Object: id, Access: protocol.Write}, out[:0])
		out = e.Step(protocol.Event{Kind: protocol.EventCompleted, Object: id, Effect: out[0].Kind, Access: protocol.Write}, out[:0])
	}
	x := &readahead.Extents{}
	return &usage{drive: &driver{engine: e}, extents: x, room: &room{}}, x
}

// TestUsageCalls: a program has one call open. It can cancel it, and may end before the answer.
func TestUsageCalls(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	m := c.members[0]
	witness := m.join()
	ask := func(ticket uint64) []byte {
		return attach.AppendCall(nil, &attach.Call{Op: attach.OpUsage, Ticket: ticket})
	}
	stats := attach.AppendCall(nil, &attach.Call{Op: attach.OpStats, Ticket: 7})
	for _, second := range [][]byte{ask(8), stats} {
		conn := m.dial()
		greet(t, conn, hello(attach.NoRank))
		write(t, conn, append(ask(7), second...))
		closedBy(t, conn)
	}
	conn := m.dial()
	greet(t, conn, hello(attach.NoRank))
	handOver(t, conn)
	write(t, conn, append(append(ask(7), attach.AppendCall(nil, &attach.Call{Op: attach.OpCancel, Ticket: 7})...), ask(7)...))
	for _, want := range []attach.Status{attach.StatusCanceled, attach.StatusOK} {
		if r, err := attach.DecodeReply(read(t, conn).Body); err != nil || r.Ticket != 7 || r.Status != want {
			t.Errorf("the answer is %+v, %v, want %v", r, err, want)
		}
	}
	conn.Close()
	for range 50 {
		conn := m.dial()
		greet(t, conn, hello(attach.NoRank))
		write(t, conn, ask(1))
		conn.Close()
	}
	witness.sync()
	if u, err := attach.DecodeUsage(witness.ok(attach.Call{Op: attach.OpUsage}).Payload); err != nil || len(u.Largest) != 0 {
		t.Errorf("nobody has asked for memory, and there is %+v, %v", u, err)
	}
	c.quiet()
	if u := m.node.usage; u.isDue() {
		t.Errorf("left are %d calls, and count %+v", len(u.calls), u.count)
	}
}

// BenchmarkUsageTurn is for how long a turn of a count holds up the reactor, in the usual case, and
// when each page is of another allocation than the one before it, of as many as there can be.
func BenchmarkUsageTurn(b *testing.B) {
	const pages = 1 << 20
	for name, allocations := range map[string]uint64{"one": 1, "many": protocol.MaxNames} {
		u, x := countable(pages, 40503) // in an order in which no two neighbours follow each other
		for i := range allocations {
			x.Add(pagetable.Page(i*pages/allocations), pages/allocations, fmt.Sprint(i))
		}
		b.Run(name, func(b *testing.B) {
			c := &usageCount{}
			for range b.N {
				u.sum(c)
			}
		})
		b.Run(name+",listed", func(b *testing.B) {
			for range b.N {
				c := &usageCount{}
				for !c.listed {
					u.list(c)
				}
			}
		})
	}
}
