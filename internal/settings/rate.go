package settings

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Rate is a number of bits per second, written 10Gbit, 2.5Gbit or 100Mbit, as networks are sold, in
// powers of 1000; or in bytes, as 100MB/s, or in powers of 1024, as 100MiB/s.
type Rate uint64

var rateSyntax = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(BIT|BIT/S|B/S|IB/S)$`)

// Set parses a rate. A fraction of a bit per second is lost.
func (r *Rate) Set(text string) error {
	parts := rateSyntax.FindStringSubmatch(strings.ToUpper(text))
	if parts == nil || parts[2] == "" && parts[3] == "IB/S" {
		return fmt.Errorf("%q is no rate: write a number and a unit, like 10Gbit or 100MiB/s", text)
	}
	n, err := strconv.ParseFloat(parts[1], 64)
	base := 1000.0
	if parts[3] == "IB/S" {
		base = 1024
	}
	if parts[2] != "" {
		n *= math.Pow(base, float64(1+strings.Index(sizeUnits, parts[2])))
	}
	if strings.HasSuffix(parts[3], "B/S") {
		n *= 8
	}
	if err != nil || n >= 1<<63 {
		return fmt.Errorf("%q is more than 64 bits of bits per second", text)
	}
	*r = Rate(math.Round(n))
	return nil
}

// String is the shortest way to write the number exactly.
func (r Rate) String() string {
	n, unit := uint64(r), ""
	for _, larger := range []string{"k", "M", "G", "T"} {
		if n == 0 || n%1000 != 0 {
			break
		}
		n, unit = n/1000, larger
	}
	return strconv.FormatUint(n, 10) + unit + "bit"
}
