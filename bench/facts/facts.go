// Package facts compares a kernel's figures with those of the original program. The figures of the
// original, at the sizes where they are known, lie in a JSON file beside the kernel.
package facts

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Facts are figures by size and by name: strings, which must be equal, or numbers.
type Facts map[int]map[string]any

// Parse reads facts of the form {"SIZE": {"NAME": FIGURE}}. It panics if text is something else, as Read does.
func Parse(text []byte) Facts { return Read[Facts](text) }

// Read reads facts of any form from JSON. It panics if text is not of this form: the text is part of
// the program, and the kernel's tests would not start.
func Read[T any](text []byte) T {
	var facts T
	if err := json.Unmarshal(text, &facts); err != nil {
		panic(fmt.Sprintf("facts: the embedded file is damaged: %v", err))
	}
	return facts
}

// Check says how figures differ from the facts of a size; nil if they do not, or if nothing is known of this
// size. Figures without a fact are not looked at. Numbers agree if they differ by no more than tolerance times the fact's
// absolute value, or if they have the same 15 digits, which is what the original prints.
func (f Facts) Check(size int, figures map[string]any, tolerance float64) error {
	return Compare(f[size], figures, tolerance)
}

// Compare is Check with the facts of one run, which may be none.
func Compare(facts, figures map[string]any, tolerance float64) error {
	names := make([]string, 0, len(facts))
	for name := range facts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if got, want := figures[name], facts[name]; !agree(got, want, tolerance) {
			return fmt.Errorf("figure %q is %v, the original program's is %v", name, got, want)
		}
	}
	return nil
}

func agree(got, want any, tolerance float64) bool {
	if got == want {
		return true
	}
	g, ok := got.(float64)
	if !ok {
		return false
	}
	w, ok := want.(float64)
	return ok && (math.Abs(g-w) <= tolerance*math.Abs(w) || digits(g) == digits(w))
}

func digits(x float64) string { return strconv.FormatFloat(x, 'g', 15, 64) }
