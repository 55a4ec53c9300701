package table

import (
	"slices"
	"testing"
)

func TestMedian(t *testing.T) {
	for want, of := range map[float64][]float64{7: {7}, 2: {3, 1}, 4: {9, 4, 1}, 3: {8, 2, 4, 1}} {
		before := slices.Clone(of)
		if got := Median(of); got != want || !slices.Equal(of, before) {
			t.Errorf("of %v: %v, want %v", before, got, want)
		}
	}
}
