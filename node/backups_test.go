package node

import (
	"encoding/binary"
	"os"
	"testing"

	"dsmd/internal/attach"
	"dsmd/pagetable"
	"dsmd/transport/sim"
)

// countersOfBackups are what moves only where memory is replicated.
var countersOfBackups = []string{"commit_calls", "backups_sent", "backups", "backups_restored"}

// TestUntouchedReplicatedMemory: replicated memory to which nobody has stored, or nobody but a node
// that is lost and had not committed it, begins with zeros at those that are left, wherever its
// homes were.
func TestUntouchedReplicatedMemory(t *testing.T) {
	c := start(t, surviving(3, sim.Options{}))
	const pages = 6 * HomeStripe
	var first pagetable.Page
	for _, m := range c.members {
		first = m.join().bindAs(replicatedCall("x", pages, 1))
	}
	lost, left := c.members[0].programs[0], c.members[1].programs[0]
	for i := range pagetable.Page(pages) {
		if i%2 == 0 {
			lost.store(first+i, 8, 7)
		}
	}
	c.sever(0)
	c.recovered(1, 1, 2)
	c.without(0)
	for i := range pagetable.Page(pages) {
		left.wantLoad(first+i, 8, 0)
	}
	c.quiet()
}

// TestReplicatedMemorySurvives: of nodes that keep backups one leaves and comes back, knowing
// nothing, and then the one that has written is lost. What it had committed is there.
func TestReplicatedMemorySurvives(t *testing.T) {
	s := surviving(4, sim.Options{})
	c := start(t, s)
	c.lossy = true
	const pages = 8 * HomeStripe
	bind := replicatedCall("x", pages, 1)
	writer, reader := c.members[1].join(), c.members[2].join()
	first := writer.bindAs(bind)
	reader.bindAs(bind)
	for i := range pagetable.Page(pages) {
		writer.store(first+i, 8, uint64(i)+1)
	}
	writer.ok(attach.Call{Op: attach.OpCommit})
	moved := map[string]bool{}
	look := func() {
		for _, m := range c.members {
			for name, value := range m.ask() {
				moved[name] = moved[name] || value > 0
			}
		}
	}
	look()
	c.drainNode(c.members[0])
	c.inView(2, 1, 2, 3)
	c.comeBack(0, s)
	c.inView(3, 0, 1, 2, 3)
	c.sever(1)
	c.inView(4, 0, 2, 3)
	c.without(1)
	for i := range pagetable.Page(pages) {
		reader.wantLoad(first+i, 8, uint64(i)+1)
	}
	look()
	for _, m := range c.members {
		m.want(map[string]uint64{"pages_lost": 0})
	}
	for _, name := range countersOfBackups {
		if !moved[name] {
			t.Errorf("nothing moves %s", name)
		}
	}
}

// TestCommitOfUnloaded: replicated memory begins in a file, and some pages that nobody has changed
// have left memory when it is committed. Nobody reads the file for their backups. When the node is
// lost that had them they begin there again.
func TestCommitOfUnloaded(t *testing.T) {
	t.Parallel()
	const pages, lost = 2 * leastRoom, 1
	for name, reader := range map[string]uint16{"here": lost, "elsewhere": 0} {
		t.Run(name, func(t *testing.T) {
			either(t, func(t *testing.T, async bool) {
				s := surviving(3, sim.Options{})
				s.pages, s.async = pages+HomeStripe, async
				c := startTight(t, s, lost)
				c.lossy = true
				files := make([]*os.File, len(c.members))
				files[reader] = laid(t, pages*4096, same)
				what := attach.Contents{Bytes: pages * 4096, Readers: []uint16{reader}}
				var all []*prog
				var first pagetable.Page
				for _, m := range c.members {
					p := m.join()
					all, first = append(all, p), p.bindAs(replicatedCall("x", pages, 1))
				}
				begin(first, pages, what, files, all...)
				writer := all[lost]
				writer.wantPages(first, pages, asLaid)
				if n := c.members[lost].counter("pages_unloaded"); n < pages-leastRoom {
					t.Errorf("%d of %d pages have left memory", n, pages)
				}
				isStored := func(i int) bool { return i%7 == 0 }
				for i := range pages {
					if isStored(i) {
						writer.store(first+pagetable.Page(i), 8, 1)
					}
				}
				writer.ok(attach.Call{Op: attach.OpCommit})
				m := c.members[lost]
				if sent, kept := m.counter("pages_sent"), m.counter("backups_sent"); kept == 0 || sent >= kept {
					t.Errorf("for %d backups %d pages were sent", kept, sent)
				}
				c.sever(lost)
				c.inView(1, 0, 2)
				c.without(lost)
				want := func(i int) []byte {
					b := pageOf(uint64(i))
					if isStored(i) {
						binary.NativeEndian.PutUint64(b[8:], 1)
					}
					return b
				}
				for i := range pages {
					if isStored(i) || reader != lost {
						all[2].wantPage(first+pagetable.Page(i), want(i))
					}
				}
				c.quiet()
			})
		})
	}
}

// TestOrderlyDeparture: when a node has left in order nobody copies once more what it had copied.
func TestOrderlyDeparture(t *testing.T) {
	t.Parallel()
	s := surviving(4, sim.Options{})
	c := start(t, s)
	c.lossy = true
	const pages = 16 * HomeStripe
	writer := c.members[0].join()
	first := writer.bindAs(replicatedCall("x", pages, 1))
	for i := range pagetable.Page(pages) {
		writer.store(first+i, 8, uint64(i)+1)
	}
	writer.ok(attach.Call{Op: attach.OpCommit})
	sent := func() (n uint64) {
		for _, m := range c.members {
			n += m.counter("backups_sent")
		}
		return n
	}
	before := sent()
	c.drainNode(c.members[3])
	c.without(3)
	for _, m := range c.members {
		eventually(t, "all is handed over", func() bool { return m.counter("members") == 3 && m.counter("epoch_handed_over") == m.counter("epoch") })
	}
	// all are copied once, when the node begins to leave
	if n := sent() - before; n > pages {
		t.Errorf("%d backups of %d pages were copied for one node that left", n, pages)
	}
}
