package facts

import (
	"math"
	"strings"
	"testing"
)

const text = `{"8": {"fnv": "ab", "sum": 2.5, "third": 0.333333333333333}, "16": {"fnv": "cd"}}`

func TestCheck(t *testing.T) {
	facts := Parse([]byte(text))
	right := func() map[string]any {
		return map[string]any{"fnv": "ab", "sum": 2.5, "third": 1.0 / 3, "more": true}
	}
	if err := facts.Check(8, right(), 0); err != nil {
		t.Errorf("right figures: %v", err)
	}
	if err := facts.Check(9, nil, 0); err != nil {
		t.Errorf("a size without facts: %v", err)
	}
	for name, wrong := range map[string]any{"fnv": "ac", "sum": 2.5000001, "third": 0.33333333333334, "more": nil} {
		figures := right()
		figures[name] = wrong
		if err := facts.Check(8, figures, 0); (err == nil) != (name == "more") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s = %v: %v", name, wrong, err)
		}
	}
	for _, wrong := range []any{nil, "2.5", math.NaN(), 2.6} {
		figures := right()
		figures["sum"] = wrong
		if facts.Check(8, figures, 1e-6) == nil {
			t.Errorf("sum = %v agrees with 2.5", wrong)
		}
	}
	figures := right()
	figures["sum"] = 2.500001
	if err := facts.Check(8, figures, 1e-6); err != nil {
		t.Errorf("within the tolerance: %v", err)
	}
}

func TestParsePanicsOnDamage(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Parse took damaged text")
		}
	}()
	Parse([]byte(`{"eight": {}}`))
}
