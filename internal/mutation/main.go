package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the flags.
type options struct {
	path      string
	mutants   int
	seed      uint64
	results   string
	quick     int
	survivors bool
	again     bool
	only      string
	list      bool
	named     bool
}

func main() {
	var o options
	flag.StringVar(&o.path, "package", "protocol", "the package to change: protocol, pagetable or internal/agreement")
	flag.IntVar(&o.mutants, "mutants", 20, "how many mutants are drawn")
	flag.Uint64Var(&o.seed, "seed", 0, "which mutants are drawn; 0: others each time")
	flag.StringVar(&o.results, "results", "", "a file that keeps the results, so that another run goes on from there")
	flag.IntVar(&o.quick, "quick", 0, "run only so many of the checks; 0: all")
	flag.BoolVar(&o.survivors, "survivors", false, "run the checks that are for survivors only, too")
	flag.BoolVar(&o.again, "again", false, "forget which checks survivors have passed")
	flag.StringVar(&o.only, "only", "", "of those that are drawn or named, run only mutants of functions with this in their names")
	flag.BoolVar(&o.list, "list", false, "show the mutants, and run nothing")
	flag.BoolVar(&o.named, "named", false, "run the mutants of named.txt, of all packages; fail if one survives")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutation:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, w io.Writer) error {
	root, err := findRoot()
	if err != nil {
		return err
	}
	if o.named {
		return runNamed(ctx, root, o.only, w)
	}
	if _, ok := checks[o.path]; !ok {
		return fmt.Errorf("there are no checks of package %q", o.path)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	return campaign(ctx, root, o, w)
}

// findRoot is the folder of go.mod.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("there is no go.mod here or above: run this in the repository")
		}
	}
}

// campaign draws mutants of one package and runs those that no list and no earlier run has decided.
func campaign(ctx context.Context, root string, o options, w io.Writer) error {
	p, err := Load(root, o.path)
	if err != nil {
		return err
	}
	known, err := readList(root, "equivalent.txt")
	if err != nil {
		return err
	}
	reasons := map[string]string{}
	for _, e := range known {
		reasons[e.Parts[0].key()] = e.Text
	}
	results, err := OpenResults(o.results)
	if err != nil {
		return err
	}
	drawn := slices.DeleteFunc(p.Draw(o.mutants, o.seed), func(m Mutant) bool { return !strings.Contains(m.Function, o.only) })
	fmt.Fprintf(w, "%d mutants of %s, seed %d\n", len(drawn), o.path, o.seed)
	if o.list {
		for _, m := range drawn {
			fmt.Fprintf(w, "%s:%d: %s\n%s\n", m.File, m.Line, m.Operator, m.Diff())
		}
		return nil
	}
	r := &Runner{Root: root, Package: p, Checks: chosen(checks[o.path], o), Log: w, Least: leastLimit}
	var open []Mutant
	for _, m := range drawn {
		old, ok := results.Find(m.Place)
		if reason, listed := reasons[m.key()]; listed {
			if err := results.Add(Result{Place: m.Place, Line: m.Line, Operator: m.Operator, Status: Equivalent, Detail: reason}); err != nil {
				return err
			}
		} else if !ok || old.Status == Equivalent || old.Status == Survived && (o.again || len(r.left(old.Passed)) > 0) {
			open = append(open, m)
		}
	}
	passed := func(m Place) []string {
		if old, ok := results.Find(m); ok && !o.again {
			return old.Passed
		}
		return nil
	}
	err = r.Run(ctx, open, passed, func(one Result) error {
		fmt.Fprintf(w, "%-9s %s:%d %s, %s (%s; %.1f s)\n", one.Status, one.File, one.Line, one.Function, one.Operator, one.By, one.Seconds)
		return results.Add(one)
	})
	var all []Result
	for _, m := range drawn {
		if one, ok := results.Find(m.Place); ok {
			all = append(all, one)
		}
	}
	Table(w, all)
	return err
}

// chosen are the checks that the flags ask for.
func chosen(all []Check, o options) []Check {
	all = slices.DeleteFunc(slices.Clone(all), func(c Check) bool { return c.Named || c.Survivors && !o.survivors })
	if o.quick > 0 {
		all = all[:min(o.quick, len(all))]
	}
	return all
}

// left are the checks that a mutant has not passed.
func (r *Runner) left(passed []string) []Check {
	return slices.DeleteFunc(slices.Clone(r.Checks), func(c Check) bool { return slices.Contains(passed, c.Name) })
}

// runNamed runs the mutants of named.txt in functions whose names contain only, and fails if one of
// them survives.
func runNamed(ctx context.Context, root, only string, w io.Writer) error {
	entries, err := readList(root, "named.txt")
	if err != nil {
		return err
	}
	var survivors []string
	for path, checks := range checks {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return filepath.Dir(e.Parts[0].File) == path }) {
			continue
		}
		p, err := Load(root, path)
		if err != nil {
			return err
		}
		mutants, names, err := p.named(entries)
		if err != nil {
			return err
		}
		mutants = slices.DeleteFunc(mutants, func(m Mutant) bool { return !strings.Contains(m.Function, only) })
		r := &Runner{Root: root, Package: p, Checks: checks, Log: w, Least: leastLimit}
		none := func(Place) []string { return nil }
		err = r.Run(ctx, mutants, none, func(one Result) error {
			name := names[one.key()]
			fmt.Fprintf(w, "%-9s by %q in %.1f s: %s\n", one.Status, one.By, one.Seconds, name)
			if one.Status == Survived {
				survivors = append(survivors, name)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	if len(survivors) > 0 {
		return fmt.Errorf("no check notices:\n%s", strings.Join(survivors, "\n"))
	}
	return nil
}

// named are the mutants of entries that change this package, and the texts of those.
func (p *Package) named(entries []Entry) ([]Mutant, map[string]string, error) {
	var all []Mutant
	names := map[string]string{}
	for _, e := range entries {
		if filepath.Dir(e.Parts[0].File) != p.Path {
			continue
		}
		m, err := p.Mutant(e)
		if err != nil {
			return nil, nil, fmt.Errorf("named.txt: %w", err)
		}
		all = append(all, m)
		names[m.key()] = e.Text
	}
	return all, names, nil
}
