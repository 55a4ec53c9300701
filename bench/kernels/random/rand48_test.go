package random

import (
	"testing"

	"pgregory.net/rapid"
)

// TestKnownNumbers compares with numbers that glibc gives.
func TestKnownNumbers(t *testing.T) {
	s := Rand48(0)
	for i, want := range []float64{0.17082803610628972, 0.74990198048496381, 0.09637165562356742, 0.87046522702707563} {
		if got := s.Float64(); got != want {
			t.Errorf("srand48(0), drand48 number %d is %.17g, want %.17g", i, got, want)
		}
	}
	s = Rand48(1)
	for i, want := range []int64{89400484, 976015093, 1792756325, 721524505} {
		if got := s.Int31(); got != want {
			t.Errorf("srand48(1), lrand48 number %d is %d, want %d", i, got, want)
		}
	}
}

func TestSkipIsManyStepsOfRand48(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := Rand48(rapid.Uint32().Draw(t, "seed"))
		b := a
		n := rapid.IntRange(0, 3000).Draw(t, "n")
		for range n {
			a.Int31()
		}
		if b.Skip(uint64(n)); a != b {
			t.Fatalf("Skip(%d) leads to %x, %d steps to %x", n, b.x, n, a.x)
		}
	})
}
