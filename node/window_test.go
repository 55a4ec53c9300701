package node

import (
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
)

// TestPrefetchWithoutLimit: a program prefetches far more at once than may be queued for one node,
// while nothing arrives there. The calls wait for each other, nobody is lost, and all of them are
// answered when the pages can come.
func TestPrefetchWithoutLimit(t *testing.T) {
	t.Parallel()
	const calls, pages = 72, 256 // 72 MiB, of which 64 may be queued
	c := start(t, setup{nodes: 2, pages: calls * pages})
	a, b := c.members[0].join(), c.members[1].join()
	for i := range pagetable.Page(calls) { // so that none of the stores faults
		_, answer := a.prefetch(i*pages, pages, attach.Write)
		a.answer(answer)
	}
	a.fill(0, calls*pages)
	c.net.Stall(0, 1)
	var answers []chan attach.Reply
	for i := range pagetable.Page(calls) {
		_, answer := b.prefetch(i*pages, pages, attach.Read)
		answers = append(answers, answer)
	}
	c.idle()
	c.net.Resume(0, 1)
	for _, answer := range answers {
		if r := b.answer(answer); r.Status != attach.StatusOK {
			t.Fatal(r.Status)
		}
	}
	for i := range pagetable.Page(calls) {
		b.wantLoad(i*pages, 0, uint64(i*pages)+1)
	}
	c.quiet()
}

// idle waits until no node does anything more by itself, although messages may be held up: many
// rounds of questions get the same answers.
func (c *cluster) idle() {
	c.Helper()
	var before [3]uint64
	same := 0
	eventually(c, "no node does anything more", func() bool {
		var now [3]uint64
		for _, m := range c.members {
			stats := m.ask()
			now[0] += stats["messages_sent"]
			now[1] += stats["messages_received"]
			now[2] += stats["prefetched_pages"]
		}
		if same++; now != before {
			same = 0
		}
		before = now
		return same == 20
	})
}

// TestPrefetchBesideOthers: calls that wait for a node from which nothing comes fill the window,
// and hold up no call that needs nothing of it: not one that prefetches, nor one that pins, nor one
// whose pages are all here.
func TestPrefetchBesideOthers(t *testing.T) {
	// those that are near have their home at node 1
	const ahead, pages, away, near = 8, HomeStripe, 0, 4 * HomeStripe
	c := start(t, setup{nodes: 3, before: func(n *Node) { n.intake.window.ahead = ahead }})
	m := c.members[2]
	slow, quick, p := c.members[0].join(), c.members[1].join(), m.join()
	slow.fill(away, 3*pages)
	quick.fill(near, pages)
	c.net.Stall(0, 2)
	var held []chan attach.Reply
	for i := range pagetable.Page(3) {
		_, answer := p.prefetch(away+i*pages, pages, attach.Read)
		held = append(held, answer)
	}
	eventually(t, "the window is full", func() bool { return m.counter("prefetched_pages") >= ahead })
	c.idle()
	for range 2 { // they come, and are here
		_, answer := p.prefetch(near, pages, attach.Read)
		if r := p.answer(answer); r.Status != attach.StatusOK {
			t.Fatal(r.Status)
		}
	}
	p.unpin(p.pin(near, pages, attach.Write))
	if n := m.counter("prefetched_pages"); n > ahead+uint64(len(held))+2*pages {
		t.Errorf("%d pages were asked for", n)
	}
	c.net.Resume(0, 2)
	for _, answer := range held {
		if r := p.answer(answer); r.Status != attach.StatusOK {
			t.Error(r.Status)
		}
	}
	c.quiet()
}

// TestFaultsWithoutLimit: more threads fault at once than a node may ask for pages. The rest wait,
// those of a program that dies go with it, and all others get through.
func TestFaultsWithoutLimit(t *testing.T) {
	const most, threads = 32, 200
	c := start(t, setup{nodes: 2, before: func(n *Node) { n.intake.window.most = most }})
	m := c.members[1]
	a, b, d := c.members[0].join(), m.joinAs(1), m.joinAs(0)
	a.fill(0, 2*threads)
	c.net.Stall(0, 1)
	var loads []chan error
	for i := range pagetable.Page(threads) {
		loads = append(loads, b.access(2*i, false, func([]byte) {}))
		d.access(2*i+1, false, func([]byte) {})
	}
	eventually(t, "all threads have faulted", func() bool { return m.counter("faults_held_back") == 2*threads-most })
	if n := m.counter("faults_read"); n != most {
		t.Errorf("%d pages were asked for, %d may be", n, most)
	}
	d.die()
	eventually(t, "the program is gone", func() bool { return m.counter("programs") == 1 })
	c.net.Resume(0, 1)
	for _, load := range loads {
		b.settled(load)
	}
	c.quiet()
}

// TestQueueLimit: what may be queued for a node is more than what legal work can leave there, of
// any page size, and in a region of which everything is reported.
func TestQueueLimit(t *testing.T) {
	for _, pageBytes := range []int{4 << 10, 64 << 10, 2 << 20} {
		w := newWindow(pageBytes)
		if w.ahead > w.most || w.ahead < 1 {
			t.Errorf("pages of %d bytes: %d of %d pages are asked for in advance", pageBytes, w.ahead, w.most)
		}
		for _, nodes := range []int{2, 64, protocol.MaxNodes} {
			for _, pages := range []uint64{1, 64 << 30 / uint64(pageBytes), MaxRegionBytes / uint64(pageBytes)} {
				asked := w.most * pageBytes
				if limit := queueLimit(pages, nodes, pageBytes, false); limit <= asked {
					t.Errorf("%d nodes, pages of %d bytes: %d bytes for %d", nodes, pageBytes, limit, asked)
				}
				all := asked*nodes + int(pages)*len(protocol.AppendHolding(nil, 0, protocol.Read))
				if limit := queueLimit(pages, nodes, pageBytes, true); limit <= all {
					t.Errorf("%d nodes that survive losses, %d pages of %d bytes: %d bytes for %d", nodes, pages, pageBytes, limit, all)
				}
			}
		}
	}
}
