package model

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestAgenda compares with a stable sort by time, also after something is taken out.
func TestAgenda(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		times := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 40).Draw(t, "times")
		var a Agenda[int, int]
		var want []int
		for i, at := range times {
			a.Enter(at, i)
			if want = append(want, i); i%4 == 3 {
				void := rapid.IntRange(0, i).Draw(t, "void")
				before := len(want)
				want = slices.DeleteFunc(want, func(i int) bool { return i == void })
				if n := a.Delete(func(i *int) bool { return *i == void }); n != before-len(want) {
					t.Fatalf("%d entries were deleted, want %d", n, before-len(want))
				}
			}
		}
		slices.SortStableFunc(want, func(i, j int) int { return times[i] - times[j] })
		if a.Len() != len(want) {
			t.Fatalf("%d entries, want %d", a.Len(), len(want))
		}
		for _, i := range want {
			if got, ok := a.Next(); !ok || got != i || a.Now() != times[i] {
				t.Fatalf("next is %d at %d, want %d at %d", got, a.Now(), i, times[i])
			}
		}
		if _, ok := a.Next(); ok {
			t.Fatal("something is left")
		}
	})
}
