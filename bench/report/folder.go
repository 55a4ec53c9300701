package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// An Outcome is what became of a case.
type Outcome struct {
	Case Case `json:"case"`
	// Build identifies the executables that ran. What another build measured is not this one's
	// result.
	Build string `json:"build"`
	// Began is when the run began, and Load the machine's load average (of the last minute) then.
	Began time.Time `json:"began"`
	Load  float64   `json:"load"`
	// Failure says why the run failed. It is empty if the run was completed and its result is
	// right.
	Failure string `json:"failure,omitempty"`
	// Result is what was measured. It is nil if the run was not completed; a wrong result has one,
	// and a Failure.
	Result *Result `json:"result,omitempty"`
}

// A Folder holds the outcomes of a sweep, and what Write makes of them. One process at a time may
// use it.
type Folder struct{ path string }

// Names in a folder.
const (
	resultsName = "results"
	plotsName   = "plots"
	pageName    = "index.html"
	tableName   = "table.md"
	allName     = "results.json"
)

// Open makes the folder if there is none. What is in it already stays.
func Open(path string) (*Folder, error) {
	for _, name := range []string{resultsName, plotsName} {
		if err := os.MkdirAll(filepath.Join(path, name), 0o777); err != nil {
			return nil, fmt.Errorf("making the folder of the report (choose another with --out): %w", err)
		}
	}
	return &Folder{path: path}, nil
}

// Page is the path of the page of HTML.
func (f *Folder) Page() string { return filepath.Join(f.path, pageName) }

func (f *Folder) file(c Case) string { return filepath.Join(f.path, resultsName, c.file()) }

// Find returns the outcome of a case, and whether there is one. A file that is none, because
// somebody else has written it, is an error.
func (f *Folder) Find(c Case) (Outcome, bool, error) {
	var o Outcome
	text, err := os.ReadFile(f.file(c))
	if errors.Is(err, fs.ErrNotExist) {
		return o, false, nil
	}
	if err != nil {
		return o, false, fmt.Errorf("reading an earlier result: %w", err)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, false, fmt.Errorf("%s is no result: %w (remove it, or start over with --fresh)", f.file(c), err)
	}
	if o.Case != c {
		return o, false, fmt.Errorf("%s is the result of %v, run %d (remove it, or start over with --fresh)", f.file(c), o.Case, o.Case.Attempt)
	}
	return o, true, nil
}

// Finished returns the outcome of a case if it need not be run again: it was a success, of the
// given build.
func (f *Folder) Finished(c Case, build string) (Outcome, bool, error) {
	o, found, err := f.Find(c)
	return o, found && o.Build == build && o.Failure == "", err
}

// Keep stores the outcome of a case in place of an earlier one. Whatever happens meanwhile, the
// file is the whole new one or the whole old one.
func (f *Folder) Keep(o Outcome) error { return encode(f.file(o.Case), o) }

// encode writes a file of JSON.
func encode(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	return replace(path, append(text, '\n'))
}

// Discard removes the outcome of a case, if there is one.
func (f *Folder) Discard(c Case) error {
	if err := os.Remove(f.file(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing an earlier result: %w", err)
	}
	return nil
}

// replace writes a file by way of another one beside it, which takes its name when it is complete
// and on the disk. A run that is killed leaves at most that other file, and the next run overwrites
// it.
func replace(path string, text []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".part")
	f, err := os.Create(temporary)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, os.Remove(temporary)))
	}
	return nil
}
