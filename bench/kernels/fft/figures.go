package fft

import (
	"math"

	"dsmd/bench/kernel"
	"dsmd/bench/kernels/random"
)

// spectrumFigures are the figures of the reference. It prints, for the forward transform, the
// matrix in which the original leaves it, before the last transposition: so the elements are
// counted column by column here.
func spectrumFigures(spectrum matrix) map[string]any {
	words := make(kernel.Float64s, 0, 2*spectrum.edge*spectrum.edge)
	for j := range spectrum.edge {
		for i := range spectrum.edge {
			z := spectrum.row(i)[j]
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

// checkSum adds up all real and imaginary parts, row by row.
func checkSum(m matrix) float64 {
	total := 0.0
	for i := range m.edge {
		for _, z := range m.row(i) {
			total += real(z) + imag(z)
		}
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
