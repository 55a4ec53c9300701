package main

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const sample = "testdata/sample"

func load(t *testing.T, root, path string) *Package {
	t.Helper()
	p, err := Load(root, path)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// changes are all alternatives of all sites that compile, each as "before => after".
func changes(p *Package) []string {
	var all []string
	for _, f := range p.Files {
		for _, s := range p.Sites(f) {
			for _, edits := range s.alternatives {
				if m := describe(f, s.operator, edits); p.Compiles(edits) {
					all = append(all, m.Operator+": "+strings.Join(m.Before, " ")+" => "+strings.Join(m.After, " "))
				}
			}
		}
	}
	return all
}

// TestOperators: each operator finds what it is for, and none finds what only people read.
func TestOperators(t *testing.T) {
	all := changes(load(t, sample, "."))
	for _, want := range []string{
		"condition negated: for n < to { => for !(n < to) {",
		"condition negated: if p.a%2 != 0 && p.b > 1 { => if p.a%2 == 0 && p.b > 1 {",
		"condition dropped: if p.a%2 != 0 && p.b > 1 { => if p.a%2 != 0 {",
		"and, or: if p.a%2 != 0 && p.b > 1 { => if p.a%2 != 0 || p.b > 1 {",
		"off by one: if p.a%2 != 0 && p.b > 1 { => if p.a%2 != 0 && p.b >= 1 {",
		"off by one: var limit = 3 => var limit = 4",
		"statement dropped: p.a /= 2 => ",
		"statement dropped: n++ => ",
		"operator exchanged: n++ => n--",
		"operator exchanged: s += x => s -= x",
		"operator exchanged: func minus(a, b int) int { return a - b } => func minus(a, b int) int { return a + b }",
		"case dropped: case green: return pair{a: minus(limit, len(list))} => ",
		"field dropped: return pair{a: sum(list...), b: one(3, true)} => return pair{a: sum(list...)}",
		"field dropped: return pair{a: minus(limit, len(list))} => return pair{}",
		"arguments swapped: return pair{a: minus(limit, len(list))} => return pair{a: minus(len(list), limit)}",
	} {
		if !slices.Contains(all, want) {
			t.Errorf("not found: %s", want)
		}
	}
	for _, s := range all {
		for _, people := range []string{"panic", "names[", "red:", "Errorf(\"%w: %d\", errOdd, p.a+1)", "p.a < 0"} {
			if strings.Contains(s[:strings.Index(s, "=>")], people) && !strings.HasPrefix(s, "arms swapped") && !strings.HasPrefix(s, "case dropped") {
				t.Errorf("%s is for people", s)
			}
		}
	}
	if t.Failed() {
		t.Log(strings.Join(all, "\n"))
	}
}

// TestEqualSeedsGiveEqualMutants: and the mutants of fewer are the first of more.
func TestEqualSeedsGiveEqualMutants(t *testing.T) {
	places := func(n int, seed uint64) []Place {
		var all []Place
		for _, m := range load(t, sample, ".").Draw(n, seed) {
			all = append(all, m.Place)
		}
		return all
	}
	first, second, other := places(20, 1), places(20, 1), places(20, 2)
	if len(first) != 20 || !reflect.DeepEqual(first, second) || !reflect.DeepEqual(first[:5], places(5, 1)) {
		t.Errorf("%d mutants, and these:\n%v\n%v", len(first), first, second)
	}
	if reflect.DeepEqual(first, other) {
		t.Error("another seed gives the same mutants")
	}
}

// namedMutants makes the mutants of a list.
func namedMutants(t *testing.T, p *Package, list string) []Mutant {
	t.Helper()
	entries, err := parseList(list)
	if err != nil {
		t.Fatal(err)
	}
	var all []Mutant
	for _, e := range entries {
		m, err := p.Mutant(e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

const sampleList = `
= killed, in a method whose arguments are blank
@ sample.go pair.half
- p.a /= 2

= killed, in a generic function of any number of arguments
@ sample.go sum
- s += x
+ s -= x

= killed, in a function whose arguments have no names
@ sample.go one
- func one(int, bool) int { return 1 }
+ func one(int, bool) int { return 2 }

= nobody looks at this
@ sample.go pair.half
- return 0, fmt.Errorf("%w: %d", errOdd, p.a-1)
+ return 1, fmt.Errorf("%w: %d", errOdd, p.a-1)

= without end
@ sample.go count
- n++

= killed, outside of functions
@ sample.go
- var limit = 3
+ var limit = 4

= noticed by one of the two that have to
! all
! another
@ sample.go count
- n := 0
+ n := 1

= killed, in two functions
@ sample.go minus
- func minus(a, b int) int { return a - b }
+ func minus(a, b int) int { return a + b }
@ sample.go choose
- return pair{a: sum(list...), b: one(3, true)}
+ return pair{a: sum(list...), b: one(3, true) + 1}
`

// TestRunner compiles mutants together, and each is what it should be.
func TestRunner(t *testing.T) {
	root, err := filepath.Abs(sample)
	if err != nil {
		t.Fatal(err)
	}
	p := load(t, root, ".")
	r := &Runner{Root: root, Package: p, Checks: []Check{{Name: "all", Package: ".", Memory: memory}}, Log: t.Output(), Least: time.Second}
	var got []Status
	err = r.Run(context.Background(), namedMutants(t, p, sampleList), func(Place) []string { return nil }, func(one Result) error {
		t.Logf("%s %s: %s", one.Status, one.Function, one.Detail)
		got = append(got, one.Status)
		return nil
	})
	if want := []Status{Killed, Killed, Killed, Survived, TimedOut, Killed, Survived, Killed}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// TestUnsoundChecks: checks that fail by themselves kill everything, and say nothing.
func TestUnsoundChecks(t *testing.T) {
	root, err := filepath.Abs(sample)
	if err != nil {
		t.Fatal(err)
	}
	p := load(t, root, ".")
	r := &Runner{Root: root, Package: p, Checks: []Check{{Name: "none", Package: ".", Args: []string{"-no-such-flag"}}}, Log: t.Output()}
	err = r.Run(context.Background(), namedMutants(t, p, sampleList)[:1], func(Place) []string { return nil }, func(Result) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "fails without any mutant") {
		t.Errorf("error %v", err)
	}
}

func TestListRefuses(t *testing.T) {
	for _, text := range []string{"- a\n", "@ f.go F\n- a\n", "= reason\n", "= reason\n- a\n", "= reason\n@\n- a\n", "= reason\n@ f.go F\n* a\n"} {
		if all, err := parseList(text); err == nil {
			t.Errorf("%q is %+v", text, all)
		}
	}
	p := load(t, sample, ".")
	for _, place := range []Place{
		{File: "none.go", Before: []string{"n++"}}, {File: "sample.go", Function: "sum", Before: []string{"n++"}},
		{File: "sample.go", Function: "count", Before: []string{"n++"}, Nth: 1}, {File: "sample.go", Function: "count"},
	} {
		if e, err := p.find(place); err == nil {
			t.Errorf("%+v is %+v", place, e)
		}
	}
}

// TestDiffIsAnEntry: what the report shows of a survivor can be put into a list as it is, and means
// that mutant.
func TestDiffIsAnEntry(t *testing.T) {
	p := load(t, sample, ".")
	seen := map[string]bool{}
	for _, m := range p.Draw(1000, 1) {
		if seen[m.key()] {
			t.Errorf("two mutants are\n%s", m.Diff())
		}
		seen[m.key()] = true
		all, err := parseList("= reason\n" + m.Diff())
		if err != nil {
			t.Fatal(err)
		}
		if got := all[0].Parts[0]; got.key() != m.key() {
			t.Errorf("%+v came back as %+v", m.Place, got)
		}
	}
}

// TestResultsAreKept: the last result of a mutant is the one that counts.
func TestResultsAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "results")
	one := Result{Place: Place{File: "f.go", Before: []string{"a"}, After: []string{"b"}}, Status: Survived, Passed: []string{"first"}}
	for range 2 {
		r, err := OpenResults(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Add(one); err != nil {
			t.Fatal(err)
		}
		r, err = OpenResults(file)
		if got, ok := r.Find(one.Place); err != nil || !ok || !reflect.DeepEqual(got, one) {
			t.Errorf("%+v came back as %+v, %v", one, got, err)
		}
		one.Status, one.By, one.Passed = Killed, "second", nil
	}
}

// TestNamedAreThere: the named mutants are changes to the packages as they are.
func TestNamedAreThere(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := readList(root, "named.txt")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for path := range checks {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return filepath.Dir(e.Parts[0].File) == path }) {
			continue
		}
		all, _, err := load(t, root, path).named(entries)
		if err != nil {
			t.Error(err)
		}
		found += len(all)
	}
	if found != len(entries) {
		t.Errorf("%d of %d entries are of a package with checks", found, len(entries))
	}
	if _, err := readList(root, "equivalent.txt"); err != nil {
		t.Error(err)
	}
}

func TestRunKnowsItsPackages(t *testing.T) {
	if err := run(context.Background(), options{path: "no/such"}, os.Stderr); err == nil {
		t.Error("no error")
	}
}
