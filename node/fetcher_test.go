package node

import (
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
)

func (p *prog) prefetch(first pagetable.Page, count uint64, a attach.Access) (uint64, chan attach.Reply) {
	return p.call(attach.Call{Op: attach.OpPrefetch, Object: uint64(first), Count: count, Access: a})
}

// fill makes p store its page's number into count pages from first on.
func (p *prog) fill(first pagetable.Page, count int) {
	p.Helper()
	for i := range pagetable.Page(count) {
		p.store(first+i, 0, uint64(first+i)+1)
	}
}

// misses is how many faults of a member needed another node.
func (m *member) misses() uint64 {
	return m.counter("faults_read") + m.counter("faults_write") + m.counter("faults_upgrade")
}

// TestPrefetch: more pages than a window, of every home, some here already: all are here when the
// answer comes, so that no access faults for the network's sake.
func TestPrefetch(t *testing.T) {
	t.Parallel()
	const pages = 3*fetchWindow + 17
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		a.fill(5, pages)
		b.wantLoad(10, 0, 11)
		before := c.members[1].misses()
		_, answer := b.prefetch(5, pages, attach.Read)
		if r := b.answer(answer); r.Status != attach.StatusOK {
			t.Fatal(r.Status)
		}
		for i := range pagetable.Page(pages) {
			b.wantLoad(5+i, 0, uint64(5+i)+1)
		}
		if now := c.members[1].misses(); now != before {
			t.Errorf("%d faults after everything was prefetched", now-before)
		}
		c.members[1].want(map[string]uint64{"prefetch_calls": 1, "prefetched_pages": pages - 1})
		// Now for writing, what both of them hold.
		_, answer = b.prefetch(5, pages, attach.Write)
		if r := b.answer(answer); r.Status != attach.StatusOK {
			t.Fatal(r.Status)
		}
		for i := range pagetable.Page(pages) {
			b.store(5+i, 8, 1)
		}
		if now := c.members[1].misses(); now != before {
			t.Errorf("%d faults after everything was prefetched for writing", now-before)
		}
		for i := range pagetable.Page(pages) {
			a.wantLoad(5+i, 0, uint64(5+i)+1)
		}
		c.quiet()
	})
}

// TestPrefetchOverlaps: several calls of several programs for the same pages with different access,
// and faults in the midst.
func TestPrefetchOverlaps(t *testing.T) {
	const pages = fetchWindow + 40
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		m := c.members[1]
		a, b, d := c.members[0].join(), m.joinAs(1), m.joinAs(0)
		a.fill(0, pages)
		var answers []chan attach.Reply
		for i := range 6 {
			access := attach.Read
			if i%2 == 1 {
				access = attach.Write
			}
			_, x := b.prefetch(0, pages, access)
			_, y := d.prefetch(pagetable.Page(i), pages-10, access)
			answers = append(answers, x, y)
		}
		load := d.access(pages-1, false, func([]byte) {})
		steal := a.access(3, true, func([]byte) {})
		for _, answer := range answers {
			if r := b.answer(answer); r.Status != attach.StatusOK {
				t.Fatal(r.Status)
			}
		}
		a.settled(load)
		a.settled(steal)
		for i := range pagetable.Page(pages) {
			b.wantLoad(i, 0, uint64(i)+1)
			d.wantLoad(i, 0, uint64(i)+1)
		}
		c.quiet()
	})
}

// TestPrefetchCancel: the answer comes at once, pages on their way arrive for nothing, and the next
// call works.
func TestPrefetchCancel(t *testing.T) {
	const pages = 2 * fetchWindow
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	a.fill(0, pages)
	c.net.Stall(0, 1)
	ticket, answer := b.prefetch(0, pages, attach.Write)
	eventually(t, "the window is full", func() bool { return c.members[1].counter("prefetched_pages") == fetchWindow })
	b.cancel(ticket)
	if r := b.answer(answer); r.Status != attach.StatusCanceled {
		t.Fatalf("a cancelled prefetch: %v", r.Status)
	}
	_, answer = b.prefetch(3, 20, attach.Read)
	c.net.Resume(0, 1)
	if r := b.answer(answer); r.Status != attach.StatusOK {
		t.Fatalf("a prefetch after a cancelled one: %v", r.Status)
	}
	c.settle()
	if n := c.members[1].counter("prefetched_pages"); n > fetchWindow+20 {
		t.Errorf("%d pages were asked for; the first call was cancelled when there were %d", n, fetchWindow)
	}
	for i := range pagetable.Page(pages) {
		b.wantLoad(i, 0, uint64(i)+1)
	}
	c.quiet()
}

// TestPrefetchOfTheDead: a program dies in the middle of a prefetch.
func TestPrefetchOfTheDead(t *testing.T) {
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	a.fill(0, 2*fetchWindow)
	c.net.Stall(0, 1)
	b.prefetch(0, 2*fetchWindow, attach.Read)
	b.prefetch(100, 2*fetchWindow, attach.Write)
	eventually(t, "two windows are full", func() bool { return c.members[1].counter("prefetched_pages") == 2*fetchWindow })
	b.die()
	eventually(t, "the program is gone", func() bool { return c.members[1].counter("programs") == 0 })
	c.net.Resume(0, 1)
	c.settle()
	for i := range pagetable.Page(2 * fetchWindow) {
		a.wantLoad(i, 0, uint64(i)+1)
	}
	c.quiet()
}

// TestPrefetchWhileFreeing: pages that are being freed are not waited for.
func TestPrefetchWhileFreeing(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		for range 6 {
			page := a.bind("x", 100)
			b.bind("x", 100)
			for i := range pagetable.Page(100) {
				a.store(page+i, 0, 1)
			}
			_, one := a.call(unbindCall("x"))
			_, two := b.call(unbindCall("x"))
			_, three := b.prefetch(page, 100, attach.Write)
			_, four := a.prefetch(page, 100, attach.Read)
			a.answer(one)
			for _, answer := range []chan attach.Reply{two, three, four} {
				b.answer(answer)
			}
			c.settle()
		}
		c.quiet()
	})
}

// TestPrefetchOfMemoryFreedMeanwhile: a prefetch and a pin that wait for the end of an operation on
// a page are not forgotten when the page is freed before that end.
func TestPrefetchOfMemoryFreedMeanwhile(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := a.bind("x", 1)
		b.bind("x", 1)
		held := a.pin(page, 1, attach.Write)
		store := b.access(page, true, func([]byte) {})
		eventually(t, "the daemon is asked for the page", func() bool { return putOff(c.members[0]) == 1 })
		_, one := a.prefetch(page, 1, attach.Read)
		_, two := a.call(attach.Call{Op: attach.OpPin, Object: uint64(page), Count: 1, Access: attach.Read})
		a.ok(unbindCall("x"))
		// Node 0 has begun to free the page when it has told the other node.
		before := c.members[1].counter("messages_received")
		b.call(unbindCall("x"))
		eventually(t, "the page is being freed", func() bool { return c.members[1].counter("messages_received") > before })
		a.unpin(held)
		b.settled(store)
		if r := a.answer(one); r.Status != attach.StatusOK {
			t.Errorf("the prefetch was answered with %v", r.Status)
		}
		if r := a.answer(two); r.Status != attach.StatusUnknown {
			t.Errorf("the pin was answered with %v", r.Status)
		}
		c.quiet()
	})
}

// TestPrefetchOutside: pages that the region does not have.
func TestPrefetchOutside(t *testing.T) {
	c := start(t, setup{nodes: 1})
	p := c.members[0].join()
	for _, run := range [][2]uint64{{testPages, 1}, {0, testPages + 1}, {testPages - 1, 2}, {1 << 63, 1}, {5, 1<<64 - 1}} {
		if r := p.do(attach.Call{Op: attach.OpPrefetch, Object: run[0], Count: run[1], Access: attach.Read}); r.Status != attach.StatusUnknown {
			t.Errorf("%d pages from page %d on: %v", run[1], run[0], r.Status)
		}
	}
	c.quiet()
}

// TestPrefetchTakesTurns: while a call of many pages that are all here is dealt with, other calls
// are answered.
func TestPrefetchTakesTurns(t *testing.T) {
	c := start(t, setup{nodes: 1, ranks: 2})
	p, q := c.members[0].join(), c.members[0].join()
	p.ok(attach.Call{Op: attach.OpPrefetch, Count: testPages, Access: attach.Write})
	for range 50 {
		_, answer := p.prefetch(0, testPages, attach.Write)
		q.sync()
		p.answer(answer)
	}
	n := c.members[0].node
	c.quiet()
	// One turn looks at fetchTurn pages, no more.
	f := &fetch{p: &program{fetches: map[uint64]*fetch{}}, access: 1, end: testPages}
	n.fetcher.fill(f)
	if f.next != fetchTurn || len(n.fetcher.ready) != 1 {
		t.Errorf("one turn looked at %d pages, want %d", f.next, fetchTurn)
	}
}

// TestPinWhenMemoryHasBecomeLess: a program that has more pinned than it could by now pins no more.
func TestPinWhenMemoryHasBecomeLess(t *testing.T) {
	c := start(t, setup{nodes: 1, change: func(cfg *Config) { cfg.Memory.Bytes = 2 * MinMemoryBytes }})
	m := c.members[0]
	p := m.join()
	ticket := p.pin(0, leastRoom, attach.Read)
	m.node.SetMemory(MinMemoryBytes)
	eventually(t, "the bound is lower", func() bool { return m.counter("pages_room") == leastRoom })
	if r := p.do(attach.Call{Op: attach.OpPin, Object: leastRoom, Count: 1, Access: attach.Read}); r.Status != attach.StatusNoSpace {
		t.Errorf("one more page is pinned, which is answered with %v", r.Status)
	}
	m.node.SetMemory(2 * MinMemoryBytes)
	p.unpin(ticket)
	c.quiet()
}
