package node

import (
	"sort"

	"dsmd/pagetable"
	"dsmd/protocol"
)

// Reading ahead. A thread that faults on one page after another pays for each the way to another node and back. When it is seen to go over
// a run of pages, the next ones are asked for together with the one that it waits for, and arrive together.
//
// What is fetched ahead is a valid copy like any other, got by the same transactions, so no order of accesses becomes possible that was not
// before. What can be lost is speed, if pages are taken from others and not used: so it begins small, and doubles only as long as
// the thread goes on exactly where the last run ended.

const (
	// maxAhead bounds how many pages are asked for ahead at a time: as many as a Prefetch call has on their way, 1 MiB of pages of 4 KiB. The thread waits for
	// them for about a millisecond, and only one that has just used half as many does.
	maxAhead = fetchWindow
	// firstNeed is how many faults must have followed their neighbours before anything is asked for ahead. The number doubles, up to mostNeed, each
	// time that a run ended before it had used what was asked for, and halves when one went on.
	firstNeed, mostNeed = 2, 16
	// maxStreams bounds the threads whose last faults are remembered. A thread more replaces another, which has to show its run again.
	maxStreams = 64
)

// stream is where a thread's run of faults is.
type stream struct {
	thread uint32
	access protocol.Access
	next   pagetable.Page // where it will fault next, if it goes on
	window uint64         // how many pages were asked for ahead of the last one
	run    int            // how many faults have followed their neighbours since the last one that did not
	need   int            // see firstNeed
}

// streams are the threads' runs.
type streams struct {
	list []stream
	turn int // the next to be replaced
}

// of returns the thread's stream, new if need be.
func (s *streams) of(thread uint32) *stream {
	for i := range s.list {
		if s.list[i].thread == thread {
			return &s.list[i]
		}
	}
	fresh := stream{thread: thread, need: firstNeed}
	if len(s.list) < maxStreams {
		s.list = append(s.list, fresh)
		return &s.list[len(s.list)-1]
	}
	t := &s.list[s.turn]
	s.turn = (s.turn + 1) % maxStreams
	*t = fresh
	return t
}

// follow notes a fault on a page that is not here, and decides how many pages behind it to ask for.
func (t *stream) follow(page pagetable.Page, access protocol.Access) {
	sequel := page == t.next && access == t.access
	switch {
	case sequel && t.window > 0:
		t.window = min(2*t.window, maxAhead)
		t.need = max(t.need/2, firstNeed)
	case sequel:
		if t.run++; t.run >= t.need {
			t.window = 1
		}
	default:
		if t.window > 0 {
			t.need = min(2*t.need, mostNeed)
		}
		t.window, t.run = 0, 0
	}
	t.access, t.next = access, page+1
}

// ahead asks for the pages behind the one that a thread has just missed, if it goes over a run. The caller asks for the missed page itself
// afterwards: it then arrives last, and the thread does not fault on those that are still on their way.
func (n *Node) ahead(ev *pagetable.Event, access protocol.Access) {
	if ev.Thread == 0 {
		return // the kernel does not say whose fault it is
	}
	t := n.streams.of(ev.Thread)
	t.follow(ev.Page, access)
	if t.window == 0 {
		return
	}
	end := max(ev.Page+1, min(ev.Page+1+pagetable.Page(t.window), n.extents.end(ev.Page)))
	for page := ev.Page + 1; page < end; page++ {
		id := protocol.PageObject(uint64(page))
		if n.engine.Access(id) >= access || n.engine.Waiting(id) {
			continue
		}
		n.count.aheadPages.Add(1)
		n.fetchPage(page, access, ev.Proc)
	}
	t.next = end
}

// extents are the runs of pages that programs of this node have allocated: beyond them nothing is asked for.
type extents struct {
	list []extent // in ascending order, disjoint
}

type extent struct {
	first, end pagetable.Page
	name       string // of the allocation, for people
}

// search returns the first extent that ends after page.
func (x *extents) search(page pagetable.Page) int {
	return sort.Search(len(x.list), func(i int) bool { return page < x.list[i].end })
}

// add notes an allocation. Known ones are ignored.
func (x *extents) add(first pagetable.Page, count uint64, name string) {
	i := x.search(first)
	if count == 0 || i < len(x.list) && x.list[i].first <= first {
		return
	}
	x.list = append(x.list, extent{})
	copy(x.list[i+1:], x.list[i:])
	x.list[i] = extent{first, first + pagetable.Page(count), name}
}

// drop forgets the allocation that begins at a page.
func (x *extents) drop(first pagetable.Page) {
	if i := x.search(first); i < len(x.list) && x.list[i].first == first {
		x.list = append(x.list[:i], x.list[i+1:]...)
	}
}

// name is what the allocation with a page is called; "" if it is in none that this node knows.
func (x *extents) name(page pagetable.Page) string {
	if i := x.search(page); i < len(x.list) && x.list[i].first <= page {
		return x.list[i].name
	}
	return ""
}

// end is where the allocation with a page ends; the page itself if it is in none.
func (x *extents) end(page pagetable.Page) pagetable.Page {
	if i := x.search(page); i < len(x.list) && x.list[i].first <= page {
		return x.list[i].end
	}
	return page
}
