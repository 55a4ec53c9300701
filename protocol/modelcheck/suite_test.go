package modelcheck

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	deep   = flag.Bool("deep", false, "explore the larger bound: pass -timeout 0 too")
	family = flag.String("family", "", "explore only families with this in their names")
)

// maxStates bounds one configuration. The suite must stay below: what is not visited is not checked.
const maxStates = 32 << 20

// TestEveryInterleaving explores the whole suite. With -v it prints how many states there are.
func TestEveryInterleaving(t *testing.T) {
	bound := Fixed
	switch {
	case *deep:
		bound = Deep
	case testing.Short():
		bound = Short
	}
	sum := map[string]*total{}
	begin := time.Now()
	cases := slices.DeleteFunc(Suite(bound), func(c Case) bool { return !strings.Contains(c.Family, *family) })
	worst := map[string]*Finding{} // by family and rule, the shortest
	Run(cases, runtime.GOMAXPROCS(0), maxStates, func(c Case, r *Result) {
		if sum[c.Family] == nil {
			sum[c.Family] = &total{}
		}
		sum[c.Family].add(r)
		switch {
		case r.Finding != nil:
			key := c.Family + ": " + r.Finding.Violation.Rule
			if w := worst[key]; w == nil || len(r.Finding.Scenario.Actions) < len(w.Scenario.Actions) {
				worst[key] = r.Finding
			}
		case !r.Complete:
			t.Errorf("%s: more than %d states in\n%v", c.Family, maxStates, c.Config)
		}
	})
	for _, key := range slices.Sorted(maps.Keys(worst)) {
		t.Errorf("%s\n%s", key, replayed(t, worst[key]))
	}
	all := total{}
	for _, family := range slices.Sorted(maps.Keys(sum)) {
		t.Logf("%-55s %v", family, sum[family])
		all.plus(sum[family])
	}
	t.Logf("%-55s %v in %v", "all", &all, time.Since(begin).Round(time.Millisecond))
}

// total sums up results.
type total struct{ configs, states, transitions, depth, largest int }

func (s *total) add(r *Result) {
	s.plus(&total{configs: 1, states: r.States, transitions: r.Transitions, depth: r.Depth, largest: r.States})
}

func (s *total) plus(r *total) {
	s.configs += r.configs
	s.states += r.states
	s.transitions += r.transitions
	s.depth = max(s.depth, r.depth)
	s.largest = max(s.largest, r.largest)
}

func (s *total) String() string {
	return fmt.Sprintf("%4d configurations %10d states %11d transitions, depth %3d, largest %8d", s.configs, s.states, s.transitions, s.depth, s.largest)
}

// replayed is the text of a finding's scenario, which must replay to the same violation outside the explorer.
func replayed(t *testing.T, f *Finding) string {
	t.Helper()
	text, v, err := f.Scenario.Run()
	switch {
	case err != nil:
		t.Errorf("the counterexample does not replay: %v", err)
	case v == nil || *v != *f.Violation:
		t.Errorf("the counterexample replays to violation %v, the explorer saw %v", v, f.Violation)
	}
	return text
}

// TestRenamings: programs that are left out, because others are the same by other names, have the same interleavings as those.
func TestRenamings(t *testing.T) {
	pages := [2]uint64{0, 1}
	programs := accesses(2, pages[0], pages[1])
	if n := len(pairs(programs, pages, bothSwapped)); n != len(programs)*(len(programs)+1)/2 {
		t.Errorf("%d pairs are left of %d", n, len(programs)*len(programs))
	}
	c := Short.base(2)
	c.Strays = true
	for _, p := range programs {
		for _, q := range programs {
			other := bothSwapped.apply([2]string{p, q}, pages)
			r, s := Explore(threads(c, p, q), maxStates), Explore(threads(c, other[0], other[1]), maxStates)
			if r.States != s.States || r.Transitions != s.Transitions || r.Depth != s.Depth {
				t.Errorf("%q and %q: %d states, %d transitions, depth %d; renamed %d, %d and %d", p, q, r.States, r.Transitions, r.Depth, s.States, s.Transitions, s.Depth)
			}
		}
	}
}
