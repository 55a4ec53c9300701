package raytrace

import (
	"math"

	"dsmd/bench/kernels/vec"
)

// The conversions to float64 in this package forbid the compiler to fuse multiplications and
// additions on processors that can, which would round differently from one to another.
type vector = vec.Vector

// A matrix transforms points, as rows before it; the fourth row moves them.
type matrix [4][3]float64

var identity = matrix{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}

func (m matrix) apply(p vector) vector {
	var to vector
	for k := range to {
		to[k] = float64(p[0]*m[0][k]) + float64(p[1]*m[1][k]) + float64(p[2]*m[2][k]) + m[3][k]
	}
	return to
}

// rotation is by angle around an axis of length 1.
func rotation(axis vector, angle float64) matrix {
	sin, cos := math.Sincos(angle)
	var m matrix
	for i := range axis {
		e := vector{}
		e[i] = 1
		// Rodrigues' formula for each of the unit vectors.
		m[i] = e.Scaled(cos).Add(axis.Cross(e).Scaled(sin)).Add(axis.Scaled(float64(axis[i] * (1 - cos))))
	}
	return m
}
