package readahead

import (
	"testing"

	"dsmd/pagetable"
	"dsmd/protocol"
)

// hike is a thread that goes on where what was asked for ends.
type hike struct {
	w    *thread
	page pagetable.Page
}

// touch takes faults at a distance, and returns how many pages were asked for ahead.
func (h *hike) touch(faults int, stride int64) (ahead int) {
	for range faults {
		s := h.w.follow(h.page, protocol.Read)
		s.next += pagetable.Page(s.stride * int64(s.Window))
		ahead += s.Window
		h.page += pagetable.Page(stride * int64(1+s.Window))
	}
	return ahead
}

// TestStreamsAreLearned: how much is asked for ahead grows with a run, and what begins like a run
// and is none makes it careful.
func TestStreamsAreLearned(t *testing.T) {
	for _, stride := range []int64{1, -1, 5, -maxStride, maxStride} {
		w := Threads{}
		h := hike{w: w.of(7), page: 1 << 40}
		begins := func() int { return 1 + (&Stream{stride: stride}).needs(h.w.need) }
		if got := h.touch(begins(), stride); got != 1 {
			t.Errorf("stride %d: at first %d pages are asked for ahead, want 1", stride, got)
		}
		if got := h.touch(3, stride); got != 2+4+8 {
			t.Errorf("stride %d: the next three faults ask for %d ahead, want 14", stride, got)
		}
		if got := h.touch(10, stride); got < 2*MaxWindow || got > 10*MaxWindow {
			t.Errorf("stride %d: ten more ask for %d ahead, want the most, %d, for some", stride, got, MaxWindow)
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

// TestStreamsDoNotMeet: a thread that goes over several arrays in turns, or loads and stores, is in
// several runs, and each goes on.
func TestStreamsDoNotMeet(t *testing.T) {
	w := Threads{}
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
	if s.Window != 0 {
		t.Error("a store after a run of loads goes on with the run")
	}
}

// TestFarFaultsAreNoStream: pages that lie far apart don't belong together, however equal the
// distances.
func TestFarFaultsAreNoStream(t *testing.T) {
	w := Threads{}
	h := hike{w: w.of(7), page: 5}
	if got := h.touch(100, maxStride+1); got != 0 {
		t.Errorf("%d pages were asked for ahead", got)
	}
}

func TestThreadsAreBounded(t *testing.T) {
	var w Threads
	for thread := range uint32(3 * maxThreads) {
		w.of(thread+1).follow(5, protocol.Read)
	}
	if len(w.list) != maxThreads {
		t.Errorf("%d threads are remembered, want %d", len(w.list), maxThreads)
	}
}
