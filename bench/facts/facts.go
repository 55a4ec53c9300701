// Package facts compares a kernel's figures with those of the original program. The figures of the
// original, at the sizes where they are known, lie in a JSON file beside the kernel.
package facts

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Facts are figures by size and by name: strings, which must be equal, or numbers.
type Facts map[int]map[string]any

// Parse reads facts of the form {"SIZE": {"NAME": FIGURE}}. It panics if text is something else, as
// Read does.
func Parse(text []byte) Facts { return Read[Facts](text) }

// Read reads facts of any form from JSON. It panics if text is not of this form: the text is part
// of the program, and the kernel's tests would not start.
func Read[T any](text []byte) T {
	var facts T
	if err := json.Unmarshal(text, &facts); err != nil {
		panic(fmt.Sprintf("facts: the embedded file is damaged: %v", err))
	}
	return facts
}

// Check says how figures differ from the facts of a size; nil if they do not, or if nothing is
// known of this size. Figures without a fact are not looked at. They agree as Near has it.
func (f Facts) Check(size int, figures map[string]any, tolerance float64) error {
	return Compare("the original program's", f[size], figures, Near(tolerance))
}

// Compare names the first figure, by name, that does not agree with the one that is wanted. whose
// says whose those are. Figures that are not wanted are not looked at.
func Compare(whose string, want, got map[string]any, agree func(name string, got, want any) bool) error {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		x, there := got[name]
		if !there {
			return fmt.Errorf("figure %q is missing", name)
		}
		if !agree(name, x, want[name]) {
			return fmt.Errorf("figure %q is %v, %s is %v", name, x, whose, want[name])
		}
	}
	return nil
}

// Near is how figures agree with facts: equal or, if they are numbers, no farther apart than
// tolerance times the fact's absolute value, or with the same 15 digits, which is what the original
// prints.
func Near(tolerance float64) func(name string, got, want any) bool {
	return func(_ string, got, want any) bool { return agree(got, want, tolerance) }
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

// Within is an error for a figure that is no number, or farther from 0 than most.
func Within(what string, figure any, most float64) error {
	if x, is := figure.(float64); is && math.Abs(x) <= most {
		return nil
	}
	return fmt.Errorf("%s is %v, and at most %v is allowed", what, figure, most)
}

func digits(x float64) string { return strconv.FormatFloat(x, 'g', 15, 64) }
