package node

import (
	"sort"

	"dsmd/pagetable"
	"dsmd/protocol"
)

// Reading ahead. A thread that faults on one page after another pays for each the way to another node and back. When it is seen to go over
// a run of pages, or over pages at equal distances, the next ones are asked for together with the one that it waits for, and arrive together.
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
	// strideNeed is how many more must have followed each other at the same distance where that is not one page: it occurs by chance more often.
	strideNeed = 1
	// maxStride bounds the distance, in pages, at which two faults may belong together.
	maxStride = 64
	// maxThreads bounds the threads whose last faults are remembered. A thread more replaces another, which has to show its runs again.
	maxThreads = 64
	// maxStreams bounds the runs of one thread that are remembered. A loop seldom goes over more arrays, and of those that it reads and writes each has its own.
	maxStreams = 8
)

// stream is where a thread is in a run of faults.
type stream struct {
	access protocol.Access
	last   pagetable.Page // the last fault
	stride int64          // how far it was from the one before, in pages; 0: there was none
	next   pagetable.Page // where the thread will fault next, if it goes on
	window int            // how many pages were asked for ahead at the last fault
	run    int            // how many faults were as far from their predecessors as that
	used   uint64         // when it last went on, in faults of the thread; 0: never, the place is free
}

// tracker is a thread with its runs.
type tracker struct {
	thread  uint32
	faults  uint64
	need    int // see firstNeed
	streams [maxStreams]stream
}

// trackers are the threads.
type trackers struct {
	list []tracker
	turn int // the next to be replaced
}

// of returns what is known of a thread.
func (w *trackers) of(thread uint32) *tracker {
	for i := range w.list {
		if w.list[i].thread == thread {
			return &w.list[i]
		}
	}
	fresh := tracker{thread: thread, need: firstNeed}
	if len(w.list) < maxThreads {
		w.list = append(w.list, fresh)
		return &w.list[len(w.list)-1]
	}
	t := &w.list[w.turn]
	w.turn = (w.turn + 1) % maxThreads
	*t = fresh
	return t
}

// follow notes a fault on a page that is not here, and returns the run that it belongs to: the one that was expected to go on there, the one that it
// may be the beginning of, or a new one.
func (w *tracker) follow(page pagetable.Page, access protocol.Access) *stream {
	w.faults++
	s := w.find(func(s *stream) bool { return s.access == access && s.stride != 0 && s.next == page })
	switch {
	case s != nil && s.window > 0:
		s.window = min(2*s.window, maxAhead)
		w.need = max(w.need/2, firstNeed)
	case s != nil:
		if s.run++; s.run >= s.needs(w.need) {
			s.window = 1
		}
	default:
		s = w.begin(page, access)
	}
	s.used, s.last, s.next = w.faults, page, page+pagetable.Page(s.stride)
	return s
}

// needs is how many faults must have been at the same distance before anything is asked for ahead, where a run of neighbours needs so many.
func (s *stream) needs(neighbours int) int {
	if s.stride == 1 {
		return neighbours
	}
	return neighbours + strideNeed
}

// begin returns the run that a fault begins: as the second of one that had not shown a distance yet, or showed a wrong one, or as the first.
func (w *tracker) begin(page pagetable.Page, access protocol.Access) *stream {
	distance := func(s *stream) int64 { return int64(page) - int64(s.last) }
	s := w.find(func(s *stream) bool {
		d := distance(s)
		return s.access == access && s.window == 0 && d != 0 && -maxStride <= d && d <= maxStride
	})
	if s != nil {
		s.stride, s.run = distance(s), 1
		return s
	}
	s = &w.streams[0]
	for i := range w.streams {
		if w.streams[i].used < s.used {
			s = &w.streams[i]
		}
	}
	if s.window > 0 {
		w.need = min(2*w.need, mostNeed)
	}
	*s = stream{access: access}
	return s
}

// find returns the run of which something is true that went on last, nil if there is none.
func (w *tracker) find(is func(*stream) bool) (found *stream) {
	for i := range w.streams {
		if s := &w.streams[i]; s.used != 0 && (found == nil || s.used > found.used) && is(s) {
			found = s
		}
	}
	return found
}

// ahead asks for the pages behind the one that a thread has just missed, if it goes over a run. The caller asks for the missed page itself
// afterwards: it then arrives last, and the thread does not fault on those that are still on their way.
//
// missed is the access that this node has to that page. Where a thread stores to pages that are here for reading, the run ends with them: the next page is in
// use elsewhere, and would be taken away for nothing.
func (n *Node) ahead(ev *pagetable.Event, missed, access protocol.Access) {
	if ev.Thread == 0 {
		return // the kernel does not say whose fault it is
	}
	s := n.trackers.of(ev.Thread).follow(ev.Page, access)
	if s.window == 0 && access == protocol.Write {
		n.askAround(ev)
	}
	within := n.extents.of(ev.Page)
	for range s.window {
		page := s.next
		if page < within.first || page >= within.end {
			return
		}
		s.next += pagetable.Page(s.stride)
		id := protocol.PageObject(uint64(page))
		has := n.engine.Access(id)
		switch {
		case has >= access || n.engine.Waiting(id):
			continue
		case has < missed:
			return
		}
		n.count.aheadPages.Add(1)
		n.fetchPage(page, access, ev.Proc)
	}
}

// extents are the runs of pages that programs of this node have allocated: beyond them nothing is asked for.
type extents struct {
	list []extent // in ascending order, disjoint
}

type extent struct {
	first, end pagetable.Page
	name       string // of the allocation, for people
	taken      uint64 // how often its pages were fought for, see fought.go
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
	x.list[i] = extent{first: first, end: first + pagetable.Page(count), name: name}
}

// drop forgets the allocation that begins at a page.
func (x *extents) drop(first pagetable.Page) {
	if i := x.search(first); i < len(x.list) && x.list[i].first == first {
		x.list = append(x.list[:i], x.list[i+1:]...)
	}
}

// of is the allocation with a page; that page alone if it is in none.
func (x *extents) of(page pagetable.Page) extent {
	if i := x.search(page); i < len(x.list) && x.list[i].first <= page {
		return x.list[i]
	}
	return extent{first: page, end: page + 1}
}
