package raytrace

import "math"

// A vector is a point, a direction, or a colour (red, green, blue).
type vector [3]float64

// The conversions to float64 here and elsewhere in this package forbid the compiler to fuse multiplications and additions
// on processors that can, which would round differently from one to another.
func (a vector) add(b vector) vector { return vector{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }
func (a vector) sub(b vector) vector { return vector{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }
func (a vector) negated() vector     { return vector{-a[0], -a[1], -a[2]} }

func (a vector) scaled(s float64) vector {
	return vector{float64(a[0] * s), float64(a[1] * s), float64(a[2] * s)}
}

func (a vector) dot(b vector) float64 {
	return float64(a[0]*b[0]) + float64(a[1]*b[1]) + float64(a[2]*b[2])
}

func (a vector) cross(b vector) vector {
	return vector{
		float64(a[1]*b[2]) - float64(a[2]*b[1]),
		float64(a[2]*b[0]) - float64(a[0]*b[2]),
		float64(a[0]*b[1]) - float64(a[1]*b[0]),
	}
}

func (a vector) length() float64 { return math.Sqrt(a.dot(a)) }

// unit returns the direction of a. A vector of no length stays what it is.
func (a vector) unit() vector {
	length := a.length()
	if length <= 1e-7 {
		return a
	}
	return vector{a[0] / length, a[1] / length, a[2] / length}
}

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
		m[i] = e.scaled(cos).add(axis.cross(e).scaled(sin)).add(axis.scaled(float64(axis[i] * (1 - cos))))
	}
	return m
}
