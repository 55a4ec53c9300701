package node

import (
	"encoding/binary"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/pagetable"
)

func (p *prog) pin(first pagetable.Page, pages uint64, a attach.Access) (ticket uint64) {
	p.Helper()
	return p.ok(attach.Call{Op: attach.OpPin, Object: uint64(first), Count: pages, Access: a}).Ticket
}

func (p *prog) unpin(ticket uint64) {
	p.Helper()
	write(p, p.conn, attach.AppendCall(nil, &attach.Call{Op: attach.OpUnpin, Object: ticket}))
}

// waits checks that an access has not got through, once nothing more happens on this node.
func waits(t *testing.T, why string, access chan error) {
	t.Helper()
	select {
	case err := <-access:
		t.Fatalf("an access got through although %s (%v)", why, err)
	default:
	}
}

// TestPin: a page that is pinned stays, for reading or for writing, until the last pin ends.
func TestPin(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := c.pageAt(0, 0)
		b.store(page, 0, 1)
		one, two := a.pin(page, 3, attach.Write), a.pin(page, 1, attach.Read)
		var v uint64
		load := b.access(page, false, func(x []byte) { v = binary.NativeEndian.Uint64(x) })
		eventually(t, "the daemon is asked for the page", func() bool { return putOff(c.members[0]) == 1 })
		waits(t, "the page is pinned for writing", load)
		a.store(page, 0, 2)
		a.unpin(one)
		b.settled(load)
		if v != 2 {
			t.Errorf("the page holds %d, want 2", v)
		}
		store := b.access(page, true, func(x []byte) { binary.NativeEndian.PutUint64(x, 3) })
		eventually(t, "the daemon is asked for the page again", func() bool { return putOff(c.members[0]) == 2 })
		waits(t, "the page is pinned for reading", store)
		a.wantLoad(page, 0, 2)
		a.unpin(two)
		b.settled(store)
		a.wantLoad(page, 0, 3)
		c.quiet()
	})
}

// TestPinIsBroken: who waits for a pinned page waits for the node's patience, not for ever; also a
// thread of the pinning program itself, which may be what keeps it from ending the pin.
func TestPinIsBroken(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := start(t, setup{
			nodes: 2, async: async, before: func(n *Node) { n.pins.patience = 20 * time.Millisecond },
			// as a daemon that has had nothing to do for long
			change: func(cfg *Config) { cfg.Core.Spin = -1 },
		})
		a, b := c.members[0].join(), c.members[1].join()
		page := c.pageAt(1, 0)
		b.store(page, 0, 1)
		ticket := a.pin(page, 2, attach.Read)
		mine := a.access(page, true, func(x []byte) { binary.NativeEndian.PutUint64(x, 2) })
		theirs := b.access(page, true, func(x []byte) { binary.NativeEndian.PutUint64(x, 3) })
		a.settled(mine)
		b.settled(theirs)
		if got := c.members[0].counter("pin_breaks"); got == 0 {
			t.Error("no pin was broken")
		}
		a.unpin(ticket)
		again := a.pin(page, 2, attach.Write)
		a.store(page, 0, 4)
		a.unpin(again)
		b.wantLoad(page, 0, 4)
		c.quiet()
	}
}

// putOff is how many operations have had to wait for the end of a pin.
func putOff(m *member) uint64 { return m.counter("pin_waits") }

// TestPinIsSharedOnNode: a second program of the node can use a page that another node wants and
// the first has pinned, or the two would wait for each other.
func TestPinIsSharedOnNode(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := start(t, setup{nodes: 2, ranks: 3, async: async})
		a, b := c.members[0].joinAs(0), c.members[1].joinAs(1)
		neighbour := c.members[0].joinAs(2)
		page := c.pageAt(1, 0)
		ticket := a.pin(page, 1, attach.Write)
		load := b.access(page, false, func([]byte) {})
		eventually(t, "the daemon is asked for the page", func() bool { return putOff(c.members[0]) == 1 })
		// The first program has not touched the page yet.
		a.store(page, 0, 6)
		neighbour.store(page, 0, 7)
		waits(t, "the page is pinned", load)
		a.unpin(ticket)
		b.settled(load)
		b.wantLoad(page, 0, 7)
		c.quiet()
	}
}

// TestPinBesideAPin: a program that pins a page for reading, after another node has asked for it,
// takes nothing from the program that has pinned it for writing.
func TestPinBesideAPin(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := start(t, setup{nodes: 2, ranks: 3, async: async})
		a, b := c.members[0].joinAs(0), c.members[1].joinAs(1)
		neighbour := c.members[0].joinAs(2)
		page := c.pageAt(1, 0)
		a.store(page, 0, 5) // so that it is mapped here, and not in the other program
		writing := neighbour.pin(page, 1, attach.Write)
		load := b.access(page, false, func([]byte) {})
		eventually(t, "the daemon is asked for the page", func() bool { return putOff(c.members[0]) == 1 })
		reading := a.pin(page, 1, attach.Read)
		neighbour.store(page, 0, 6)
		waits(t, "the page is pinned for writing", load)
		neighbour.unpin(writing)
		b.settled(load)
		a.unpin(reading)
		b.wantLoad(page, 0, 6)
		c.quiet()
	}
}

// TestPinOfFreedMemory: a program that frees what it has pinned keeps others waiting, but its pin
// gives nobody more access than the node has.
func TestPinOfFreedMemory(t *testing.T) {
	for _, async := range []bool{false, true} {
		c := start(t, setup{nodes: 2, ranks: 3, async: async})
		a, b := c.members[0].joinAs(0), c.members[1].joinAs(1)
		neighbour := c.members[0].joinAs(2)
		page := a.bind("old", 1)
		ticket := a.pin(page, 1, attach.Write)
		a.ok(unbindCall("old"))
		if again := b.bind("new", 1); again != page {
			t.Fatalf("page %d was freed and page %d was given for it", page, again)
		}
		b.store(page, 0, 1)
		neighbour.wantLoad(page, 0, 1)
		two := b.access(page, true, func(x []byte) { binary.NativeEndian.PutUint64(x, 2) })
		eventually(t, "the daemon is asked for the page", func() bool { return putOff(c.members[0]) == 1 })
		three := neighbour.access(page, true, func(x []byte) { binary.NativeEndian.PutUint64(x[8:], 3) })
		neighbour.sync()
		waits(t, "another node is about to store", three)
		a.unpin(ticket)
		b.settled(two)
		neighbour.settled(three)
		b.wantLoad(page, 0, 2)
		b.wantLoad(page, 8, 3)
		c.quiet()
	}
}

// TestPinsEndWithTheirProgram: neither a pin nor one that is being waited for outlives its program
// or its call.
func TestPinsEndWithTheirProgram(t *testing.T) {
	everyHost(t, 2, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		page := c.pageAt(0, 0)
		a.pin(page, 4, attach.Write)
		pin := attach.Call{Op: attach.OpPin, Object: uint64(page), Count: 4, Access: attach.Write}
		ticket, answer := b.call(pin)
		eventually(t, "the daemon is asked for all pages", func() bool { return putOff(c.members[0]) == 4 })
		b.cancel(ticket)
		if r := b.answer(answer); r.Status != attach.StatusCanceled {
			t.Errorf("the pin was answered with %v", r.Status)
		}
		_, answer = b.call(pin)
		a.leave()
		if r := b.answer(answer); r.Status != attach.StatusOK {
			t.Errorf("the pin was answered with %v", r.Status)
		}
		c.quiet()
	})
}

// TestPinBounds: a program can't hold everything, nor end a pin twice.
func TestPinBounds(t *testing.T) {
	c := start(t, setup{nodes: 1})
	a := c.members[0].join()
	if r := a.do(attach.Call{Op: attach.OpPin, Object: 0, Count: maxPinned + 1, Access: attach.Read}); r.Status != attach.StatusNoSpace {
		t.Errorf("a pin of too many pages was answered with %v", r.Status)
	}
	if r := a.do(attach.Call{Op: attach.OpPin, Object: testPages, Count: 1, Access: attach.Read}); r.Status != attach.StatusUnknown {
		t.Errorf("a pin beyond the region was answered with %v", r.Status)
	}
	ticket := a.pin(0, 1, attach.Read)
	a.unpin(ticket)
	a.sync()
	a.unpin(ticket)
	<-a.ended // cut off
}
