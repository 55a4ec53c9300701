package rounded

import (
	"math"
	"math/big"
	"testing"
)

// TestRootsAreRounded compares with sums of the series in 300 bits.
func TestRootsAreRounded(t *testing.T) {
	for i := range 3000 {
		angle := float64(i) * (2 * math.Pi) / 2999
		if got, want := Root(angle), bigRoot(angle); got != want {
			t.Errorf("Root(%v) = %v, want %v", angle, got, want)
		}
	}
	for _, angle := range []float64{0, math.Pi / 4, math.Pi / 2, math.Pi, 3 * math.Pi / 2, 2 * math.Pi, 1e-300} {
		if got, want := Root(angle), bigRoot(angle); got != want {
			t.Errorf("Root(%v) = %v, want %v", angle, got, want)
		}
	}
}

func bigRoot(angle float64) complex128 {
	x := new(big.Float).SetPrec(300).SetFloat64(angle)
	parts := [2]*big.Float{new(big.Float).SetPrec(300), new(big.Float).SetPrec(300)}
	term := new(big.Float).SetPrec(300).SetInt64(1)
	for n := int64(0); n < 100; n++ {
		if n%4 < 2 {
			parts[n%2].Add(parts[n%2], term)
		} else {
			parts[n%2].Sub(parts[n%2], term)
		}
		term.Mul(term, x).Quo(term, new(big.Float).SetInt64(n+1))
	}
	cos, _ := parts[0].Float64()
	sin, _ := parts[1].Float64()
	return complex(cos, -sin)
}

// TestSine: the sine is right to the last bit where it is known, and never farther from math.Sin
// than that may be off.
func TestSine(t *testing.T) {
	for x, want := range map[float64]float64{0: 0, 0.5: 0.479425538604203, 1: 0.8414709848078965, 3: 0.1411200080598672, 6: -0.27941549819892586} {
		if got := Sin(x); got != want {
			t.Errorf("Sin(%v) = %v, want %v", x, got, want)
		}
	}
	for x := 0.0; x < 7; x += 0.01 {
		if got, near := Sin(x), math.Sin(x); math.Abs(got-near) > 4e-16 {
			t.Errorf("Sin(%v) = %v, math.Sin says %v", x, got, near)
		}
	}
}
