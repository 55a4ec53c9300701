// Package rounded has sines and cosines that are right to the last bit: what C libraries nearly
// always give, so that kernels compute what the originals do. Go's own are wrong in it too often,
// and not alike on all processors.
package rounded

import "math"

// Root is exp(-i*angle), rounded correctly, for angles from 0 to about 7.
//
// The standard library's functions are wrong in the last bit too often, and not in the same way on
// all processors, for results to be compared with those of other machines and of C. So the series
// are summed in pairs of floating-point numbers, and then rounded once.
func Root(angle float64) complex128 {
	quarter := math.RoundToEven(angle * (2 / math.Pi))
	r := reduced(angle, quarter)
	square := r.times(r)
	sin := alternating(square, 1).times(r)
	cos := alternating(square, 0)
	switch int(quarter) & 3 {
	case 0:
		return complex(cos.hi, -sin.hi)
	case 1:
		return complex(-sin.hi, -cos.hi)
	case 2:
		return complex(-cos.hi, sin.hi)
	default:
		return complex(sin.hi, cos.hi)
	}
}

// A pair is an unevaluated sum with a precision of about 106 bits; hi is the sum rounded to a
// float64. (Dekker, "A Floating-Point Technique for Extending the Available Precision", 1971.)
type pair struct{ hi, lo float64 }

// sum adds two numbers without an error.
func sum(a, b float64) pair {
	s := a + b
	t := s - a
	return pair{s, (a - (s - t)) + (b - t)}
}

func (p pair) plus(q pair) pair {
	s := sum(p.hi, q.hi)
	return sum(s.hi, s.lo+(p.lo+q.lo))
}

func (p pair) times(q pair) pair {
	hi := float64(p.hi * q.hi)
	lo := math.FMA(p.hi, q.hi, -hi)
	return sum(hi, lo+(float64(p.hi*q.lo)+float64(p.lo*q.hi)))
}

func (p pair) dividedBy(d float64) pair {
	q := p.hi / d
	return sum(q, (math.FMA(-q, d, p.hi)+p.lo)/d)
}

// halfPi is pi/2 (the true one) as a sum of three numbers.
var halfPi = [3]float64{0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110}

// reduced is angle - quarter*pi/2, at most pi/4 in magnitude.
func reduced(angle, quarter float64) pair {
	r := pair{angle, 0}
	for _, part := range halfPi {
		r = r.plus(pair{-quarter, 0}.times(pair{part, 0}))
	}
	return r
}

const (
	// terms is the number of terms of the series, the last of which is below 2^-100 for arguments
	// up to pi/4.
	terms = 14
	// paired is the number of terms for which a float64 is not precise enough.
	paired = 7
)

// inverseFactorials are 1/n!.
var inverseFactorials = func() (inverses [2 * terms]pair) {
	inverses[0] = pair{1, 0}
	for n := 1; n < len(inverses); n++ {
		inverses[n] = inverses[n-1].dividedBy(float64(n))
	}
	return inverses
}()

// alternating sums (-square)^k/(2k+odd)! over k: the cosine with odd 0, and the sine over its
// argument with odd 1.
func alternating(square pair, odd int) pair {
	small := 0.0
	for k := terms - 1; k >= paired; k-- {
		small = inverseFactorials[2*k+odd].hi - float64(small*square.hi)
	}
	minus := pair{-square.hi, -square.lo}
	s := pair{small, 0}
	for k := paired - 1; k >= 0; k-- {
		s = s.times(minus).plus(inverseFactorials[2*k+odd])
	}
	return s
}

// Sin is the sine of an angle from 0 to about 7, rounded correctly.
func Sin(angle float64) float64 { return -imag(Root(angle)) }
