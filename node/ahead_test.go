package node

import (
	"encoding/binary"
	"fmt"
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"

	"pgregory.net/rapid"
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

// TestAhead: a thread that goes over a run of pages faults on few of them, for reading what another node wrote, for writing
// what another node has, and for touching what nobody has.
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

// TestAheadStaysInTheAllocation: nothing is asked for behind the end of an allocation, nor where nothing is known to be allocated.
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

// TestStreamLearns: how much is asked for ahead grows with a run, and what begins like a run and is none makes it careful.
func TestStreamLearns(t *testing.T) {
	var s streams
	page := pagetable.Page(1000)
	touch := func(run int) (ahead uint64) { // run faults, each where the last window ended
		st := s.of(7)
		for range run {
			st.follow(page, protocol.Read)
			page = st.next + pagetable.Page(st.window)
			st.next = page
			ahead += st.window
		}
		return ahead
	}
	if got := touch(1 + firstNeed); got != 1 {
		t.Errorf("after %d pages in a row %d are asked for ahead, want 1", 1+firstNeed, got)
	}
	if got := touch(3); got != 2+4+8 {
		t.Errorf("the next three faults ask for %d ahead, want 14", got)
	}
	touch(10)
	if got := s.of(7).window; got != maxAhead {
		t.Errorf("a long run asks for %d ahead, want %d", got, maxAhead)
	}
	for range 20 { // runs that end as soon as something is asked for
		page += 500
		touch(1 + s.of(7).need)
	}
	if got := s.of(7).need; got != mostNeed {
		t.Errorf("after many short runs %d faults in a row are needed, want %d", got, mostNeed)
	}
	page += 500
	if got := touch(mostNeed); got != 0 {
		t.Errorf("%d pages were asked for after %d faults in a row", got, mostNeed)
	}
	touch(10)
	if got := s.of(7).need; got != firstNeed {
		t.Errorf("after a long run %d faults in a row are needed, want %d", got, firstNeed)
	}
	st := s.of(7)
	st.follow(page, protocol.Write)
	if st.window != 0 {
		t.Error("a store after a run of loads goes on with the run")
	}
}

func TestStreamsAreBounded(t *testing.T) {
	var s streams
	for thread := range uint32(3 * maxStreams) {
		s.of(thread+1).follow(5, protocol.Read)
	}
	if len(s.list) != maxStreams {
		t.Errorf("%d threads are remembered, want %d", len(s.list), maxStreams)
	}
}

// TestExtents compares extents with a plain set of pages.
func TestExtents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x extents
		owner := map[pagetable.Page]extent{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				first, count := pagetable.Page(rapid.IntRange(0, 60).Draw(t, "first")), uint64(rapid.IntRange(0, 8).Draw(t, "count"))
				e := extent{first, first + pagetable.Page(count), fmt.Sprint(first)}
				for p := e.first; p < e.end; p++ {
					if _, taken := owner[p]; taken && owner[p] != e {
						return // the directory of names gives no page out twice
					}
				}
				x.add(first, count, e.name)
				for p := e.first; p < e.end; p++ {
					owner[p] = e
				}
			},
			"drop": func(t *rapid.T) {
				first := pagetable.Page(rapid.IntRange(0, 60).Draw(t, "first"))
				x.drop(first)
				for p, e := range owner {
					if e.first == first {
						delete(owner, p)
					}
				}
			},
			"": func(t *rapid.T) {
				for p := range pagetable.Page(70) {
					want := p
					if e, ok := owner[p]; ok {
						want = e.end
					}
					if got := x.end(p); got != want {
						t.Fatalf("the allocation with page %d ends at %d, want %d (%v)", p, got, want, x.list)
					}
					if got := x.name(p); got != owner[p].name {
						t.Fatalf("the allocation with page %d is called %q, want %q (%v)", p, got, owner[p].name, x.list)
					}
				}
			},
		})
	})
}
