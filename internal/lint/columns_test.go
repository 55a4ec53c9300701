package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// columns is how wide prose is, in documents and in comments. Tables, code, and what has no space
// to break at may be wider.
const columns = 100

// tabColumns is how wide a tab counts.
const tabColumns = 4

// wrapped are the trees whose comments keep to columns. Documents all do.
var wrapped = []string{"bench", "cmd", "dsm", "internal", "node", "pagetable", "protocol", "transport"}

func width(line string) int {
	return utf8.RuneCountInString(line) + (tabColumns-1)*strings.Count(line, "\t")
}

// breakable: the line has a space, outside code spans, at which it could have been broken.
func breakable(line string) bool {
	line = strings.TrimLeft(line, " \t")
	for _, marker := range []string{"- ", "* ", "1. "} {
		line = strings.TrimPrefix(line, marker)
	}
	code := false
	for _, r := range line {
		switch {
		case r == '`':
			code = !code
		case r == ' ' && !code:
			return true
		}
	}
	return false
}

func tooWide(line string) bool { return width(line) > columns && breakable(line) }

// TestDocumentsWrap checks the prose of README.md and docs.
func TestDocumentsWrap(t *testing.T) {
	files := []string{"README.md"}
	err := filepath.WalkDir(filepath.Join(root(t), "docs"), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") {
			name, _ := filepath.Rel(root(t), path)
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range wideProse(string(text)) {
			t.Errorf("%s:%d is wider than %d columns: wrap it", name, n, columns)
		}
	}
}

// wideProse lists the lines of a document, from 1, that are prose and too wide.
func wideProse(text string) (lines []int) {
	fenced := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced, strings.HasPrefix(line, "|"), strings.HasPrefix(line, "    "), strings.HasPrefix(line, "!["):
		case tooWide(line):
			lines = append(lines, i+1)
		}
	}
	return lines
}

func TestWideProse(t *testing.T) {
	wide := strings.Repeat("word ", 30)
	text := wide + "\n| " + wide + "\n    " + wide + "\n```\n" + wide + "\n```\n`" + wide + "`\nshort\n- " + wide
	if got := wideProse(text); !slices.Equal(got, []int{1, 9}) {
		t.Errorf("lines %v are too wide, want 1 and 9", got)
	}
}

// TestCommentsWrap checks the comments of the packages that are wrapped.
func TestCommentsWrap(t *testing.T) {
	eachWrapped(t, func(name string, src []byte) {
		for _, n := range wideComments(t, src) {
			t.Errorf("%s:%d: the comment is wider than %d columns: wrap it, or put it above its line", name, n, columns)
		}
	})
}

// eachWrapped calls check with each file of the packages that are wrapped, built here or not.
func eachWrapped(t *testing.T, check func(name string, src []byte)) {
	t.Helper()
	for _, p := range packages(t) {
		path, _ := local(p.ImportPath)
		if !slices.ContainsFunc(wrapped, func(tree string) bool { return in(path, tree) }) {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles, p.TestGoFiles, p.XTestGoFiles) {
			src, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			check(path+"/"+name, src)
		}
	}
}

// wideComments lists the lines of a source file, from 1, that have comments and are too wide.
func wideComments(t *testing.T, src []byte) (lines []int) {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "", src, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Split(string(src), "\n")
	for _, group := range f.Comments {
		if group == preamble(f) || strings.Contains(strings.ToLower(group.Text()), "output:\n") {
			continue
		}
		for _, c := range group.List {
			n := fset.PositionFor(c.Pos(), false).Line
			prose, isProse := strings.CutPrefix(c.Text, "// ") // no directive, no code
			if isProse && !strings.HasPrefix(prose, "   ") && width(text[n-1]) > columns && breakable(prose) {
				lines = append(lines, n)
			}
		}
	}
	return lines
}

// preamble is the comment of a file that holds C.
func preamble(f *ast.File) *ast.CommentGroup {
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.IMPORT {
			for _, s := range g.Specs {
				if i := s.(*ast.ImportSpec); i.Path.Value == `"C"` {
					if i.Doc != nil {
						return i.Doc
					}
					return g.Doc
				}
			}
		}
	}
	return nil
}

func TestWideComments(t *testing.T) {
	wide := strings.Repeat("word ", 30)
	src := "package p\n\n// " + wide + "\n//\n//\tcode " + wide + "\n//go:generate " + wide + "\n\nvar x = 1 // " + wide + "\nvar y = `" + wide + "`\n"
	if got := wideComments(t, []byte(src)); !slices.Equal(got, []int{3, 8}) {
		t.Errorf("lines %v are too wide, want 3 and 8", got)
	}
	withC := "package p\n\n// int f(void); " + wide + "\nimport \"C\"\n"
	if got := wideComments(t, []byte(withC)); len(got) > 0 {
		t.Errorf("lines %v of C are too wide", got)
	}
}

// TestCommentsReport checks that a comment of those packages says what a function reports, as Go's
// own do: that a function "says whether" something is so tells nothing that its name does not.
func TestCommentsReport(t *testing.T) {
	eachWrapped(t, func(name string, src []byte) {
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range f.Comments {
			if says := saysWhether.FindString(group.Text()); says != "" {
				t.Errorf("%s: %q: write \"reports whether\", or leave it out", name, says)
			}
		}
	})
}

// saysWhether is how such a comment begins.
var saysWhether = regexp.MustCompile(`^\w+ says\s+whether`)
