package water

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"dsmd/bench/facts"
	"dsmd/bench/kernel"
)

// The differences from the sequential result that are allowed: sums of up to millions of terms
// round differently for every order of the threads. Figures and places that were measured differed
// by less than 1e-12.
const (
	figureTolerance = 1e-9  // in the figure's unit, or relative if the figure is above 1
	placeTolerance  = 1e-10 // in Ångström
)

// What the original program prints, by the number of molecules and the figure's name. These are
// texts, because the number of decimals says how near the figure must be.
//
//go:embed testdata/reference.json
var referenceJSON []byte

var original = facts.Parse(referenceJSON)

// Verify compares the figures with the original's, in all decimals that it prints, if there are
// some for this size, and figures and places with the sequential result.
func (p problem) Verify(sequential, got kernel.Result) error {
	return errors.Join(
		facts.Compare("the original's", original[p.n], got.Figures, printsAs),
		facts.Compare("the sequential version's", sequential.Figures, got.Figures, near),
		p.comparePlaces(sequential.Output, got.Output),
	)
}

// printsAs: with as many decimals as the original prints, the figure reads the same.
func printsAs(_ string, got, want any) bool {
	x, ok := got.(float64)
	text := want.(string)
	_, decimals, _ := strings.Cut(text, ".")
	w, err := strconv.ParseFloat(text, 64)
	// A millionth more than half of the last decimal's unit, for a figure that lies in the middle
	// of two.
	return ok && err == nil && math.Abs(x-w) <= 0.500001*math.Pow10(-len(decimals))
}

// near compares all figures but the checksum, which is no number and depends on every bit.
func near(_ string, got, want any) bool {
	w, ok := want.(float64)
	if !ok {
		return true
	}
	x, ok := got.(float64)
	return ok && math.Abs(x-w) <= figureTolerance*max(1, math.Abs(w))
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
