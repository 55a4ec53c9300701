package settings

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Bytes is a number of bytes, written 64GiB, 512M, 4096. Units are powers of 1024 whether
// written G, GB or GiB, as memory is counted.
type Bytes uint64

// sizeUnits are the letters of the units, each 1024 times the one before it.
const sizeUnits = "KMGTP"

var sizeSyntax = regexp.MustCompile(`^([0-9]+) ?(?:([` + sizeUnits + `])I?)?B?$`)

// Set parses a size.
func (s *Bytes) Set(text string) error {
	parts := sizeSyntax.FindStringSubmatch(strings.ToUpper(text))
	if parts == nil {
		return fmt.Errorf("%q is no size: write a number and a unit, like 64GiB or 512M", text)
	}
	shift := 0
	if parts[2] != "" {
		shift = 10 * (1 + strings.Index(sizeUnits, parts[2]))
	}
	n, err := strconv.ParseUint(parts[1], 10, 64)
	if err != nil || n > math.MaxUint64>>shift {
		return fmt.Errorf("%q is more than 64 bits of bytes", text)
	}
	*s = Bytes(n << shift)
	return nil
}

// String is the shortest way to write the number exactly.
func (s Bytes) String() string {
	n, unit := uint64(s), -1
	for n != 0 && n%1024 == 0 && unit+1 < len(sizeUnits) {
		n /= 1024
		unit++
	}
	if unit < 0 {
		return strconv.FormatUint(n, 10)
	}
	return strconv.FormatUint(n, 10) + sizeUnits[unit:unit+1] + "iB"
}
