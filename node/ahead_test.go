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

// hike is a thread that goes on where what was asked for ends.
type hike struct {
	w    *tracker
	page pagetable.Page
}

// touch takes faults at a distance, and returns how many pages were asked for ahead.
func (h *hike) touch(faults int, stride int64) (ahead int) {
	for range faults {
		s := h.w.follow(h.page, protocol.Read)
		s.next += pagetable.Page(s.stride * int64(s.window))
		ahead += s.window
		h.page += pagetable.Page(stride * int64(1+s.window))
	}
	return ahead
}

// TestRunsAreLearned: how much is asked for ahead grows with a run, and what begins like a run and is none makes it careful.
func TestRunsAreLearned(t *testing.T) {
	for _, stride := range []int64{1, -1, 5, -maxStride, maxStride} {
		w := trackers{}
		h := hike{w: w.of(7), page: 1 << 40}
		begins := func() int { return 1 + (&stream{stride: stride}).needs(h.w.need) }
		if got := h.touch(begins(), stride); got != 1 {
			t.Errorf("stride %d: at first %d pages are asked for ahead, want 1", stride, got)
		}
		if got := h.touch(3, stride); got != 2+4+8 {
			t.Errorf("stride %d: the next three faults ask for %d ahead, want 14", stride, got)
		}
		if got := h.touch(10, stride); got < 2*maxAhead || got > 10*maxAhead {
			t.Errorf("stride %d: ten more ask for %d ahead, want the most, %d, for some", stride, got, maxAhead)
		}
		for range 40 { // runs that end as soon as something is asked for
			h.page += 5000
			h.touch(begins(), stride)
		}
		if h.w.need != mostNeed {
			t.Errorf("stride %d: after many short runs %d faults in a row are needed, want %d", stride, h.w.need, mostNeed)
		}
		h.page += 5000
		if got := h.touch(mostNeed, stride); got != 0 {
			t.Errorf("stride %d: %d pages were asked for after %d faults in a row", stride, got, mostNeed)
		}
		h.touch(10, stride)
		if h.w.need != firstNeed {
			t.Errorf("stride %d: after a long run %d faults in a row are needed, want %d", stride, h.w.need, firstNeed)
		}
	}
}

// TestRunsDoNotMeet: a thread that goes over several arrays in turns, or loads and stores, is in several runs, and each goes on.
func TestRunsDoNotMeet(t *testing.T) {
	w := trackers{}
	var hikes [maxStreams]hike
	for i := range hikes {
		hikes[i] = hike{w: w.of(7), page: pagetable.Page(1000000 * (i + 1))}
	}
	asked := 0
	for range 10 {
		for i := range hikes {
			asked += hikes[i].touch(1, int64(i+1))
		}
	}
	if want := len(hikes) * (1 + 2 + 4 + 8 + 16 + 32); asked < want {
		t.Errorf("%d runs of 10 faults have asked for %d pages, want %d", len(hikes), asked, want)
	}
	s := hikes[0].w.follow(hikes[0].page, protocol.Write)
	if s.window != 0 {
		t.Error("a store after a run of loads goes on with the run")
	}
}

// TestFarFaultsAreNoRun: pages that lie far apart don't belong together, however equal the distances.
func TestFarFaultsAreNoRun(t *testing.T) {
	w := trackers{}
	h := hike{w: w.of(7), page: 5}
	if got := h.touch(100, maxStride+1); got != 0 {
		t.Errorf("%d pages were asked for ahead", got)
	}
}

func TestTrackersAreBounded(t *testing.T) {
	var w trackers
	for thread := range uint32(3 * maxThreads) {
		w.of(thread+1).follow(5, protocol.Read)
	}
	if len(w.list) != maxThreads {
		t.Errorf("%d threads are remembered, want %d", len(w.list), maxThreads)
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
				e := extent{first: first, end: first + pagetable.Page(count), name: fmt.Sprint(first)}
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
					want, ok := owner[p]
					if !ok {
						want = extent{first: p, end: p + 1}
					}
					if got := x.of(p); got != want {
						t.Fatalf("page %d is in %v, want %v (%v)", p, got, want, x.list)
					}
				}
			},
		})
	})
}
