package random

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestStepIsTheDefinition computes seed * 5^(13k) mod 2^46 without the width of a machine word.
func TestStepIsTheDefinition(t *testing.T) {
	modulus := new(big.Int).Lsh(big.NewInt(1), NASBits)
	for _, seed := range []int64{314159265, 271828183, 1, 1<<46 - 1} {
		s, want := NAS(uint64(seed)), big.NewInt(seed)
		for step := range 100 {
			want.Mul(want, big.NewInt(nasMultiplier)).Mod(want, modulus)
			if got := s.Next(); got != want.Uint64() {
				t.Fatalf("seed %d, step %d: %d, want %v", seed, step, got, want)
			}
		}
	}
}

func TestFloat64IsNextScaled(t *testing.T) {
	a := NAS(314159265)
	b := a
	for range 100 {
		if f, x := a.Float64(), b.Next(); f*(1<<NASBits) != float64(x) || f < 0 || f >= 1 {
			t.Fatalf("Float64 is %v where Next is %d", f, x)
		}
	}
}

func TestSkipIsManyStepsOfNAS(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := NAS(rapid.Uint64().Draw(t, "seed"))
		b := a
		n := rapid.IntRange(0, 3000).Draw(t, "n")
		for range n {
			a.Next()
		}
		if b.Skip(uint64(n)); a != b {
			t.Fatalf("Skip(%d) leads to %x, %d steps to %x", n, b.x, n, a.x)
		}
	})
}
