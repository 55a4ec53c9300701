package node

import (
	"errors"
	"strings"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/protocol"
	"dsmd/transport/sim"
)

// homeOf is the home of a page as long as no node is lost.
func (c *cluster) homeOf(page pagetable.Page) int {
	cfg := protocol.Config{Nodes: len(c.members), HomeStripe: HomeStripe}
	return int(cfg.Home(protocol.PageObject(uint64(page))))
}

// homeIn is a page of a run whose home is a node: the last.
func (c *cluster) homeIn(node int, first pagetable.Page, count int) pagetable.Page {
	c.Helper()
	for page := first + pagetable.Page(count); page > first; page-- {
		if c.homeOf(page-1) == node {
			return page - 1
		}
	}
	c.Fatalf("no page of the run has home %d", node)
	return 0
}

// theOneFile maps pages of which node 2 alone has the file.
func (c *cluster) theOneFile(pages uint64, written bool) (pagetable.Page, []*prog) {
	c.Helper()
	what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{2}, Written: written}
	return c.mapped("x", pages, what, nil, nil, laid(c, int64(pages)*4096, same))
}

// wantNoFile checks that a node has ended, because node 2 is lost, which had the file.
func (m *member) wantNoFile(p *prog) {
	m.Helper()
	const why = "node 2, which has the file, is lost"
	p.wantLost(why)
	if err := m.ended(); err == nil || !strings.Contains(err.Error(), why) || !errors.Is(err, sim.ErrCut) {
		m.Errorf("the node ended with %v", err)
	}
}

// TestFileIsLost: a node is lost that alone has a file. Who awaits pages of it can't go on, and
// ends with an error that names the node. Who has the pages, or wants none, goes on.
func TestFileIsLost(t *testing.T) {
	const pages = 64
	either(t, func(t *testing.T, async bool) {
		s := surviving(3, sim.Options{})
		s.async = async
		c := start(t, s)
		first, all := c.theOneFile(pages, false)
		all[1].wantPage(first, pageOf(0))
		c.net.Stall(2, 0)
		asked := all[0].access(c.homeIn(0, first, pages), false, func([]byte) {})
		eventually(t, "node 2 has read it", func() bool { return c.members[2].counter("pages_read_for_others") == 2 })
		c.sever(2)
		c.members[0].wantNoFile(all[0])
		<-asked
		// Node 1 has lost two of three nodes, or goes on if it has not; it does not end for the
		// file.
		all[1].wantPage(first, pageOf(0))
		c.without(2)
	})
}

// TestFileIsLostWithoutSurvival: where no node may be lost, all end.
func TestFileIsLostWithoutSurvival(t *testing.T) {
	const pages = 64
	c := start(t, setup{nodes: 3})
	first, all := c.theOneFile(pages, false)
	c.net.Stall(2, 0)
	all[0].access(c.homeIn(0, first, pages), false, func([]byte) {})
	eventually(t, "node 2 has read it", func() bool { return c.members[2].counter("pages_read_for_others") == 1 })
	c.sever(2)
	for i, p := range all[:2] {
		p.wantLost(" is lost")
		if err := c.members[i].ended(); err == nil || !strings.Contains(err.Error(), " is lost") {
			t.Errorf("node %d ended with %v", i, err)
		}
	}
	c.without(2)
}

// writesTo2 makes three nodes. The first writes pages that have changed to a file of the last, and
// does not hear that they are written until the network is resumed.
func writesTo2(t *testing.T, pages uint64) (c *cluster, first pagetable.Page, all []*prog) {
	t.Helper()
	c = start(t, surviving(3, sim.Options{}))
	first, all = c.theOneFile(pages, true)
	all[0].number(first, int(pages))
	s := all[0].save(1, 0, first, pages)
	c.net.Stall(2, 0)
	s.ok(s.inPlace(true))
	return c, first, all
}

// TestWritesAreLost: the node is lost to which changed pages are being written. Who waits is told
// which, and goes on with what it has.
func TestWritesAreLost(t *testing.T) {
	const pages = 64
	c, first, all := writesTo2(t, pages)
	a := all[0]
	eventually(t, "all is written", func() bool { return c.members[2].counter("pages_written_for_others") == pages })
	_, saved := a.call(attach.Call{Op: attach.OpSaved})
	a.sync()
	c.sever(2)
	if r := a.answer(saved); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "node 2, which has the file, is lost") {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
	c.recovered(1, 0, 1)
	a.wantNumbers(first, pages)
	all[1].wantNumbers(first, pages)
	c.without(2)
	c.quiet()
}

// TestWritesOfWhoGaveUp: what was being written to a mapping's file when its program gave up is
// written before anything else is, so that it does not come over that. Meanwhile the node goes on.
func TestWritesOfWhoGaveUp(t *testing.T) {
	const pages = 64
	c, first, all := writesTo2(t, pages)
	a := all[0]
	ticket, saved := a.call(attach.Call{Op: attach.OpSaved})
	a.sync()
	a.cancel(ticket)
	if r := a.answer(saved); r.Status != attach.StatusCanceled {
		t.Errorf("it is answered with %v %q", r.Status, r.Payload)
	}
	next := a.save(2, 0, first, pages)
	if r := next.do(next.inPlace(true)); r.Status == attach.StatusOK || !strings.Contains(string(r.Payload), "another checkpoint is under way") {
		t.Errorf("what comes next begins meanwhile: %v %q", r.Status, r.Payload)
	}
	c.net.Resume(2, 0)
	eventually(t, "what comes next may begin", func() bool {
		next = a.save(2, 0, first, pages)
		return next.do(next.inPlace(true)).Status == attach.StatusOK
	})
	next.ok(attach.Call{Op: attach.OpSaved})
	a.wantNumbers(first, pages)
	c.quiet()
}

// TestReaderIsLost: a node is lost for which pages are being read and written. They are answered to
// nobody, and others get theirs.
func TestReaderIsLost(t *testing.T) {
	const pages, half = 96, 48
	c := start(t, surviving(3, sim.Options{}))
	what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{0}, Written: true}
	first, all := c.mapped("x", pages, what, laid(t, pages*4096, same))
	m := c.members[0]
	all[2].number(first, half)
	s := all[2].save(1, 0, first, half)
	c.net.Stall(0, 2)
	all[2].call(s.inPlace(true))
	for i := range pagetable.Page(half / 2) {
		all[2].access(first+half+i, false, func([]byte) {})
	}
	other := first + half + half/2
	all[1].wantPage(other, pageOf(uint64(other-first)))
	var left []pagetable.Page // what is not lost with its home
	for page := other; page < first+pages; page++ {
		if c.homeOf(page) != 2 {
			left = append(left, page)
		}
	}
	c.sever(2)
	c.recovered(1, 0, 1)
	for _, page := range left {
		all[1].wantPage(page, pageOf(uint64(page-first)))
		all[0].wantPage(page, pageOf(uint64(page-first)))
	}
	c.without(2)
	c.quiet()
	if st := m.node.drive.storage; len(st.waiting) != 0 || st.reading.Free() != mostReading {
		t.Errorf("%d runs wait, and there is room to read %d bytes", len(st.waiting), st.reading.Free())
	}
}

// TestFileWasLost: a node is lost that alone has a file. Who wants pages of it afterwards can't go
// on, and ends with an error that names the node.
func TestFileWasLost(t *testing.T) {
	const pages = 64
	either(t, func(t *testing.T, async bool) {
		s := surviving(3, sim.Options{})
		s.async = async
		c := start(t, s)
		first, all := c.theOneFile(pages, false)
		c.sever(2)
		c.recovered(1, 0, 1)
		page := c.homeIn(0, first, pages)
		asked := all[0].access(page, false, func([]byte) {})
		c.members[0].wantNoFile(all[0])
		<-asked
		c.without(2)
	})
}

// TestWritesToWhatWasLost: what has changed can't be written to a node that is lost. Who waits is
// told, and goes on with what it has.
func TestWritesToWhatWasLost(t *testing.T) {
	const pages = 64
	c := start(t, surviving(3, sim.Options{}))
	first, all := c.theOneFile(pages, true)
	a := all[0]
	a.number(first, pages)
	c.sever(2)
	c.recovered(1, 0, 1)
	for id := range byte(2) {
		s := a.save(id+1, 0, first, pages)
		s.ok(s.inPlace(true))
		if r := a.do(attach.Call{Op: attach.OpSaved}); r.Status != attach.StatusUnknown || !strings.Contains(string(r.Payload), "node 2, which has the file, is lost") {
			t.Errorf("it is answered with %v %q", r.Status, r.Payload)
		}
	}
	a.wantNumbers(first, pages)
	c.without(2)
	c.quiet()
}
