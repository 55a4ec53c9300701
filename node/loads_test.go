package node

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"dsmd/pagetable"
	"dsmd/pagetable/backing"
	"dsmd/protocol"
	"dsmd/protocol/model"
	"dsmd/transport/sim"
)

// TestWhatOvertakesLoads: a message overtakes one that waits for the disk only where the protocol
// does not lean on their order. The model delivers messages in all orders that MustFollow allows,
// so what is said there is what was explored.
func TestWhatOvertakesLoads(t *testing.T) {
	const page = 5
	all := []protocol.Effect{{Kind: protocol.EffectSend, Message: protocol.Multicast{Contents: protocol.ZeroContents}.To(1, protocol.PageObject(page))}}
	for kind := protocol.Kind(1); ; kind++ {
		m := protocol.Message{Kind: kind, To: 1, Object: protocol.PageObject(page)}
		if m.Body() == nil {
			break
		}
		all = append(all, protocol.Effect{Kind: protocol.EffectSend, Message: m})
		if reflect.ValueOf(m.Body()).FieldByName("Contents").IsValid() {
			all = append(all, protocol.Effect{Kind: protocol.EffectSend, Source: protocol.SourcePage, Message: m})
		}
	}
	ordered := map[protocol.Kind]bool{}
	for _, first := range all {
		for _, second := range all {
			d := &driver{exec: &executor{contents: newContents()}}
			d.loads = loads{drive: d, byPage: map[pagetable.Page]*load{page: {}}}
			if first.Message.Kind == protocol.KindEpochMarker || !d.loads.delay(&first) {
				continue // it does not wait
			}
			d.loads.byPage[page].effects = nil // which is as good as sent when the page is read
			d.exec.contents.loaded[page] = []byte{1}
			waits := d.loads.delay(&second)
			a, b := model.Flight{Message: first.Message}, model.Flight{Message: second.Message}
			if must := b.MustFollow(&a); must && !waits && d.loads.byPage[page] != nil {
				t.Errorf("%v (source %d) overtakes %v (source %d)", b.Message.Kind, second.Source, a.Message.Kind, first.Source)
			} else if must {
				ordered[b.Message.Kind] = true
			}
		}
	}
	if len(ordered) != 4 {
		t.Errorf("%v must not overtake what waits for the disk", ordered)
	}
}

// TestWriteAfterReadOfSpilled: one node asks to read pages that their home has in its spill file,
// and another one asks to write them before the disk has answered. The home tells the reader to
// give up its copies after it has got them. Else the reader would keep what they held before.
func TestWriteAfterReadOfSpilled(t *testing.T) {
	t.Parallel()
	const pages, some = 6 * leastRoom, 32
	c := startTight(t, setup{nodes: 3, pages: pages + HomeStripe, spill: true}, 0, 1, 2)
	a, b, d := c.members[0].join(), c.members[1].join(), c.members[2].join()
	first := share("x", pages, a, b, d)
	a.number(first, pages)
	home, inFile := c.members[0].node, []pagetable.Page{}
	c.members[0].inReactor(func() {
		for p := first; p < first+pages; p++ {
			if len(inFile) < some && home.drive.engine.Home(protocol.PageObject(uint64(p))) == 0 && backing.InFile(home.drive.exec.store, p) {
				inFile = append(inFile, p)
			}
		}
	})
	if len(inFile) < some {
		t.Fatalf("%d pages are in the spill file of their home", len(inFile))
	}
	for _, p := range inFile { // so the owner has them for reading only
		d.load(p, 0)
	}
	goOn := make(chan struct{})
	home.news.tell(func() { <-goOn })
	var accesses []chan error
	for _, by := range []struct {
		node int
		prog *prog
		do   func([]byte)
	}{{1, b, func([]byte) {}}, {2, d, func(page []byte) { binary.NativeEndian.PutUint64(page, 7) }}} {
		before := c.members[by.node].counter("messages_sent")
		for _, p := range inFile {
			accesses = append(accesses, by.prog.access(p, by.prog == d, by.do))
		}
		eventually(t, "they are asked for", func() bool { return c.members[by.node].counter("messages_sent") >= before+some })
	}
	close(goOn)
	for _, access := range accesses {
		b.settled(access)
	}
	for _, p := range inFile {
		if got := b.load(p, 0); got != 7 {
			t.Errorf("page %d holds %d on the node that has read it before", p, got)
		}
	}
	c.quiet()
}

// TestLoadsEnd: what waits for pages in the spill file is carried out before an epoch begins, and
// nothing comes of it when the pages are freed first.
func TestLoadsEnd(t *testing.T) {
	t.Parallel()
	c, _, first := startSpilling(t, 2*leastRoom)
	d, inFile := c.members[0].node.drive, pagetable.Page(0)
	load := func() { // for a backup
		if !d.loads.delay(&protocol.Effect{Kind: protocol.EffectBackup, Object: protocol.PageObject(uint64(inFile)), Source: protocol.SourcePage}) {
			t.Error("the reactor waits for the disk")
		}
	}
	c.members[0].inReactor(func() {
		for inFile = first; !backing.InFile(d.exec.store, inFile); inFile++ {
		}
		load()
		waits := d.loads.delay(&protocol.Effect{Kind: protocol.EffectSend, Message: protocol.EpochMarker{Epoch: 1}.To(1)})
		if kept := d.exec.contents.backups.pages[inFile]; waits || len(kept) == 0 || binary.NativeEndian.Uint64(kept) != uint64(inFile-first)+1 {
			t.Errorf("the next epoch waits: %t, and %d bytes have come before it", waits, len(kept))
		}
		d.exec.contents.backups.forget(inFile, 1)
	})
	c.members[0].inReactor(func() {
		load()
		d.loads.drop(inFile, 1)
	})
	c.quiet()
	if n := len(d.exec.contents.backups.pages); n != 0 {
		t.Errorf("%d backups of a page that was freed", n)
	}
}

// late are three nodes with little room. The first has a page in its spill file, and a read of that
// file ends only when the test says so.
type late struct {
	*tight
	progs []*prog
	page  pagetable.Page      // of the first node: it is the home, too
	holds uint64              // what is in it
	over  func([]byte, error) // ends the read
}

// startLate starts such nodes.
func startLate(t *testing.T) *late {
	t.Helper()
	const pages = 6 * leastRoom
	s := surviving(3, sim.Options{})
	s.pages, s.spill = pages+HomeStripe, true
	c := &late{tight: startTight(t, s, 0, 1, 2)}
	for _, m := range c.members {
		c.progs = append(c.progs, m.join())
	}
	first := share("x", pages, c.progs...)
	c.progs[0].number(first, pages)
	d := c.members[0].node.drive
	eventually(t, "a page is in the spill file of its home, and nothing is on its way there", func() (found bool) {
		c.members[0].inReactor(func() {
			for page := first; page < first+pages && !found; page++ {
				c.page, c.holds = page, uint64(page-first)+1
				found = d.engine.Home(protocol.PageObject(uint64(page))) == 0 && backing.InFile(d.exec.store, page)
			}
			found = found && backing.Writing(d.exec.store)+d.exec.store.Loading() == 0
		})
		return found
	})
	return c
}

// waits is whether effects of the first node wait for the page.
func (c *late) waits() (is bool) {
	c.members[0].inReactor(func() { is = c.members[0].node.drive.loads.byPage[c.page] != nil })
	return is
}

// readLate has a node read the page. The first one's read of its spill file does not end.
func (c *late) readLate(node int, got *uint64) chan error {
	loads := &c.members[0].node.drive.loads
	c.members[0].inReactor(func() {
		loads.read = func(page pagetable.Page, over func([]byte, error)) error {
			if page != c.page || c.over != nil {
				return backing.Copy(loads.drive.exec.store, page, over)
			}
			c.over = over
			return nil
		}
	})
	access := c.progs[node].access(c.page, false, func(page []byte) { *got = binary.NativeEndian.Uint64(page) })
	eventually(c, "it is asked for", c.waits)
	return access
}

// end ends the read, with something that the page has never held. Nobody waits for it any more.
func (c *late) end() {
	c.members[0].inReactor(func() {
		c.over(bytes.Repeat([]byte{0xff}, 4096), nil)
		if c.members[0].node.drive.exec.contents.loaded[c.page] != nil {
			c.Error("what the disk says late is taken for what the page holds")
		}
	})
}

// wantPage checks what a program loads from the page, and stores one more.
func (c *late) wantPage(by *prog, want uint64) {
	by.Helper()
	by.wantLoad(c.page, 0, want)
	by.store(c.page, 0, want+1)
}

// TestViewBeforeLoad: a node begins to leave while another one waits for a page that is read from
// the spill file. The page is granted before the next epoch begins, and what the disk says later
// changes nothing.
func TestViewBeforeLoad(t *testing.T) {
	t.Parallel()
	c := startLate(t)
	leaver := c.members[1]
	c.progs[1].wantLoad(c.page, 0, c.holds) // so it is for reading only
	c.progs[1].leave()
	eventually(t, "the program has left", func() bool { return leaver.counter("programs") == 0 })
	var got uint64
	access := c.readLate(2, &got)
	c.drainNode(leaver)
	c.inView(2, 0, 2)
	c.progs[2].settled(access)
	if c.waits() || got != c.holds {
		t.Errorf("effects of an epoch that is over wait for the page, or it was granted with %d; want %d", got, c.holds)
	}
	c.end()
	c.wantPage(c.progs[0], c.holds)
	c.wantPage(c.progs[2], c.holds+1)
	c.without(1)
	c.quiet()
}

// TestLoadForLost: the node is lost for which a page is made read-only that is read from the spill
// file. The others go on while the disk does not answer that read, and nothing is lost.
func TestLoadForLost(t *testing.T) {
	t.Parallel()
	c := startLate(t)
	var got uint64
	c.readLate(1, &got)
	c.sever(1)
	c.recovered(1, 0, 2)
	c.end()
	c.wantPage(c.progs[2], c.holds)
	c.wantPage(c.progs[0], c.holds+1)
	c.without(1)
	c.quiet()
}
