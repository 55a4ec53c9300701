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
	// maxAhead bounds how many pages are asked for ahead at a time: 256 KiB of pages of 4 KiB, for which the thread waits as long as for a few faults.
	maxAhead = 64
	// refill is the least that is asked for while a thread goes on: few enough that it hardly comes to where nothing is on its way, many enough
	// that they are dealt with together.
	refill = maxAhead / 4
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
	// reached is the page of its last fault, and next the one behind what was asked for: there it will fault next, if it goes on.
	reached, next pagetable.Page
	window        uint64 // how many pages were asked for ahead of the last one
	run           int    // how many faults have followed their neighbours since the last one that did not
	need          int    // see firstNeed
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
	t.access, t.reached, t.next = access, page, page+1
}

// steady says that the thread has gone over a run for long: then it is not kept waiting until all that was asked for is here, but
// more is asked for while it goes on.
func (t *stream) steady() bool { return t.window == maxAhead }

// pass notes a fault on a page that is on its way already, and says whether to ask for more. The thread has caught up with what arrives, and
// from there on the window is to be full again.
func (t *stream) pass(page pagetable.Page, access protocol.Access) bool {
	if !t.steady() || access != t.access || page <= t.reached || page >= t.next {
		return false
	}
	t.reached = page
	return page+1+maxAhead-t.next >= refill
}

// followed returns the stream of a thread that has just missed a page, nil if nothing is to be asked for ahead.
func (n *Node) followed(ev *pagetable.Event, access protocol.Access) *stream {
	if ev.Thread == 0 {
		return nil // the kernel does not say whose fault it is
	}
	t := n.streams.of(ev.Thread)
	if t.follow(ev.Page, access); t.window == 0 {
		return nil
	}
	return t
}

// passed does the same for a fault on a page that is on its way.
func (n *Node) passed(ev *pagetable.Event, access protocol.Access) *stream {
	if ev.Thread == 0 {
		return nil
	}
	if t := n.streams.of(ev.Thread); t.pass(ev.Page, access) {
		return t
	}
	return nil
}

// ahead asks for the pages of a stream's window that were not asked for. The caller asks for the missed page itself afterwards, if the
// stream is not steady: that page then arrives last, and the thread does not fault on those that are still on their way. If it is
// steady it is better to fault on some: it says by that how far it is.
func (n *Node) ahead(t *stream, proc pagetable.ProcID) {
	end := max(t.next, min(t.reached+1+pagetable.Page(t.window), n.extents.end(t.reached)))
	for page := t.next; page < end; page++ {
		id := protocol.PageObject(uint64(page))
		if n.engine.Access(id) >= t.access || n.engine.Waiting(id) {
			continue
		}
		n.count.aheadPages.Add(1)
		n.fetchPage(page, t.access, proc)
	}
	t.next = end
}

// extents are the runs of pages that programs of this node have allocated: beyond them nothing is asked for.
type extents struct {
	list []extent // in ascending order, disjoint
}

type extent struct{ first, end pagetable.Page }

// search returns the first extent that ends after page.
func (x *extents) search(page pagetable.Page) int {
	return sort.Search(len(x.list), func(i int) bool { return page < x.list[i].end })
}

// add notes an allocation. Known ones are ignored.
func (x *extents) add(first pagetable.Page, count uint64) {
	i := x.search(first)
	if count == 0 || i < len(x.list) && x.list[i].first <= first {
		return
	}
	x.list = append(x.list, extent{})
	copy(x.list[i+1:], x.list[i:])
	x.list[i] = extent{first, first + pagetable.Page(count)}
}

// drop forgets the allocation that begins at a page.
func (x *extents) drop(first pagetable.Page) {
	if i := x.search(first); i < len(x.list) && x.list[i].first == first {
		x.list = append(x.list[:i], x.list[i+1:]...)
	}
}

// end is where the allocation with a page ends; the page itself if it is in none.
func (x *extents) end(page pagetable.Page) pagetable.Page {
	if i := x.search(page); i < len(x.list) && x.list[i].first <= page {
		return x.list[i].end
	}
	return page
}
