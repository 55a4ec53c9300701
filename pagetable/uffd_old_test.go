package pagetable

import (
	"testing"
	"time"
)

// TestRestsGrow: a page that goes back and forth between two programs stays longer each time, up to
// a limit, and as short as at first when nobody has wanted it for a while.
func TestRestsGrow(t *testing.T) {
	var r rests
	now := time.Unix(1000, 0)
	for round, want := 0, leastRest; round < 20; round, want = round+1, min(2*want, mostRest) {
		has, wants := ProcID(1+round%2), ProcID(2-round%2)
		r.begin(has, 7, now)
		if r.keeps(has, 7, now) || r.keeps(wants, 8, now) {
			t.Fatal("a page is kept from the program that has it, or one that nobody has")
		}
		if !r.keeps(wants, 7, now.Add(want-1)) || r.keeps(wants, 7, now.Add(want)) {
			t.Fatalf("in round %d the page does not rest for %v", round, want)
		}
		now = now.Add(want)
	}
	r.begin(1, 7, now.Add(3*mostRest))
	if r.keeps(2, 7, now.Add(3*mostRest+leastRest)) {
		t.Error("a page that nobody has wanted for a while rests for longer than at first")
	}
}
