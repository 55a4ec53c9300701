// Package rand48 is the generator that POSIX calls drand48: the input of several of the original
// programs comes from it, so that inputs agree bit for bit with theirs.
//
// The state is 48 bits, and each step is x*0x5DEECE66D + 0xB modulo 2^48. Skip makes many steps at once, so that
// each thread can make its own part of an input that the originals make in one sequence.
package rand48

const (
	multiplier = 0x5DEECE66D
	increment  = 0xB
	mask       = 1<<48 - 1
	// seedLow is what srand48 puts below the seed.
	seedLow = 0x330E
)

// A Source is a sequence of numbers. It is used by one goroutine at a time; a copy goes on independently.
type Source struct{ x uint64 }

// New returns the sequence that srand48(seed) starts.
func New(seed uint32) Source { return Source{uint64(seed)<<16 | seedLow} }

// Float64 returns the next number as drand48 does: from 0 to 1, without 1, in multiples of 2^-48.
func (s *Source) Float64() float64 { return float64(s.next()) / (1 << 48) }

// Int31 returns the next number as lrand48 does: from 0 to 2^31-1.
func (s *Source) Int31() int64 { return int64(s.next() >> 17) }

func (s *Source) next() uint64 {
	s.x = (s.x*multiplier + increment) & mask
	return s.x
}

// Skip leaves out the next n numbers, in time proportional to log n.
func (s *Source) Skip(n uint64) {
	// One step is x*m + c. Doing a step twice is again of that form, with m*m and c*(m+1).
	m, c := uint64(multiplier), uint64(increment)
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			s.x = (s.x*m + c) & mask
		}
		c = c * (m + 1) & mask
		m = m * m & mask
	}
}
