package modelcheck

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"
)

var (
	bound  = flag.String("bound", "", "how far to explore: short, default, full or deep; with deep pass -timeout 0 too")
	family = flag.String("family", "", "explore only families with this in their names")
	first  = flag.Bool("first", false, "end with the first finding, which is not the shortest")
)

// chosenBound is what the flags ask for.
func chosenBound(t *testing.T) Bound {
	switch {
	case *bound != "":
		b, err := ParseBound(*bound)
		if err != nil {
			t.Fatal(err)
		}
		return b
	case testing.Short():
		return Short
	}
	return Default
}

// TestEveryInterleaving explores the whole suite. With -v it prints how many states there are.
func TestEveryInterleaving(t *testing.T) {
	sum := map[string]*total{}
	begin := time.Now()
	worst := map[string]*Finding{} // by family and rule, the shortest
	Run(Plan(chosenBound(t), *family), runtime.GOMAXPROCS(0), func(q Queue, c Case, r *Result) bool {
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
		case !r.Complete && !q.Cut:
			t.Errorf("%s: more than %d states in\n%v", c.Family, maxStates, c.Config)
		}
		return r.Finding == nil || !*first
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

// replayed is the text of a finding's scenario, which must replay to the same violation outside the
// explorer. Of two nodes that were taken for one it is the ways to both.
func replayed(t *testing.T, f *Finding) string {
	t.Helper()
	text, v, err := f.Scenario.Run()
	if f.Other != nil {
		other, w, bad := f.Other.Run()
		if err != nil || bad != nil || v != nil || w != nil {
			t.Errorf("the ways to two nodes end in %v and %v, errors %v and %v", v, w, err, bad)
		}
		return f.Violation.Error() + "\n" + text + "\nThe other:\n\n" + other
	}
	switch {
	case err != nil:
		t.Errorf("the counterexample does not replay: %v", err)
	case v == nil || *v != *f.Violation:
		t.Errorf("the counterexample replays to violation %v, the explorer saw %v", v, f.Violation)
	}
	return text
}

// TestRenamings: programs that are left out, because others are the same by other names, have the
// same interleavings as those.
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

// TestDefaultVisitsEveryFamily: what Full explores, Default explores some of.
func TestDefaultVisitsEveryFamily(t *testing.T) {
	visited := map[string]bool{}
	for _, q := range Plan(Default, "") {
		visited[q.Cases[0].Family] = true
	}
	for _, c := range Suite(Full) {
		if !visited[c.Family] {
			t.Errorf("no configuration of %q", c.Family)
		}
	}
}

// TestQueueEndsAfterItsShare: no case is begun behind the share, and each is explored as a whole.
func TestQueueEndsAfterItsShare(t *testing.T) {
	cases := Short.twoThreads()[:4]
	for _, want := range []struct{ states, cases int }{{0, 4}, {1, 1}, {1 << 30, 4}} {
		n := 0
		Run([]Queue{{Cases: cases, Share: want.states}}, 2, func(_ Queue, _ Case, r *Result) bool {
			n++
			return r.Complete
		})
		if n != want.cases {
			t.Errorf("%d cases were explored in a share of %d states, want %d", n, want.states, want.cases)
		}
	}
}
