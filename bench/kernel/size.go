package kernel

import (
	"errors"
	"fmt"
	"strconv"
)

// ErrSize is returned for a size that a kernel does not have.
var ErrSize = errors.New("no such size")

// Sizes describes the sizes of a kernel. All are values of one parameter, the original program's
// own.
type Sizes struct {
	// Parameter says what the number means, for instance "grid edge".
	Parameter string
	// Test runs in under two seconds, Default is the size of the literature, and in Large computing
	// outweighs faulting.
	Test, Default, Large int
	// Min and Max bound the numbers that are accepted. Max keeps the input within memory that a
	// machine may have; it is not what every machine has.
	Min, Max int
	// Valid, if not nil, says why a number between Min and Max is not a size (for instance "not a
	// power of 2").
	Valid func(n int) error
}

// Parse turns a size as users write it, "test", "default", "large" or a number, into the number.
// Other input gets an ErrSize that lists what there is.
func (s Sizes) Parse(text string) (int, error) {
	switch text {
	case "test":
		return s.Test, nil
	case "default":
		return s.Default, nil
	case "large":
		return s.Large, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < s.Min || n > s.Max {
		return 0, fmt.Errorf("%w: %q: use test (%d), default (%d), large (%d), or a number from %d to %d (%s)",
			ErrSize, text, s.Test, s.Default, s.Large, s.Min, s.Max, s.Parameter)
	}
	if s.Valid != nil {
		if err := s.Valid(n); err != nil {
			return 0, fmt.Errorf("%w: %d (%s): %w", ErrSize, n, s.Parameter, err)
		}
	}
	return n, nil
}
