package fft

import (
	"math"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

// spectrumFigures are the figures of the reference. It prints, for the forward transform, the
// matrix in which the original leaves it, before the last transposition: so the elements are
// counted column by column here.
func spectrumFigures(spectrum []complex128, edge int) map[string]any {
	words := make(kernel.Float64s, 0, 2*len(spectrum))
	for j := range edge {
		for i := range edge {
			z := spectrum[i*edge+j]
			words = append(words, real(z), imag(z))
		}
	}
	var re, im, abs float64
	for i := 0; i < len(words); i += 2 {
		re += words[i]
		im += words[i+1]
		abs += math.Abs(words[i]) + math.Abs(words[i+1])
	}
	last := len(words) - 2
	return map[string]any{
		"fnv": kernel.FNV(words), "sum_re": re, "sum_im": im, "sum_abs": abs,
		"X0_re": words[0], "X0_im": words[1],
		"X1_re": words[2], "X1_im": words[3],
		"X2_re": words[4], "X2_im": words[5],
		"Xlast_re": words[last], "Xlast_im": words[last+1],
	}
}

// checkSum adds up all real and imaginary parts.
func checkSum(elements []complex128) float64 {
	total := 0.0
	for _, z := range elements {
		total += real(z) + imag(z)
	}
	return total
}

// checkSumOfInput is checkSum of the input, which the transform has overwritten.
func checkSumOfInput(edge int) float64 {
	source, total := random.Rand48(0), 0.0
	for range edge * edge {
		re := source.Float64()
		total += re + source.Float64()
	}
	return total
}
