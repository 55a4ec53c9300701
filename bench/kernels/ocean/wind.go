package ocean

import (
	"math"

	"dsmd/bench/kernels/rounded"
)

// windCurl is the curl of the wind stress in one column of the grid: one period of a sine over the
// basin's width. The solvers amplify a difference in the last bit of the wind to one in the twelfth
// digit of the result. C libraries round nearly all sines correctly, math.Sin a fifth of these
// differently; and it may differ from one processor to another.
func windCurl(column int, width float64) float64 {
	if column == 0 {
		return 0
	}
	half := 0.5 * width
	return -windStress * math.Pi / half * rounded.Sin(math.Pi*float64(column)*resolution/half)
}
