package lu

import (
	"math"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

// factorFigures are the figures of the reference, of the factors in an n by n matrix, column by
// column.
func factorFigures(factors kernel.Float64s, n int) map[string]any {
	var sum, abs, logDeterminant float64
	for _, x := range factors {
		sum += x
		abs += math.Abs(x)
	}
	for i := range n {
		logDeterminant += math.Log(math.Abs(factors[i*n+i]))
	}
	figures := map[string]any{
		"fnv": kernel.FNV(factors), "sum": sum, "sumabs": abs, "logabsdet": logDeterminant,
		"a00": factors[0], "alast": factors[len(factors)-1], "max_diff": maxDiff(factors, n),
	}
	if n > 1 {
		figures["a10"] = factors[1]
	}
	return figures
}

// maxDiff solves the system whose solution is all ones, and returns how far the result is from
// that.
func maxDiff(factors kernel.Float64s, n int) float64 {
	y := rowSums(n)
	for j := range n {
		column := factors[j*n : (j+1)*n]
		y[j] /= column[j]
		subtractMultiple(y[j+1:], column[j+1:], y[j])
	}
	for j := n - 1; j >= 0; j-- {
		subtractMultiple(y[:j], factors[j*n:j*n+j], y[j])
	}
	worst := 0.0
	for _, x := range y {
		worst = max(worst, math.Abs(x-1)) // A NaN stays.
	}
	return worst
}

// rowSums are the sums of the rows of the input, which the factors have overwritten.
func rowSums(n int) []float64 {
	sums := make([]float64, n)
	source := random.Rand48(1)
	for j := range n {
		for i := range n {
			x := float64(source.Int31()) / maxRandom
			if i == j {
				x *= 10
			}
			sums[i] += x
		}
	}
	return sums
}
