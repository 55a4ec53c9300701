package radix

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"dsmd/bench/kernels/random"
)

// TestNoPageHasTwoWriters includes fewer keys than threads, and parts of different lengths.
func TestNoPageHasTwoWriters(t *testing.T) {
	const page = 4096
	for _, n := range []int{1, 1000, 5000} {
		for threads := 1; threads <= 9; threads++ {
			d := newDivision(n, threads, page)
			keys := make([]int32, d.length())
			for i := range keys {
				keys[i] = int32(i)
			}
			owner, total := map[int32]int{}, 0
			for thread := range threads {
				for _, at := range d.part(keys, thread) {
					p := at * keyBytes / page
					if other, taken := owner[p]; taken && other != thread {
						t.Fatalf("%d keys: page %d has keys of threads %d and %d", n, p, other, thread)
					}
					owner[p] = thread
					total++
				}
			}
			if total != n {
				t.Fatalf("%d threads have %d of %d keys", threads, total, n)
			}
		}
	}
}

// TestRuns compares the runs of all parts with keys that are sorted together, and asks that what is
// needed of a thread is what its runs have.
func TestRuns(t *testing.T) {
	const n, shift = 3000, 10
	for threads := 1; threads <= 9; threads++ {
		t.Run(fmt.Sprint(threads), func(t *testing.T) {
			s := sortedParts(n, threads, shift)
			want := s.everything()
			slices.SortStableFunc(want, func(a, b int32) int { return cmp.Compare(digitOf(a, shift), digitOf(b, shift)) })
			for lo := 0; lo < n; lo += 700 {
				hi := min(lo+700, n)
				runs, needed := s.runs(lo, hi)
				if got := slices.Concat(runs...); !slices.Equal(got, want[lo:hi]) {
					t.Fatalf("places %d to %d are not what a sort has there", lo, hi-1)
				}
				for thread, keys := range needed {
					if got := ofPart(runs, s.part(s.keys, thread)); !slices.Equal(got, keys) {
						t.Errorf("places %d to %d need %d keys of thread %d, not %d", lo, hi-1, len(got), thread, len(keys))
					}
				}
			}
		})
	}
}

// sortedParts are the keys of the input, each part sorted by one digit.
func sortedParts(n, threads int, shift uint) sorted {
	d := newDivision(n, threads, 64)
	s := sorted{division: d, keys: make([]int32, d.length()), ends: make([]ends, threads)}
	input := make([]int32, d.length())
	random.Keys(input, seed, 0, keyBits)
	for thread := range threads {
		s.ends[thread] = distribute(d.part(s.keys, thread), [][]int32{d.part(input, thread)}, shift)
	}
	return s
}

// everything is all parts, one after the other.
func (s sorted) everything() (keys []int32) {
	for thread := range s.threads {
		keys = append(keys, s.part(s.keys, thread)...)
	}
	return keys
}

// ofPart is what runs have that lies in a part, in order.
func ofPart(runs [][]int32, part []int32) (keys []int32) {
	for _, run := range runs {
		for i := range part {
			if &part[i] == &run[0] {
				keys = append(keys, run...)
			}
		}
	}
	return keys
}
