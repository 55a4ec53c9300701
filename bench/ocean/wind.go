package ocean

import (
	"math"
	"math/big"
)

// windCurl is the curl of the wind stress in one column of the grid: one period of a sine over the basin's width.
func windCurl(column int, width float64) float64 {
	if column == 0 {
		return 0
	}
	half := 0.5 * width
	return -windStress * math.Pi / half * sine(math.Pi*float64(column)*resolution/half)
}

// sine is the sine of x, 0 <= x <= 7, rounded correctly. The solvers amplify a difference in the last bit of the wind to
// one in the twelfth digit of the result. C libraries round nearly all sines correctly, math.Sin a fifth of
// these differently; and it may differ from one processor to another.
func sine(x float64) float64 {
	// The largest term of Taylor's series, 7^7/7!, is below 2^8, so 100 bits of the sum are right. The
	// term of degree 61 is below 2^-100.
	const precision, degree = 160, 61
	square := new(big.Float).SetPrec(precision).SetFloat64(x)
	term := new(big.Float).Copy(square)
	square.Mul(square, square).Neg(square)
	sum := new(big.Float).Copy(term)
	for n := int64(3); n <= degree; n += 2 {
		term.Mul(term, square)
		term.Quo(term, new(big.Float).SetInt64(n*(n-1)))
		sum.Add(sum, term)
	}
	result, _ := sum.Float64()
	return result
}
