package water

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
)

// The differences from the sequential result that are allowed: sums of up to millions of terms round differently for
// every order of the threads. Figures and places that were measured differed by less than 1e-12.
const (
	figureTolerance = 1e-9  // in the figure's unit, or relative if the figure is above 1
	placeTolerance  = 1e-10 // in Ångström
)

// What the original program prints, by the number of molecules and the figure's name. These are texts, because the number
// of decimals says how near the figure must be.
//
//go:embed testdata/reference.json
var referenceJSON []byte

var original = facts.Read[map[int]map[string]string](referenceJSON)

// Verify compares the figures with the original's, in all decimals that it prints, if there are some for this size, and
// figures and places with the sequential result.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(
		comparePrinted(original[p.n], got.Figures),
		compareFigures(sequential.Figures, got.Figures),
		p.comparePlaces(sequential.Output, got.Output),
	)
}

// comparePrinted names the first figure that would be printed differently.
func comparePrinted(printed map[string]string, got map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(printed)) {
		x, ok := got[name].(float64)
		if !ok {
			return fmt.Errorf("figure %q is missing", name)
		}
		_, decimals, _ := strings.Cut(printed[name], ".")
		want, err := strconv.ParseFloat(printed[name], 64)
		if err != nil {
			return fmt.Errorf("testdata/reference.json, %q: %w", name, err)
		}
		// A millionth more than half of the last decimal's unit, for a figure that lies in the middle of two.
		if !(math.Abs(x-want) <= 0.500001*math.Pow10(-len(decimals))) {
			return fmt.Errorf("figure %q is %v, the original's is %s", name, x, printed[name])
		}
	}
	return nil
}

// compareFigures names the first figure that differs. The checksum, which is no number, depends on every bit.
func compareFigures(want, got map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, ok := want[name].(float64)
		if !ok {
			continue
		}
		x, ok := got[name].(float64)
		if !ok {
			return fmt.Errorf("figure %q is missing", name)
		}
		if !(math.Abs(x-w) <= figureTolerance*max(1, math.Abs(w))) {
			return fmt.Errorf("figure %q is %v, the sequential version's is %v", name, x, w)
		}
	}
	return nil
}

// comparePlaces names the first atom that is elsewhere.
func (p problem) comparePlaces(want, got kernel.Words) error {
	if got.Len() != 9*p.n || want.Len() != got.Len() {
		return fmt.Errorf("the output has %d words, the sequential version's %d, and %d molecules are %d", got.Len(), want.Len(), p.n, 9*p.n)
	}
	for i := range got.Len() {
		w, g := math.Float64frombits(want.At(i)), math.Float64frombits(got.At(i))
		if !(math.Abs(w-g) <= placeTolerance) {
			return fmt.Errorf("molecule %d: the %c coordinate of atom %d is %v, the sequential version's is %v", i/9, "xyz"[i/3%3], i%3, g, w)
		}
	}
	return nil
}
