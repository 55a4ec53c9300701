// Package vec is vectors of three numbers. The conversions to float64 forbid the compiler to fuse
// multiplications and additions on processors that can, which would round differently from one to
// another.
package vec

import "math"

// A Vector is a point, a direction, or a colour (red, green, blue).
type Vector [3]float64

// Add is a+b.
func (a Vector) Add(b Vector) Vector { return Vector{a[0] + b[0], a[1] + b[1], a[2] + b[2]} }

// Sub is a-b.
func (a Vector) Sub(b Vector) Vector { return Vector{a[0] - b[0], a[1] - b[1], a[2] - b[2]} }

// Scaled is a*s.
func (a Vector) Scaled(s float64) Vector {
	return Vector{float64(a[0] * s), float64(a[1] * s), float64(a[2] * s)}
}

// Over is a/s.
func (a Vector) Over(s float64) Vector { return Vector{a[0] / s, a[1] / s, a[2] / s} }

// Dot is the scalar product.
func (a Vector) Dot(b Vector) float64 {
	return float64(a[0]*b[0]) + float64(a[1]*b[1]) + float64(a[2]*b[2])
}

// Cross is the vector product.
func (a Vector) Cross(b Vector) Vector {
	return Vector{
		float64(a[1]*b[2]) - float64(a[2]*b[1]),
		float64(a[2]*b[0]) - float64(a[0]*b[2]),
		float64(a[0]*b[1]) - float64(a[1]*b[0]),
	}
}

// Length is the square root of a.Dot(a).
func (a Vector) Length() float64 { return math.Sqrt(a.Dot(a)) }

// Unit is the direction of a. A vector of no length stays what it is.
func (a Vector) Unit() Vector {
	length := a.Length()
	if length <= 1e-7 {
		return a
	}
	return a.Over(length)
}
