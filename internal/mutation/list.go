package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Entry is a change in a list, with what is to be said of it.
//
//	= It is the reason or the name, of one line or more.
//	@ protocol/directory.go directory.startSharedRead
//	- a line of that function
//	+ what it becomes
//
// A line "! explorer, short" before the first change names a check that has to notice, whatever
// others do. A change may have several parts, each with its own line "@". Where a function has the
// lines more than once, "#1" at the end of that line stands for the second of them, and so on.
type Entry struct {
	Text  string
	By    []string // checks that have to notice; none: some check
	Parts []Place
}

// readList reads a file of entries below this package's folder.
func readList(root, name string) ([]Entry, error) {
	name = filepath.Join("internal/mutation", name)
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return nil, err
	}
	all, err := parseList(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

func parseList(text string) ([]Entry, error) {
	var all []Entry
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "# ") {
			continue
		}
		if !addLine(&all, line[0], strings.TrimSpace(line[1:])) {
			return nil, fmt.Errorf("line %d: %q is out of place: an entry is a text (=), then one change or more (@ file function, - before, + after)", number, line)
		}
	}
	for _, e := range all {
		if len(e.Parts) == 0 {
			return nil, fmt.Errorf("%q has no change", e.Text)
		}
	}
	return all, nil
}

// addLine adds a line to the last entry, or begins another.
func addLine(all *[]Entry, mark byte, rest string) bool {
	var e *Entry
	if len(*all) > 0 {
		e = &(*all)[len(*all)-1]
	}
	switch {
	case mark == '=' && (e == nil || len(e.Parts) > 0):
		*all = append(*all, Entry{Text: rest})
	case mark == '=':
		e.Text += "\n" + rest
	case e == nil:
		return false
	case mark == '!' && len(e.Parts) == 0:
		e.By = append(e.By, rest)
	case mark == '@':
		words := strings.Fields(rest)
		var p Place
		if n := len(words) - 1; n > 0 && words[n][0] == '#' {
			p.Nth, _ = strconv.Atoi(words[n][1:])
			words = words[:n]
		}
		if len(words) == 0 || len(words) > 2 {
			return false
		}
		p.File = words[0]
		if len(words) == 2 {
			p.Function = words[1]
		}
		e.Parts = append(e.Parts, p)
	case len(e.Parts) == 0:
		return false
	case mark == '-':
		p := &e.Parts[len(e.Parts)-1]
		p.Before = append(p.Before, rest)
	case mark == '+':
		p := &e.Parts[len(e.Parts)-1]
		p.After = append(p.After, rest)
	default:
		return false
	}
	return true
}

// find finds the lines that a place names, and returns the edit that changes them.
func (p *Package) find(place Place) (Edit, error) {
	f, ok := p.File(place.File)
	if !ok {
		return Edit{}, fmt.Errorf("package %s has no file %s", p.Path, place.File)
	}
	nth := 0
	for at := 0; at < len(f.Source); {
		end := at + strings.IndexByte(string(f.Source[at:])+"\n", '\n')
		if to, ok := matches(f.Source, at, place.Before); ok {
			if nameOf(f.function(at, to)) == place.Function {
				if nth == place.Nth {
					return Edit{f, at, to, strings.Join(place.After, "\n")}, nil
				}
				nth++
			}
		}
		at = end + 1
	}
	return Edit{}, fmt.Errorf("these lines are not in %s of %s any more, or not so often:\n%s", place.Function, place.File, place.Diff())
}

// matches reports whether the lines from offset at are those wanted, and where they end. Empty
// lines between them do not matter.
func matches(source []byte, at int, want []string) (int, bool) {
	if len(want) == 0 {
		return 0, false
	}
	for i := 0; ; {
		end := at + strings.IndexByte(string(source[at:])+"\n", '\n')
		line := strings.TrimSpace(string(source[at:end]))
		switch {
		case line == want[i]:
			if i++; i == len(want) {
				return end, true
			}
		case line != "" || i == 0:
			return 0, false
		}
		if at = end + 1; at >= len(source) {
			return 0, false
		}
	}
}

// Mutant makes the change of an entry.
func (p *Package) Mutant(e Entry) (Mutant, error) {
	m := Mutant{Place: e.Parts[0], Operator: "named", by: e.By}
	for i, part := range e.Parts {
		edit, err := p.find(part)
		if err != nil {
			return m, err
		}
		if i == 0 {
			m.Line = edit.File.line(edit.Start)
		}
		m.edits = append(m.edits, edit)
	}
	if !p.Compiles(m.edits) {
		return m, fmt.Errorf("%q does not compile", e.Text)
	}
	return m, nil
}
