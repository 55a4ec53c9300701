// Package nasrand is the generator of the NAS parallel benchmarks (Bailey et al., "The NAS Parallel Benchmarks",
// RNR-94-007, section 2.3), which SPLASH-2's radix sort uses, too.
//
// The state is 46 bits, and each step is x*5^13 modulo 2^46. The original programs compute this with pairs of
// floating-point numbers because they were written for machines with 32-bit integers; the numbers are the same. Skip makes many steps at
// once, so that each thread can make its own part of an input.
package nasrand

const (
	multiplier = 1220703125 // 5^13
	// Bits is the number of bits of the state, which is also what Next returns.
	Bits = 46
	mask = 1<<Bits - 1
)

// A Source is a sequence of numbers. It is used by one goroutine at a time; a copy goes on independently.
type Source struct{ x uint64 }

// New returns the sequence after seed; the seed itself is not part of it. Only the lower 46 bits count.
func New(seed uint64) Source { return Source{seed & mask} }

// Next returns the next number, from 0 to 2^46-1.
func (s *Source) Next() uint64 {
	s.x = s.x * multiplier & mask
	return s.x
}

// Float64 returns the next number divided by 2^46, which is exact.
func (s *Source) Float64() float64 { return float64(s.Next()) * (1.0 / (1 << Bits)) }

// Skip leaves out the next n numbers, in time proportional to log n.
func (s *Source) Skip(n uint64) {
	for m := uint64(multiplier); n > 0; n >>= 1 {
		if n&1 == 1 {
			s.x = s.x * m & mask
		}
		m = m * m & mask
	}
}
