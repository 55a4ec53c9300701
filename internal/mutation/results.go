package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Results are those of one campaign, and the file that keeps them from one run to the next: a line
// of JSON for each.
type Results struct {
	byKey map[string]Result
	file  string // empty: none
}

// OpenResults reads what a file has so far.
func OpenResults(file string) (*Results, error) {
	r := &Results{map[string]Result{}, file}
	if file == "" {
		return r, nil
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		var one Result
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		r.byKey[one.key()] = one
	}
	return r, nil
}

// Add keeps a result, in place of an older one of that mutant.
func (r *Results) Add(one Result) error {
	r.byKey[one.key()] = one
	if r.file == "" {
		return nil
	}
	line, err := json.Marshal(one)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Find returns the result of a mutant.
func (r *Results) Find(p Place) (Result, bool) {
	one, ok := r.byKey[p.key()]
	return one, ok
}

// Table shows results, the survivors with their changes.
func Table(w io.Writer, all []Result) {
	count := map[Status]int{}
	by := map[string]int{}
	seconds := 0.0
	for _, r := range all {
		count[r.Status]++
		seconds += r.Seconds
		switch r.Status {
		case Killed, TimedOut:
			by[r.By+", "+string(r.Status)]++
		case Survived:
			fmt.Fprintf(w, "%s:%d: %s: survived\n%s\n", r.File, r.Line, r.Operator, r.Diff())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(w, "%-50s %5d\n", name, by[name])
	}
	fmt.Fprintf(w, "%d mutants: %d killed, %d out of time or memory, %d equivalent, %d survived, in %.0f s of processor time\n",
		len(all), count[Killed], count[TimedOut], count[Equivalent], count[Survived], seconds)
}
