package readahead

import (
	"slices"

	"dsmd/pagetable"
	"dsmd/protocol"
)

const (
	// MaxWindow bounds how many pages are asked for ahead at a time: 1 MiB of pages of 4 KiB. The
	// thread waits for them for about a millisecond, and only one that has just used half as many
	// does.
	MaxWindow = 256
	// firstNeed is how many faults must have followed their neighbours before anything is asked for
	// ahead. The number doubles, up to mostNeed, each time that a stream ended before it had used
	// what was asked for, and halves when one went on.
	firstNeed, mostNeed = 2, 16
	// strideNeed is how many more must have followed each other at the same distance where that is
	// not one page: it occurs by chance more often.
	strideNeed = 1
	// maxStride bounds the distance, in pages, at which two faults may belong together.
	maxStride = 64
	// maxThreads bounds the threads whose last faults are remembered. A thread more replaces
	// another, which has to show its streams again.
	maxThreads = 64
	// maxStreams bounds the streams of one thread that are remembered. A loop seldom goes over more
	// arrays, and of those that it reads and writes each has its own.
	maxStreams = 8
)

// Threads are the threads that have faulted lately, and the streams of their faults. The zero
// Threads knows of none.
type Threads struct {
	list []thread
	next int // to be replaced
}

// thread is a thread with its streams.
type thread struct {
	id      uint32
	faults  uint64
	need    int // see firstNeed
	streams [maxStreams]Stream
}

// Stream is where a thread is in a row of faults at equal distances.
type Stream struct {
	// Window is how many pages to ask for ahead at this fault.
	Window int

	access protocol.Access
	last   pagetable.Page // the last fault
	stride int64          // how far it was from the one before, in pages; 0: there was none
	next   pagetable.Page // where the thread will fault next, if it goes on
	run    int            // how many faults were as far from their predecessors as that
	// when it last went on, in faults of the thread; 0: never, the place is free
	used uint64
}

// Next is where the thread will fault next, if it goes on.
func (s *Stream) Next() pagetable.Page { return s.next }

// Stride is how far its faults are from each other, in pages.
func (s *Stream) Stride() int64 { return s.stride }

// Skip passes over Next: the thread will find it here.
func (s *Stream) Skip() { s.next += pagetable.Page(s.stride) }

// Missed notes a fault of a thread on a page that is not here, and returns the stream that it
// belongs to.
func (w *Threads) Missed(id uint32, page pagetable.Page, access protocol.Access) *Stream {
	return w.of(id).follow(page, access)
}

// Expected is whether a stream of a thread goes on with a page.
func (w *Threads) Expected(id uint32, page pagetable.Page, access protocol.Access) bool {
	i := slices.IndexFunc(w.list, func(t thread) bool { return t.id == id })
	return i >= 0 && w.list[i].find(func(s *Stream) bool { return s.access == access && s.stride != 0 && s.next == page }) != nil
}

// of returns what is known of a thread.
func (w *Threads) of(id uint32) *thread {
	for i := range w.list {
		if w.list[i].id == id {
			return &w.list[i]
		}
	}
	fresh := thread{id: id, need: firstNeed}
	if len(w.list) < maxThreads {
		w.list = append(w.list, fresh)
		return &w.list[len(w.list)-1]
	}
	t := &w.list[w.next]
	w.next = (w.next + 1) % maxThreads
	*t = fresh
	return t
}

// follow returns the stream that a fault belongs to: the one that was expected to go on there, the
// one that it may be the beginning of, or a new one.
func (t *thread) follow(page pagetable.Page, access protocol.Access) *Stream {
	t.faults++
	s := t.find(func(s *Stream) bool { return s.access == access && s.stride != 0 && s.next == page })
	switch {
	case s != nil && s.Window > 0:
		s.Window = min(2*s.Window, MaxWindow)
		t.need = max(t.need/2, firstNeed)
	case s != nil:
		if s.run++; s.run >= s.needs(t.need) {
			s.Window = 1
		}
	default:
		s = t.begin(page, access)
	}
	s.used, s.last, s.next = t.faults, page, page+pagetable.Page(s.stride)
	return s
}

// needs is how many faults must have been at the same distance before anything is asked for ahead,
// where a stream of neighbours needs so many.
func (s *Stream) needs(neighbours int) int {
	if s.stride == 1 {
		return neighbours
	}
	return neighbours + strideNeed
}

// begin returns the stream that a fault begins: as the second of one that had not shown a distance
// yet, or showed a wrong one, or as the first.
func (t *thread) begin(page pagetable.Page, access protocol.Access) *Stream {
	distance := func(s *Stream) int64 { return int64(page) - int64(s.last) }
	s := t.find(func(s *Stream) bool {
		d := distance(s)
		return s.access == access && s.Window == 0 && d != 0 && -maxStride <= d && d <= maxStride
	})
	if s != nil {
		s.stride, s.run = distance(s), 1
		return s
	}
	s = &t.streams[0]
	for i := range t.streams {
		if t.streams[i].used < s.used {
			s = &t.streams[i]
		}
	}
	if s.Window > 0 {
		t.need = min(2*t.need, mostNeed)
	}
	*s = Stream{access: access}
	return s
}

// find returns the stream of which something is true that went on last, nil if there is none.
func (t *thread) find(is func(*Stream) bool) (found *Stream) {
	for i := range t.streams {
		if s := &t.streams[i]; s.used != 0 && (found == nil || s.used > found.used) && is(s) {
			found = s
		}
	}
	return found
}
