package node

import (
	"maps"
	"testing"
	"time"

	"dsmd/internal/attach"
	"dsmd/node/readahead"
	"dsmd/pagetable"
)

// TestTolls: every thread pays for the page that it waits for, once, and its program and the
// allocation have that, also when the allocation is gone.
func TestTolls(t *testing.T) {
	var extents readahead.Extents
	extents.Add(10, 5, "job\x00x")
	extents.Add(20, 5, "y")
	paid := newTolls(newPageWaits())
	paid.extents = &extents
	waiting := map[pagetable.Page]*queue{11: {}, 21: {}, 99: {}}
	paid.attached(1)
	paid.attached(2)
	begin := func(page pagetable.Page, proc pagetable.ProcID, thread uint32, now time.Duration) {
		waiting[page].join(&pagetable.Event{Page: page, Proc: proc, Thread: thread}, now)
	}
	begin(11, 1, 7, 100)
	begin(11, 1, 8, 150)
	begin(11, 1, 8, 160) // the same again
	begin(21, 2, 9, 200)
	begin(99, 2, 9, 200) // in no allocation
	for page, q := range waiting {
		paid.pay(page, q, 300)
	}
	extents.Drop(10)
	for proc, want := range map[pagetable.ProcID]map[string]uint64{
		1: {attach.OwnWaits: 2, attach.OwnWait: 350},
		2: {attach.OwnWaits: 2, attach.OwnWait: 200},
		3: {},
	} {
		maps.Copy(want, map[string]uint64{attach.WaitsIn + "x": 2, attach.WaitIn + "x": 350, attach.WaitsIn + "y": 1, attach.WaitIn + "y": 100})
		got := map[string]uint64{}
		for _, c := range paid.counters(proc) {
			got[c.Name] = c.Value
		}
		if !maps.Equal(got, want) {
			t.Errorf("program %d is told %v, want %v", proc, got, want)
		}
	}
	if paid.detached(1); len(paid.own) != 1 {
		t.Errorf("what is left: %+v", paid)
	}
}
