package table

import "slices"

// Median is the middle of the figures of some runs, at least one, or the mean of the two in the
// middle. The values stay as they are.
func Median[T ~float64 | ~int64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
