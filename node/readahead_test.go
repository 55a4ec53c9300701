package node

import (
	"encoding/binary"
	"testing"

	"dsmd/pagetable"
)

// walk lets one thread store to, or load from, count pages in a row.
func (p *prog) walk(thread uint32, first pagetable.Page, count int, write bool, do func(i int, page []byte)) {
	p.Helper()
	for i := range count {
		err := p.table.AccessBy(1<<31+thread, p.id, first+pagetable.Page(i), write, func(b []byte) { do(i, b) })
		if err != nil {
			p.Fatal(err)
		}
	}
}

// TestAhead: a thread that goes over a run of pages faults on few of them, for reading what another
// node wrote, for writing what another node has, and for touching what nobody has.
func TestAhead(t *testing.T) {
	const pages = 300
	everyHost(t, 3, func(t *testing.T, c *cluster) {
		a, b := c.members[0].join(), c.members[1].join()
		name, fresh := "written", "untouched"
		first, untouched := a.bind(name, pages), a.bind(fresh, pages)
		if b.bind(name, pages) != first || b.bind(fresh, pages) != untouched {
			t.Fatal("two nodes see an allocation in different places")
		}
		put := func(off int) func(int, []byte) {
			return func(i int, b []byte) { binary.NativeEndian.PutUint64(b[off:], uint64(i)+1) }
		}
		few := func(what string, m *member, do func()) {
			t.Helper()
			before := m.misses()
			do()
			if n := m.misses() - before; n > pages/10 {
				t.Errorf("%s: %d faults for %d pages in a row", what, n, pages)
			}
		}
		few("first touch", c.members[0], func() { a.walk(1, first, pages, true, put(0)) })
		few("reading", c.members[1], func() {
			b.walk(1, first, pages, false, func(i int, page []byte) {
				if v := binary.NativeEndian.Uint64(page); v != uint64(i)+1 {
					t.Errorf("page %d holds %d", i, v)
				}
			})
		})
		few("writing", c.members[1], func() { b.walk(1, first, pages, true, put(8)) })

		for i := range pagetable.Page(pages) {
			a.wantLoad(untouched+i, 0, 0)
			a.wantLoad(first+i, 8, uint64(i)+1)
		}
		c.quiet()
	})
}

// TestAheadStaysInTheAllocation: nothing is asked for behind the end of an allocation, nor where
// nothing is known to be allocated.
func TestAheadStaysInTheAllocation(t *testing.T) {
	const pages = 40
	c := start(t, setup{nodes: 2})
	a, b := c.members[0].join(), c.members[1].join()
	first := b.bind("short", pages)
	a.fill(first+pages, 1) // somebody else's
	set := func(_ int, page []byte) { page[0] = 1 }
	b.walk(1, first, pages, true, set)
	b.sync()
	asked := c.members[1].misses() + c.members[1].counter("ahead_pages")
	if asked != pages {
		t.Errorf("%d pages were asked for, of an allocation of %d", asked, pages)
	}
	a.store(first+pages, 8, 2) // still there, so no fault
	if n := c.members[0].misses(); n != 1 {
		t.Errorf("node 0 faulted %d times on a page of its own", n)
	}
	before := c.members[1].counter("ahead_pages")
	b.walk(1, first+1000, 20, true, set)
	if n := c.members[1].counter("ahead_pages") - before; n != 0 {
		t.Errorf("%d pages were asked for ahead where nothing is allocated", n)
	}
	c.quiet()
}
