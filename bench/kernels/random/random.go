// Package random is the generators of the original programs, so that inputs agree bit for bit with
// theirs. Both are linear congruential. Skip makes many steps at once, so that each thread can make
// its own part of an input that the originals make in one sequence.
package random

// A Source is a sequence of numbers: the state is multiplied and added to, modulo a power of two.
// It is used by one goroutine at a time; a copy goes on independently.
type Source struct {
	x, multiplier, increment, mask uint64

	scale float64 // of what Next returns: 1/(mask+1), which is exact
}

// NASBits is the number of bits of NAS's generator.
const NASBits = 46

const (
	nasMultiplier    = 1220703125 // 5^13
	rand48Bits       = 48
	rand48Multiplier = 0x5DEECE66D
	rand48Increment  = 0xB
	rand48Seed       = 0x330E // what srand48 puts below the seed
	int31Bits        = 31
	// drawsPerKey is how many numbers are averaged for a key.
	drawsPerKey = 4
)

// NAS returns the sequence after seed of the NAS parallel benchmarks (Bailey et al., "The NAS
// Parallel Benchmarks", RNR-94-007, section 2.3), which SPLASH-2's radix sort uses, too; the seed
// itself is not part of it. Only the lower 46 bits count. The original programs compute it with
// pairs of floating-point numbers because they were written for machines with 32-bit integers; the
// numbers are the same.
func NAS(seed uint64) Source {
	return Source{x: seed & (1<<NASBits - 1), multiplier: nasMultiplier, mask: 1<<NASBits - 1, scale: 1.0 / (1 << NASBits)}
}

// Rand48 returns the sequence that POSIX's srand48(seed) starts.
func Rand48(seed uint32) Source {
	return Source{x: uint64(seed)<<16 | rand48Seed, multiplier: rand48Multiplier, increment: rand48Increment, mask: 1<<rand48Bits - 1, scale: 1.0 / (1 << rand48Bits)}
}

// Next returns the next state: a number of 46 or 48 bits.
func (s *Source) Next() uint64 {
	s.x = (s.x*s.multiplier + s.increment) & s.mask
	return s.x
}

// Float64 returns the next number from 0 to 1, without 1, in multiples of 2^-46 or 2^-48, as
// drand48 does.
func (s *Source) Float64() float64 { return float64(s.Next()) * s.scale }

// Int31 returns the next number as lrand48 does: from 0 to 2^31-1.
func (s *Source) Int31() int64 { return int64(s.Next() >> (rand48Bits - int31Bits)) }

// Skip leaves out the next n numbers, in time proportional to log n.
func (s *Source) Skip(n uint64) {
	// One step is x*m + c. Doing a step twice is again of that form, with m*m and c*(m+1).
	m, c := s.multiplier, s.increment
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			s.x = (s.x*m + c) & s.mask
		}
		c = c * (m + 1) & s.mask
		m = m * m & s.mask
	}
}

// Keys makes keys of so many bits, those from number first on of the sequence that NAS and SPLASH-2
// sort: a key is the mean of four random numbers from 0 to 1, which makes middle keys more likely,
// times 2^bits, rounded down. With integers this is exact, as it is with the floating-point numbers
// of the originals.
func Keys[K int32 | int64](keys []K, seed uint64, first, bits int) {
	source := NAS(seed)
	source.Skip(drawsPerKey * uint64(first))
	for i := range keys {
		sum := uint64(0)
		for range drawsPerKey {
			sum += source.Next()
		}
		keys[i] = K(sum / drawsPerKey >> (NASBits - bits))
	}
}
