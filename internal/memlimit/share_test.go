package memlimit

import (
	"math/rand/v2"
	"testing"
)

// TestShare: a node takes less when little is left, no less than it needs, and all again when there
// is enough.
func TestShare(t *testing.T) {
	const mib, least = 1 << 20, 4 << 20
	s := NewShare(512 * mib) // reserve: 64 MiB
	before := uint64(512)
	for i, step := range []struct{ used, left, want uint64 }{
		{400, 5000, 512},
		{400, 64, 512},
		{400, 44, 380},
		{380, 64, 380},
		{380, 100, 380}, // enough to stay, not to grow
		{380, 0, 316},
		{10, 0, 4},
		{4, 128, 4},
		{4, 328, 104},
		{100, 4000, 512},
	} {
		if got, changed := s.Next(step.used*mib, step.left*mib, least); got != step.want*mib || changed != (step.want != before) {
			t.Errorf("step %d: %d MiB, changed: %t; want %d MiB", i, got/mib, changed, step.want)
		}
		before = step.want
	}
	if !s.IsFull() {
		t.Error("it is not full in the end")
	}
}

// TestSharesOfOneMachine: nodes that see the same shortage leave what is needed free, and take all
// when it is over.
func TestSharesOfOneMachine(t *testing.T) {
	const mib, full, nodes = 1 << 20, 512 << 20, 4
	var shares [nodes]*Share
	var used [nodes]uint64
	for i := range shares {
		shares[i] = NewShare(full)
	}
	machine, others := uint64(nodes*full+1024*mib), uint64(0)
	left := func() uint64 {
		all := others
		for _, u := range used {
			all += u
		}
		return machine - min(machine, all)
	}
	settle := func() {
		for range 200 {
			i := rand.IntN(nodes)
			bytes, _ := shares[i].Next(used[i], left(), 4*mib)
			used[i] = bytes // a program that wants all
		}
	}
	settle()
	for i, s := range shares {
		if !s.IsFull() {
			t.Errorf("node %d has %d MiB of as much as is there", i, s.now/mib)
		}
	}
	others = 2048 * mib
	settle()
	if left() < 64*mib {
		t.Errorf("%d MiB are left", left()/mib)
	}
	others = 0
	settle()
	for i, s := range shares {
		if !s.IsFull() {
			t.Errorf("node %d takes %d MiB when all is there again", i, s.now/mib)
		}
	}
}
